"""The commands of an `Engine`, which every engine passes to the owner of its requests, and their reports."""

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from tandem.core.clock import Clock
from tandem.engine.protocol import EngineRequest, Listener


class RequestOwner(Protocol):
    """Takes the commands of `Engine`, each with the time on the engine's clock."""

    def submit(self, work: EngineRequest, now: float) -> None: ...

    def cancel(self, work_id: int, now: float, sequence: int | None) -> None: ...

    def provide_first(self, work_id: int, sequence: int, token: int, now: float, relay: bool) -> None: ...

    def sample_first(self, work_id: int, now: float) -> None: ...


class CommandShell(ABC):
    """The half of an engine that its callers see. A command takes effect at once; `_flush` reports the effects of all
    commands of one turn of the event loop, even while a step runs.

    When reports carry load figures is an engine's own: one that computes in this process sets a timer, because it may
    be in a long step; vLLM's shell looks several times a second anyway.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listener: Listener | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._flush_due = False
        self._load_sent = float("-inf")
        self._load_stale = False
        """Something has happened since the load figures were sent: the next are due soon, even if no more happens."""
        self._overdue_s = 0.0

    @property
    @abstractmethod
    def _requests(self) -> RequestOwner:
        """The owner of the engine's requests; available once the engine has started."""

    @abstractmethod
    def _flush(self) -> None:
        """Report what has happened, and allow the next flush."""

    def submit(self, work: EngineRequest) -> None:
        """Queue a request; the owner of the requests raises what `Engine.submit` says."""
        self._requests.submit(work, self._clock.now())
        self._changed()

    def cancel(self, work_id: int, sequence: int | None = None) -> None:
        self._requests.cancel(work_id, self._clock.now(), sequence)
        self._changed()

    def provide_first(self, work_id: int, sequence: int, token: int, relay: bool = False) -> None:
        self._requests.provide_first(work_id, sequence, token, self._clock.now(), relay)
        self._changed()

    def sample_first(self, work_id: int) -> None:
        self._requests.sample_first(work_id, self._clock.now())
        self._changed()

    def _changed(self) -> None:
        """Note that a command came: look for work, and report the command's effects soon."""
        self._wake.set()
        self._load_stale = True
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _note_overdue(self, overdue_s: float) -> bool:
        """Note for how many seconds the engine has made no progress; whether it ceased to, or makes progress again.
        Load figures are then due at once."""
        changed = (overdue_s > 0) != (self._overdue_s > 0)
        self._overdue_s = overdue_s
        if changed:
            self._load_sent = float("-inf")
        return changed

    async def _wait_for_commands(self, wait_s: float) -> None:
        """Wait until a command comes, for `wait_s` seconds at most."""
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._wake.wait()
        except TimeoutError:
            return
