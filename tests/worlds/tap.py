"""Listens in on the links of a router: which attempt went where, and what each worker reported of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.core.messages import (
    AttemptReport,
    RouterMessage,
    StateRequest,
    StateUpdate,
    Submit,
    WorkerCommand,
)
from tandem.link.protocol import Channel, Dialer, RouterLink


@dataclass
class Seen:
    """One attempt's work on one worker. `report` comes when the work has ended there."""

    address: str
    submit: Submit
    report: AttemptReport | None = None


class _TappedTokens:
    def __init__(self, tap: "Tap", address: str, inner: Channel[WorkerCommand, RouterMessage]) -> None:
        self._tap = tap
        self._address = address
        self._inner = inner
        self._seen: dict[int, Seen] = {}

    def send(self, message: WorkerCommand) -> None:
        if isinstance(message, Submit):
            self._seen[message.handle] = Seen(self._address, message)
            self._tap.attempts.append(self._seen[message.handle])
        self._inner.send(message)

    async def receive(self) -> tuple[RouterMessage, ...]:
        messages = await self._inner.receive()
        for message in messages:
            if isinstance(message, AttemptReport) and message.handle in self._seen:
                self._seen[message.handle].report = message
        return messages


class _TappedLink:
    def __init__(self, tap: "Tap", address: str, inner: RouterLink) -> None:
        self._inner = inner
        self._tokens = _TappedTokens(tap, address, inner.tokens)

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def tokens(self) -> Channel[WorkerCommand, RouterMessage]:
        return self._tokens

    @property
    def state(self) -> Channel[StateRequest, StateUpdate]:
        return self._inner.state

    def close(self, reason: str) -> None:
        self._inner.close(reason)


class Tap:
    """A `Dialer` around another one. `attempts` are in the order in which they were sent."""

    def __init__(self, inner: Dialer) -> None:
        self.attempts: list[Seen] = []
        self._inner = inner
        self._links: dict[str, _TappedLink] = {}

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        link = _TappedLink(self, address, await self._inner.dial(address, timeout_s))
        self._links[address] = link
        return link

    def sever(self, address: str, reason: str) -> None:
        """Cut the link to a worker here and now: what it has sent and nobody has read is lost."""
        if address in self._links:
            self._links.pop(address).close(reason)

    def of(self, request_id: str, mode: str) -> Iterator[Seen]:
        """Attempts of one request in one mode."""
        return (seen for seen in self.attempts if (seen.submit.request_id, seen.submit.mode) == (request_id, mode))
