"""The set-up every transport is tested in: a holder and a receiver in one process, over one kind of transport."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from kv_transfer.export import Exporter, ExportSettings
from kv_transfer.limits import ConnectionLimits
from kv_transfer.memory import MemoryFabric, MemoryTransport
from kv_transfer.shm import ShmSettings, ShmTransport
from kv_transfer.tcp import TcpSettings, TcpTransport
from kv_transfer.transport import Alive, Delivered, Pull, PullEvent, PullOpen, Transport
from tandem.core.deadlines import Deadlines
from tandem.service.system import SystemClock
from tests.contract.block_space import KEYRING, SlotSink, TestSpace, block_layout, epochs, pull_open

DEADLINES = Deadlines(unknown_name_s=0.2, prefill_progress_s=2.0, transfer_progress_s=1.0)
LIMITS = ConnectionLimits(stall_s=1.0, greeting_s=0.3, connections_max=64)


@dataclass
class Stage:
    """Both ends. The test plays the engines through `holder` and `receiver`."""

    kind: str
    holder: TestSpace
    receiver: TestSpace
    exporter: Exporter
    serving: Transport
    pulling: Transport
    address: str

    def request(self, names: tuple[bytes, ...], lease_id: str = "lease") -> PullOpen:
        return pull_open(self.holder, self.receiver, names, lease_id)

    async def open(self, request: PullOpen, offset: int = 0) -> Pull:
        return await self.pulling.open(self.address, request, SlotSink(self.receiver, offset), 1.0)

    async def events(self, request: PullOpen, offset: int = 0) -> list[PullEvent]:
        """One pull from open to close."""
        pull = await self.open(request, offset)
        try:
            return await collect(pull)
        finally:
            await pull.close()

    def got(self, index: int, offset: int = 0) -> bytes:
        return bytes(self.receiver.memory.block(offset + 2 * index + 1))


async def collect(pull: Pull) -> list[PullEvent]:
    async with aclosing(one_by_one(pull)) as events:
        return [event async for event in events]


async def one_by_one(pull: Pull) -> AsyncGenerator[PullEvent, None]:
    """The events of a pull, each block on its own however many arrived together."""
    async with aclosing(pull.events()) as events:
        async for event in events:
            for each in event.blocks if isinstance(event, Delivered) else (event,):
                yield each


async def past_alive(events: AsyncGenerator[PullEvent, None]) -> PullEvent:
    """The next event that is not a keep-alive."""
    event = await anext(events)
    while isinstance(event, Alive):
        event = await anext(events)
    return event


async def eventually(condition: Callable[[], bool], within_s: float = 3.0) -> None:
    """Give other tasks their turns until `condition()` holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def transports(kind: str) -> tuple[Transport, Transport]:
    """The holder's and the receiver's end of one kind."""
    if kind == "mem":
        fabric = MemoryFabric()
        return MemoryTransport(fabric, "p0"), MemoryTransport(fabric, "d0")
    if kind == "tcp":
        settings = TcpSettings(limits=LIMITS)
        return TcpTransport(settings), TcpTransport(settings)
    return ShmTransport(ShmSettings(limits=LIMITS)), ShmTransport(ShmSettings(limits=LIMITS))


@asynccontextmanager
async def stage(kind: str, block_bytes: int = 2048, blocks: int = 256) -> AsyncGenerator[Stage, None]:
    layout = block_layout(block_bytes)
    holder_epoch, receiver_epoch = epochs(1)
    holder, receiver = TestSpace(layout, blocks, holder_epoch), TestSpace(layout, blocks, receiver_epoch)
    exporter = Exporter(holder, KEYRING, SystemClock(), DEADLINES, ExportSettings(batch_blocks=16, alive_every_s=0.1))
    serving, pulling = transports(kind)
    address = await serving.serve(exporter)
    try:
        yield Stage(kind, holder, receiver, exporter, serving, pulling, address)
    finally:
        await pulling.close()
        await serving.close()
