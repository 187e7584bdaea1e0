"""The receiver's side of the `nixl` transport: reads offered blocks out of the holder's registered pool.

A read that was given up continues by itself, even when the holder stands still. A landing is therefore settled only
when none of its reads is under way any more, and until then the slots it was to fill must not be used.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from kv_transfer.transport.frames import Offers, Pool
from kv_transfer.transport.nixl_agent import NixlAgent, Transfer, address_of
from kv_transfer.transport.protocol import BlockReceived, BlockSink, Delivered, together
from kv_transfer.transport.wire import Wire
from tandem.core.errors import TandemError

NOTICE: Final = struct.Struct("<II")
"""Notice of a read to the holder's agent: the connection, and how many blocks were read."""

_PIECE_BYTES: Final = 4 << 20
"""A read on the same host is one copy, during which nothing else happens in this process: 1 to 2 ms of it at most."""
_AHEAD: Final = 2
"""Reads under way at a time."""
EAGER_S: Final = 0.003
"""Seconds after the last event during which two polls are separated only by a turn for other tasks; later polls are
`POLL_S` apart."""
POLL_S: Final = 0.0005
_SETTLE_S: Final = 0.02


class KnownAgents:
    """Agents of holders that connections lead to: known while there is one, forgotten with the last."""

    def __init__(self, agent: NixlAgent) -> None:
        self.agent = agent
        self._connections: dict[str, int] = {}

    def take(self, name: str, metadata: bytes) -> None:
        """One more connection. Raises `transfer_failed`."""
        if name not in self._connections:
            self.agent.know(name, metadata)
        self._connections[name] = self._connections.get(name, 0) + 1

    def give_back(self, name: str) -> None:
        """One less."""
        self._connections[name] -= 1
        if self._connections[name] == 0:
            del self._connections[name]
            self.agent.forget(name)


@dataclass(frozen=True)
class _Read:
    """Blocks that are being read together."""

    blocks: tuple[BlockReceived, ...]
    transfer: Transfer


class NixlReceiver:
    """`kv_transfer.transport.pulling.BlockReceiver` of one connection. `stall_s` bounds the wait for any one read."""

    def __init__(self, known: KnownAgents, stall_s: float) -> None:
        self._known = known
        self._stall_s = stall_s
        self._pool: Pool | None = None
        self._reads: deque[_Read] = deque()
        self._closed = False

    async def introduce(self, wire: Wire, pool: Pool) -> None:
        if self._pool is not None or not pool.agent:
            raise TandemError("transfer_failed", f"{wire.peer} showed a pool that is not what it says")
        self._known.take(pool.agent_name, pool.agent)
        self._pool = pool

    async def land(
        self, wire: Wire, offers: Offers, sink: BlockSink
    ) -> AsyncGenerator[BlockReceived | Delivered, None]:
        left = deque(self._pieces(wire, tuple(map(BlockReceived, offers.indices, offers.handles))))
        while left or self._reads:
            while left and len(self._reads) < _AHEAD:
                self._begin(left.popleft(), sink)
                await asyncio.sleep(0)
            read = self._reads[0]
            await self._wait_for(read)
            self._reads.popleft()
            if read.transfer.failure is not None:
                raise read.transfer.failure
            yield together(read.blocks)

    async def settle(self) -> None:
        """Wait until no byte of this connection can land any more. As long as the holder stands still there is no end
        to it; when the holder is gone it ends soon."""
        while self._reads:
            if self._reads[0].transfer.poll():
                self._reads.popleft()
            else:
                await asyncio.sleep(_SETTLE_S)

    def close(self) -> None:
        """Settled connections only: a holder that is forgotten too early would go on writing unseen."""
        if not self._closed:
            self._closed = True
            if self._pool is not None:
                self._known.give_back(self._pool.agent_name)

    def _pieces(self, wire: Wire, blocks: tuple[BlockReceived, ...]) -> list[tuple[BlockReceived, ...]]:
        pool = self._pool
        if pool is None or any(block.handle.slot >= pool.blocks for block in blocks):
            raise TandemError("transfer_failed", f"{wire.peer} offered a slot outside the pool it has shown")
        most = max(1, _PIECE_BYTES // pool.block_bytes)
        return [blocks[at : at + most] for at in range(0, len(blocks), most)]

    def _begin(self, blocks: tuple[BlockReceived, ...], sink: BlockSink) -> None:
        pool, agent = self._pool, self._known.agent
        assert pool is not None, "pieces are made of a pool"
        here = [self._target(sink.block(block.index), pool.block_bytes) for block in blocks]
        there = [(pool.base + block.handle.slot * pool.block_bytes, pool.block_bytes) for block in blocks]
        notice = NOTICE.pack(pool.connection, len(blocks))
        self._reads.append(_Read(blocks, agent.read(pool.agent_name, here, there, notice)))

    def _target(self, view: memoryview, size: int) -> tuple[int, int]:
        """The address and size of a block's destination, in memory that is registered with the agent."""
        if view.nbytes != size:
            problem = f"blocks of the holder have {size} bytes, ours have {view.nbytes}"
            raise TandemError("protocol_mismatch", problem)
        address, agent = address_of(view), self._known.agent
        if not agent.registered(address, size):
            agent.register(memoryview(view.obj).cast("B"))
        return address, size

    async def _wait_for(self, read: _Read) -> None:
        """Wait until a read is over. Raises `transfer_failed` when that takes too long; the read is then still under
        way."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not read.transfer.poll():
            waited_s = loop.time() - began
            if waited_s > self._stall_s:
                raise TandemError("transfer_failed", f"the holder sent nothing over nixl for {self._stall_s:.1f} s")
            await asyncio.sleep(0 if waited_s < EAGER_S else POLL_S)
