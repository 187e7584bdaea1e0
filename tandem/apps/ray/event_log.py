"""Sentences of the hub for people: what `tandem up --on ray` prints."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster
from tandem.kube.kinds import Json
from tandem.kube.recorder import EventRecorder, EventType

_KEPT: Final = 1000
_LIFE: Final = 1_000_000
"""Numbers of one life of the hub, so that they grow from one to the next."""


class EventLog:
    """The last sentences, numbered. The numbers of hub `epoch` begin after those of every earlier one."""

    def __init__(self) -> None:
        self._next = 0
        self._sentences: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()
        self._troubles: dict[str, str] = {}
        """The last error of each loop that has not gone on since."""

    def begin(self, epoch: int) -> None:
        """Number from this epoch on."""
        self._next = max(self._next, epoch * _LIFE)

    def say(self, sentence: str) -> None:
        """Add a sentence; one that repeats the last is left out."""
        if self._sentences and self._sentences[-1][1] == sentence:
            return
        self._sentences.append((self._next, sentence))
        self._next += 1
        self._changed.set()
        self._changed = asyncio.Event()

    @contextmanager
    def guarding(self, what: str) -> Iterator[None]:
        """Say an operating error of one of the hub's loops and go on, unless it is that this hub acts no more. The
        same error again and again is said once."""
        try:
            yield
        except TandemError as error:
            if error.code == "stale_epoch":
                raise
            if self._troubles.get(what) != error.message:
                self.say(error.message)
            self._troubles[what] = error.message
        else:
            if self._troubles.pop(what, None) is not None:
                self.say(f"{what} can be reached again")

    async def after(self, since: int, wait_s: float) -> tuple[int, tuple[str, ...]]:
        """The sentences from number `since` on, as soon as there is one or after `wait_s` seconds, and the number to
        ask for next."""
        if since >= self._next:
            changed = self._changed
            try:
                async with asyncio.timeout(wait_s):
                    await changed.wait()
            except TimeoutError:
                pass
        return self._next, tuple(sentence for number, sentence in self._sentences if number >= since)


class LogRecorder(EventRecorder):
    """Events as sentences of the log, and in no cluster."""

    def __init__(self, log: EventLog, cluster: Cluster, clock: Clock) -> None:
        super().__init__(cluster, clock, "tandem.dev/hub", "hub")
        self._log = log

    async def record(self, about: Json, kind: EventType, reason: str, note: str, action: str = "Reconcile") -> bool:
        """The sentence, after the name of what it is about."""
        self._log.say(f"{about['metadata']['name']}: {note}")
        return True
