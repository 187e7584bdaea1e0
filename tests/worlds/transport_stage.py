"""The set-up every transport is tested in: a holder and a receiver in one process, over one kind of transport."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from kv_transfer.export import Exporter, ExportSettings
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.nixl import NixlSettings, NixlTransport
from kv_transfer.transport.protocol import Alive, Delivered, Pull, PullEvent, PullOpen, Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from kv_transfer.transport.tcp_tls import Encryption, encryption
from tandem.core.deadlines import Deadlines
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, SlotSink, TestSpace, block_layout, epochs, pull_open
from tests.worlds.certificates import shared_certificates

DEADLINES = Deadlines(unknown_name_s=0.2, prefill_progress_s=2.0, transfer_progress_s=1.0)
LIMITS = ConnectionLimits(stall_s=2.0, greeting_s=1.0, connections_max=64)
PATIENT = ConnectionLimits(stall_s=30.0, greeting_s=30.0, connections_max=64)
"""Where nothing is to run into a bound: dozens of handshakes at once take long on a busy machine."""
AT_LAST_S = 60.0
"""What is bounded by one of `LIMITS` has ended by then on any machine, and what waits for ever has not."""


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
    open_s: float = 1.0

    def request(self, names: tuple[bytes, ...], lease_id: str = "lease") -> PullOpen:
        return pull_open(self.holder, self.receiver, names, lease_id)

    async def open(self, request: PullOpen, offset: int = 0) -> Pull:
        return await self.pulling.open(self.address, request, SlotSink(self.receiver, offset), self.open_s)

    async def events(self, request: PullOpen, offset: int = 0) -> list[PullEvent]:
        """One pull from open to close."""
        pull = await self.open(request, offset)
        try:
            return await collect(pull)
        finally:
            await pull.close()

    def got(self, index: int, offset: int = 0) -> bytes:
        return bytes(self.receiver.memory.block(offset + 2 * index + 1))


def descriptors() -> int:
    """How many this process has open. Those of earlier tests, which the collector may close at any time, are closed
    before; their numbers are given to others, so only the count says something."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


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


async def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Give other tasks their turns until `condition()` holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def encrypted() -> Encryption:
    """Both ends of every encrypted transport show the same certificate here."""
    tls = shared_certificates()
    return encryption("on", tls, tls)


def transports(kind: str, limits: ConnectionLimits = LIMITS) -> tuple[Transport, Transport]:
    """The holder's and the receiver's end of one kind."""
    if kind == "mem":
        fabric = MemoryNetwork()
        return MemoryTransport(fabric, "p0"), MemoryTransport(fabric, "d0")
    if kind in ("tcp", "tls"):
        settings, over = TcpSettings(limits=limits), encrypted() if kind == "tls" else Encryption()
        return TcpTransport(settings, over), TcpTransport(settings, over)
    if kind == "nixl":
        os.environ |= {"UCX_TLS": os.environ.get("UCX_TLS", "tcp,sm"), "UCX_NET_DEVICES": "lo"}
        return NixlTransport(NixlSettings("p0", limits=limits)), NixlTransport(NixlSettings("d0", limits=limits))
    return ShmTransport(ShmSettings(limits=limits)), ShmTransport(ShmSettings(limits=limits))


@asynccontextmanager
async def stage(
    kind: str, block_bytes: int = 2048, blocks: int = 256, limits: ConnectionLimits = LIMITS
) -> AsyncGenerator[Stage, None]:
    layout = block_layout(block_bytes)
    holder_epoch, receiver_epoch = epochs(1)
    holder, receiver = TestSpace(layout, blocks, holder_epoch), TestSpace(layout, blocks, receiver_epoch)
    exporter = Exporter(holder, KEYRING, SystemClock(), DEADLINES, ExportSettings(batch_blocks=16, alive_every_s=0.1))
    serving, pulling = transports(kind, limits)
    address = await serving.serve(exporter)
    try:
        yield Stage(kind, holder, receiver, exporter, serving, pulling, address, limits.stall_s)
    finally:
        await pulling.close()
        await serving.close()
