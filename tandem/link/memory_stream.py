"""The streams of an in-memory link: wires with delays, and two ends that live and die together."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Generic, Protocol, TypeVar

from tandem.core.messages import RouterMessage, StateRequest, StateUpdate, WorkerCommand
from tandem.link.queue import Inbox, LinkLimits

Out = TypeVar("Out")
In = TypeVar("In")
StateOut = TypeVar("StateOut")
StateIn = TypeVar("StateIn")


class LinkPolicy(Protocol):
    """The network's effects on traffic from one node to another."""

    def delay_s(self, source: str, target: str) -> float | None:
        """Seconds the next frame takes, or None while nothing gets through (partition, frozen peer).

        What is held is asked about again after `MemoryLinks.reconsider`. Order is kept whatever is answered.
        """
        ...

    def repeats(self, source: str, target: str) -> bool:
        """Whether the frame that has just departed arrives twice, as if a lower layer had repeated it."""
        ...


class Network(Protocol):
    """The parts of its network that a wire needs."""

    @property
    def policy(self) -> LinkPolicy: ...

    @property
    def limits(self) -> LinkLimits: ...

    def hold(self, retry: Callable[[], None]) -> None:
        """Call `retry` when the policy's answers may have changed."""
        ...


Item = tuple[Any, ...] | str
"""A frame of messages, or the reason for which the stream ends."""

_NETWORK: Final = Context()
"""The context in which items under way arrive. It belongs to neither process: an item arrives whatever becomes of its
sender."""


class Wire:
    """One direction of one stream: items arrive in order, each after the delay the policy gives it."""

    def __init__(self, network: Network, source: str, target: str, arrive: "Callable[[Item, bool], None]") -> None:
        """`arrive` receives an item, and whether it has received that item before."""
        self._network = network
        self._source = source
        self._target = target
        self._arrive = arrive
        self._held: deque[Item] = deque()
        self._flying: deque[tuple[Item, bool, asyncio.TimerHandle]] = deque()
        self._last_due = 0.0

    def put(self, item: Item) -> None:
        self._held.append(item)
        if len(self._held) == 1:
            self._depart()

    def lose(self) -> None:
        """Drop everything that is on the way."""
        self._held.clear()
        for _, _, timer in self._flying:
            timer.cancel()
        self._flying.clear()

    def _depart(self) -> None:
        loop = asyncio.get_running_loop()
        while self._held:
            delay = self._network.policy.delay_s(self._source, self._target)
            if delay is None:
                self._network.hold(self._depart)
                return
            self._last_due = max(self._last_due, loop.time() + delay)
            item = self._held.popleft()
            self._fly(item, again=False)
            if not isinstance(item, str) and self._network.policy.repeats(self._source, self._target):
                self._fly(item, again=True)

    def _fly(self, item: Item, *, again: bool) -> None:
        loop = asyncio.get_running_loop()
        self._flying.append((item, again, loop.call_at(self._last_due, self._land, context=_NETWORK)))

    def _land(self) -> None:
        item, again, _ = self._flying.popleft()
        self._arrive(item, again)


class MemoryChannel(Generic[Out, In]):
    """One end of one stream."""

    def __init__(self, limits: LinkLimits, overflow: Callable[[], None]) -> None:
        self._limits = limits
        self._overflow = overflow
        self._tick: list[Out] = []
        self._on_the_way = 0
        self._sending = True
        self.inbox: Inbox[In] = Inbox()
        self.wire: Wire | None = None
        self.other: MemoryChannel[Any, Any] | None = None
        self.on_peer_end: Callable[[], None] | None = None

    def send(self, message: Out) -> None:
        if not self._sending:
            return
        assert self.other is not None
        if not self._tick:
            asyncio.get_running_loop().call_soon(self._flush)
        self._tick.append(message)
        self._on_the_way += 1
        if self._on_the_way + self.other.inbox.messages > self._limits.queue_messages:
            self._overflow()

    async def receive(self) -> tuple[In, ...]:
        return await self.inbox.get()

    def say_end(self, reason: str) -> None:
        """Stop sending; the peer receives `reason` after everything that was sent."""
        if self._sending:
            self._flush()
            self._sending = False
            assert self.wire is not None
            self.wire.put(reason)

    def break_off(self, reason: str | None = None) -> None:
        """Stop sending and lose what is on the way; the peer receives only `reason`, if there is one."""
        assert self.wire is not None
        self._sending = False
        self._tick.clear()
        self.wire.lose()
        if reason is not None:
            self.wire.put(reason)

    def arrived(self, item: Item, again: bool) -> None:
        """Something from the peer, once more when `again`."""
        assert self.other is not None
        if isinstance(item, str):
            self.inbox.end(item, drop=False)
            if self.on_peer_end is not None:
                self.on_peer_end()
        else:
            self.other.delivered(0 if again else len(item))
            self.inbox.put(item)

    def delivered(self, messages: int) -> None:
        self._on_the_way -= messages

    def _flush(self) -> None:
        if self._tick:
            assert self.wire is not None
            frame, self._tick = tuple(self._tick), []
            self.wire.put(frame)


class MemoryLink(Generic[Out, In, StateOut, StateIn]):
    """Either end of a link."""

    def __init__(self, peer: str, limits: LinkLimits, over: Callable[[], None]) -> None:
        self.peer = peer
        self.tokens: MemoryChannel[Out, In] = MemoryChannel(limits, self._overflow)
        self.state: MemoryChannel[StateOut, StateIn] = MemoryChannel(limits, self._overflow)
        self._limits = limits
        self._over = over
        self._channels: tuple[MemoryChannel[Any, Any], ...] = (self.tokens, self.state)
        for channel in self._channels:
            channel.on_peer_end = self._peer_ended

    def close(self, reason: str) -> None:
        """End the link from this side: what was sent still arrives."""
        for channel in self._channels:
            channel.say_end(reason)
            channel.inbox.end(reason, drop=True)
        self._over()

    def lost(self, reason: str) -> None:
        """The connection is gone: what was received can still be read."""
        for channel in self._channels:
            channel.break_off()
            channel.inbox.end(reason, drop=False)
        self._over()

    def died(self, reason: str) -> None:
        """Close this end because its process is gone; what the process wrote before still travels."""
        self.close(reason)

    def _overflow(self) -> None:
        reason = "the peer does not read: the outbound queue is full"
        for channel in self._channels:
            channel.break_off(reason)
            channel.inbox.end(reason, drop=True)
        self._over()

    def _peer_ended(self) -> None:
        """One stream was read to its end; the other may still have messages on the way, so it gets a moment."""
        for channel in self._channels:
            channel.break_off()
        if not all(channel.inbox.ended for channel in self._channels):
            asyncio.get_running_loop().call_later(self._limits.flush_s, self.lost, "the peer ended the link")


RouterEnd = MemoryLink[WorkerCommand, RouterMessage, StateRequest, StateUpdate]
WorkerEnd = MemoryLink[RouterMessage, WorkerCommand, StateUpdate, StateRequest]


class Pair:
    """The two ends of one link and the four wires between them."""

    def __init__(self, network: Network, router: str, worker: str, over: Callable[[], None]) -> None:
        self.router = router
        self.worker = worker
        self.router_end: RouterEnd = MemoryLink(worker, network.limits, over)
        self.worker_end: WorkerEnd = MemoryLink(router, network.limits, over)
        _connect(network, router, worker, self.router_end.tokens, self.worker_end.tokens)
        _connect(network, router, worker, self.router_end.state, self.worker_end.state)

    def broken(self, reason: str) -> None:
        self.router_end.lost(reason)
        self.worker_end.lost(reason)

    def died(self, name: str) -> None:
        end = self.router_end if name == self.router else self.worker_end
        end.died(f"connection reset: {name} is gone")


def _connect(
    network: Network, router: str, worker: str, down: MemoryChannel[Any, Any], up: MemoryChannel[Any, Any]
) -> None:
    down.other, up.other = up, down
    down.wire = Wire(network, router, worker, up.arrived)
    up.wire = Wire(network, worker, router, down.arrived)
