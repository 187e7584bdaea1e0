"""The receiver's end of KV connections over stream sockets: connect or reuse, ask, take what comes.

How the bytes of an offer get into the sink is the `BlockReceiver`'s business; everything else is equal for `tcp` and
`shm`. A connection whose pull came to its end carries the next one; any other is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

from kv_transfer.transport.frames import ANSWER_BYTES_MAX, GREETING, Failed, Offers, Pool, Refused
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import BlockReceived, BlockSink, Delivered, Missing, PullEvent, PullOpen, is_reuse
from kv_transfer.transport.rpc import decode_holder, encode_acknowledge, encode_open, encode_refused
from kv_transfer.transport.wire import Wire, framed
from tandem.core.errors import TandemError
from tandem.engine.protocol import FirstTokens

_HOLDER_CODES: Final = ("transfer_failed", "ticket_refused", "stale_epoch", "kv_gone", "protocol_mismatch")


class BlockReceiver(Protocol):
    """Receives the bytes of blocks on one connection. It lives as long as the connection."""

    async def introduce(self, wire: Wire, pool: Pool) -> None:
        """The holder shows its pool."""
        ...

    def land(self, wire: Wire, offers: Offers, sink: BlockSink) -> AsyncGenerator[BlockReceived | Delivered, None]:
        """Bring the bytes of `offers` into the sink, in order. Small blocks are reported together."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Connection:
    """A connected wire with its landing. `greeted` is False until the first request has been sent."""

    wire: Wire
    landing: BlockReceiver
    greeted: bool = False

    def close(self) -> None:
        self.wire.close()
        self.landing.close()


class PullClient:
    """Opens pulls over connections made by `connect`, and keeps idle connections for the next ones."""

    def __init__(self, connect: Callable[[str], Awaitable[Connection]], limits: ConnectionLimits) -> None:
        self._connect = connect
        self._limits = limits
        self._idle: dict[str, list[tuple[Connection, float]]] = {}
        """Connections fit for another pull, and since when: the latest last."""
        self._sweep: asyncio.TimerHandle | None = None
        self._pulls: dict[StreamPull, None] = {}
        self._closed = False

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> "StreamPull":
        """Connect and ask. Raises `transfer_failed`."""
        connection, unsent = self._take(address), None
        try:
            if connection is not None:
                unsent = connection.wire.send_now(_asked(connection, request))
            if connection is None or unsent:
                async with asyncio.timeout(timeout_s):
                    connection = connection or await self._connect(address)
                    await connection.wire.send(unsent or _asked(connection, request))
        except TimeoutError:
            _drop(connection)
            raise TandemError("transfer_failed", f"{address} did not answer within {timeout_s:.1f} s") from None
        except BaseException:
            _drop(connection)
            raise
        pull = StreamPull(connection, request, sink, lambda pull: self._over(address, pull))
        self._pulls[pull] = None
        return pull

    async def close(self) -> None:
        """Hang up everywhere; running pulls end with `transfer_failed`."""
        self._closed = True
        for pull in tuple(self._pulls):
            await pull.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for waiting in self._idle.values():
            for connection, _ in waiting:
                connection.close()
        self._idle.clear()

    def _take(self, address: str) -> Connection | None:
        waiting = self._idle.get(address, [])
        while waiting:
            connection, _ = waiting.pop()
            if connection.wire.quiet():
                return connection
            connection.close()
        return None

    def _over(self, address: str, pull: "StreamPull") -> None:
        del self._pulls[pull]
        waiting = self._idle.setdefault(address, [])
        if self._closed or not pull.whole or len(waiting) >= self._limits.idle_per_peer_max:
            pull.connection.close()
            return
        loop = asyncio.get_running_loop()
        waiting.append((pull.connection, loop.time()))
        if self._sweep is None:
            self._sweep = loop.call_later(self._limits.idle_s / 4, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for long. The holder's own bound must not fall before ours, else a pull could be
        sent into a closing connection."""
        oldest = loop.time() - self._limits.idle_s / 4
        for address, waiting in tuple(self._idle.items()):
            while waiting and waiting[0][1] <= oldest:
                waiting.pop(0)[0].close()
            if not waiting:
                del self._idle[address]
        self._sweep = loop.call_later(self._limits.idle_s / 4, self._expire, loop) if self._idle else None


class StreamPull:
    """`kv_transfer.transport.protocol.Pull` over one connection."""

    def __init__(
        self, connection: Connection, request: PullOpen, sink: BlockSink, over: "Callable[[StreamPull], None]"
    ) -> None:
        self.connection = Connection(connection.wire, connection.landing, greeted=True)
        self._ends_with_blocks = is_reuse(request.lease_id)
        self.whole = self._ends_with_blocks and not request.names
        """Whether the holder has sent its last message and nothing is left to read."""
        self._request = request
        self._sink = sink
        self._over = over
        self._closed = False
        self._seen: set[int] = set()

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        wire, landing = self.connection.wire, self.connection.landing
        while not self.whole:
            match decode_holder(await wire.frame(ANSWER_BYTES_MAX)):
                case Offers() as offers:
                    self._expect(offers.indices)
                    async with aclosing(landing.land(wire, offers, self._sink)) as landed:
                        async for event in landed:
                            yield event
                case Pool() as pool:
                    await landing.introduce(wire, pool)
                case FirstTokens() as first:
                    self.whole = True
                    yield first
                case Failed(code, message):
                    self.whole = True
                    raise TandemError(code if code in _HOLDER_CODES else "transfer_failed", message)
                case Missing(index, reason):
                    self._expect((index,))
                    yield Missing(index, reason)
                case event:
                    yield event
            if self._ends_with_blocks and len(self._seen) == len(self._request.names):
                self.whole = True

    async def acknowledge(self) -> None:
        await self.connection.wire.send(framed(encode_acknowledge(self._request.lease_id)))

    async def refuse(self, index: int) -> None:
        refused = Refused(self._request.lease_id, self._request.names[index])
        await self.connection.wire.send(framed(encode_refused(refused)))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._over(self)

    def _expect(self, indices: Sequence[int]) -> None:
        fresh = set(indices)
        if len(fresh) < len(indices) or max(indices) >= len(self._request.names) or not fresh.isdisjoint(self._seen):
            what = indices[0] if len(indices) == 1 else f"one of {min(indices)} to {max(indices)}"
            raise TandemError("transfer_failed", f"the holder answered for block {what}, which was not open")
        self._seen |= fresh


def _asked(connection: Connection, request: PullOpen) -> list[memoryview]:
    greeting = [] if connection.greeted else [memoryview(GREETING)]
    return [*greeting, *framed(encode_open(request))]


def _drop(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
