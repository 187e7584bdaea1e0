"""The holder's side of the `nixl` transport: shows its pool, and polls while others read from it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kv_transfer.transport.frames import Pool
from kv_transfer.transport.nixl_agent import NixlAgent
from kv_transfer.transport.nixl_receiving import EAGER_S, NOTICE, POLL_S
from kv_transfer.transport.protocol import Offer
from kv_transfer.transport.rpc import encode_pool
from kv_transfer.transport.wire import Wire, framed
from tandem.core.errors import TandemError
from tandem.engine.protocol import BlockMemory

_SELDOM_S: Final = 0.02
_PATIENCE_S: Final = 600.0


class AgentPoller:
    """Polls the agent as long as offered blocks are being read: some ways of reading need the holder's own process.

    Beyond `stall_s` after an offer it polls seldom, but for long: a receiver that gave up keeps the slots it was to
    fill to itself until it knows that the read is over.
    """

    def __init__(self, agent: NixlAgent, stall_s: float) -> None:
        self._agent = agent
        self._stall_s = stall_s
        self._left: dict[int, int] = {}
        """Offered blocks that have not been read yet, by connection."""
        self._offered_at = 0.0
        self._moved_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def offered(self, connection: int, blocks: int) -> None:
        """A receiver is about to read so many blocks."""
        loop = asyncio.get_running_loop()
        self._left[connection] = self._left.get(connection, 0) + blocks
        self._offered_at = self._moved_at = loop.time()
        if self._task is None:
            self._task = loop.create_task(self._poll(), name="nixl progress")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _poll(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._left and (since_s := now() - self._offered_at) < _PATIENCE_S:
                for notice in self._agent.take_notices():
                    self._moved_at = now()
                    self._read(notice)
                await asyncio.sleep(self._pause_s(now() - self._moved_at, since_s))
        except TandemError:
            return  # The library has failed; whoever reads hears of it from its own.
        finally:
            self._task = None
            self._left.clear()

    def _pause_s(self, quiet_s: float, since_s: float) -> float:
        if quiet_s < EAGER_S:
            return 0.0
        return POLL_S if since_s < self._stall_s else _SELDOM_S

    def _read(self, notice: bytes) -> None:
        if len(notice) != NOTICE.size:
            return
        connection, blocks = NOTICE.unpack(notice)
        if connection in self._left:
            self._left[connection] -= blocks
            if self._left[connection] <= 0:
                del self._left[connection]


class NixlCarrier:
    """`kv_transfer.transport.serving.Carrier`: nothing follows an offer, the receiver takes the blocks itself."""

    def __init__(self, agent: NixlAgent, memory: BlockMemory, progress: AgentPoller, connection: int) -> None:
        self._agent = agent
        self._memory = memory
        self._progress = progress
        self._connection = connection
        self._shown = False

    async def introduce(self, wire: Wire) -> None:
        if not self._shown:
            base = self._agent.register(self._memory.buffer)
            pool = Pool(
                self._memory.block_bytes,
                self._memory.blocks,
                self._agent.metadata(),
                self._agent.name,
                base,
                self._connection,
            )
            await wire.send(framed(encode_pool(pool)))
            self._shown = True

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        self._progress.offered(self._connection, len(offers))
        return []


def numbered(make: Callable[[int], NixlCarrier]) -> Callable[[], NixlCarrier]:
    """Carriers with numbers of their own."""
    count = 0

    def carrier() -> NixlCarrier:
        nonlocal count
        count += 1
        return make(count)

    return carrier
