"""The resumable requests of this router: the listener of each, and how long a request goes on without one."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from router.dispatch.answer_log import AnswerLog
from router.dispatch.deps import DispatchDeps
from router.fleet.peer import Peer
from router.generation import Generation, RequestStatus, Running, Sink
from tandem.core.errors import TandemError


class Followed(Protocol):
    """A running request, as seen from here."""

    @property
    def generation(self) -> Generation: ...

    def standing(self) -> RequestStatus: ...

    def cancel(self, reason: str) -> None: ...

    def failed_on(self, peer: Peer) -> bool:
        """Whether an attempt on this worker was given up."""
        ...


class Resumable:
    """`router.generation.Resumed`: a request and its answer. Without a listener, and after its end, under a lease."""

    def __init__(
        self, request: Followed, log: AnswerLog, tools: DispatchDeps, forget: Callable[["Resumable"], None]
    ) -> None:
        self.request = request
        self.log = log
        self._tools = tools
        self._forget = forget
        self._lease: asyncio.TimerHandle | None = None
        log.on_end = self._ended
        if log.ended or not log.listened_to:
            self._begin_lease()

    @property
    def generation(self) -> Generation:
        return self.request.generation

    def chars(self, after: tuple[int, ...]) -> tuple[int, ...]:
        return self.log.chars(after)

    def listen(self, sink: Sink, after: tuple[int, ...]) -> Running:
        self.log.listen(sink, after)
        if not self.log.ended:
            self._end_lease()
        return Listening(self, sink)

    def leave(self, sink: Sink) -> None:
        """The client of `sink` is gone; it may come back."""
        if self.log.leave(sink) and not self.log.ended:
            self._begin_lease()

    def give_up(self, reason: str) -> None:
        """Cancel the request and forget it, so that no client can resume it any more."""
        self._end_lease()
        self._forget(self)
        self.request.cancel(reason)

    def _ended(self, error: TandemError | None) -> None:
        if error is not None and error.code == "taken_over":
            self._end_lease()
            self._forget(self)
        else:
            self._begin_lease()

    def _begin_lease(self) -> None:
        self._end_lease()
        lease_s = self._tools.settings.deadlines.resumable_lease_s
        self._lease = self._tools.loop.call_later(lease_s, self.give_up, f"nobody came back within {lease_s:g} s")

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None


class Listening:
    """The `router.generation.Running` of one listener. When the listener leaves, the request goes on for a while."""

    def __init__(self, resumable: Resumable, sink: Sink) -> None:
        self._resumable = resumable
        self._sink = sink

    def standing(self) -> RequestStatus:
        return self._resumable.request.standing()

    def cancel(self, reason: str) -> None:
        self._resumable.leave(self._sink)


class Resumables:
    """All of them, by tenant and request id."""

    def __init__(self, tools: DispatchDeps) -> None:
        self._tools = tools
        self._known: dict[tuple[str, str], Resumable] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, tenant: str, request_id: str) -> Resumable | None:
        return self._known.get((tenant, request_id))

    def all(self) -> tuple[Resumable, ...]:
        return tuple(self._known.values())

    def add(self, request: Followed, log: AnswerLog) -> Resumable:
        """A request has begun, here or on another router. An older one of the same id is over."""
        key = (request.generation.tenant, request.generation.request_id)
        before = self._known.get(key)
        if before is not None:
            before.give_up("its id was given to another request")
        self._known[key] = resumable = Resumable(request, log, self._tools, self._forget)
        return resumable

    def _forget(self, resumable: Resumable) -> None:
        key = (resumable.generation.tenant, resumable.generation.request_id)
        if self._known.get(key) is resumable:
            del self._known[key]
