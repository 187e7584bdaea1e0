"""The `Link` seam between a router and a worker: two ordered message streams that live and die together.

Implementations: `tandem.link.tcp_dialer` and `tcp_server` (two TCP connections), and `tandem.link.memory_link`
(queues with delays and faults, for tests and simulation). `tests/contract/test_link.py` defines the behaviour."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from tandem.core.messages import RouterMessage, StateRequest, StateUpdate, WorkerCommand

Out = TypeVar("Out", contravariant=True)
In = TypeVar("In", covariant=True)


class Channel(Protocol, Generic[Out, In]):
    """One ordered stream. Nothing is lost or repeated while the link lives."""

    def send(self, message: Out) -> None:
        """Queue a message; messages of one loop tick share a frame. Never blocks.

        When more than the bound is queued (the peer does not read) the link closes with `link_lost`.
        Sending on a closed link does nothing: the receiver learns of the loss.
        """
        ...

    async def receive(self) -> tuple[In, ...]:
        """The next frame's messages, at least one. One reader at a time.

        Raises `link_lost` with the reason once the link is closed. When the peer closed it, what the peer sent
        before comes first; when this side closed it, what was unread is dropped.
        """
        ...


class RouterLink(Protocol):
    """The router's end. `peer` is the worker's address."""

    @property
    def peer(self) -> str: ...

    @property
    def tokens(self) -> Channel[WorkerCommand, RouterMessage]: ...

    @property
    def state(self) -> Channel[StateRequest, StateUpdate]: ...

    def close(self, reason: str) -> None: ...


class WorkerLink(Protocol):
    """The worker's end. `peer` names the router."""

    @property
    def peer(self) -> str: ...

    @property
    def tokens(self) -> Channel[RouterMessage, WorkerCommand]: ...

    @property
    def state(self) -> Channel[StateUpdate, StateRequest]: ...

    def close(self, reason: str) -> None: ...


class Dialer(Protocol):
    """Opens links to workers."""

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        """Connect both streams. Raises `link_lost` when the worker does not answer in time."""
        ...


class LinkServer(Protocol):
    """Accepts links from routers."""

    async def start(self, accept: Callable[[WorkerLink], Awaitable[None]]) -> str:
        """Listen; `accept` runs once per link, as a task, and the link closes when it returns. Gives the address."""
        ...

    async def stop(self) -> None: ...
