"""Ways to break a hand-off for real, between a real transport and those who use it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec.structs import replace

from kv_transfer.transport.protocol import (
    Answer,
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    Offer,
    Pull,
    PullEvent,
    PullOpen,
    Transport,
)
from tandem.engine.protocol import BlockMemory, EngineInfo
from tandem.engine.scheduler.plan import Runner, Step, StepResult
from tandem.engine.scheduler.stall_detection import ProcessSample

Spoil = Callable[[BlockReceived, memoryview], BlockReceived]


class SpoiledArrivals:
    """A transport of a receiver: `spoil` may change each block after it came and before anybody looks at it."""

    def __init__(self, inner: Transport, spoil: Spoil) -> None:
        self._inner = inner
        self._spoil = spoil

    @property
    def scheme(self) -> str:
        return self._inner.scheme

    async def serve(self, source: ExportSource) -> str:
        return await self._inner.serve(source)

    async def withdraw(self) -> None:
        await self._inner.withdraw()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        return _SpoiledPull(await self._inner.open(address, request, sink, timeout_s), sink, self._spoil)

    async def close(self) -> None:
        await self._inner.close()


class _SpoiledPull:
    def __init__(self, inner: Pull, sink: BlockSink, spoil: Spoil) -> None:
        self._inner = inner
        self._sink = sink
        self._spoil = spoil

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        async with aclosing(self._inner.events()) as events:
            async for event in events:
                if isinstance(event, BlockReceived):
                    yield self._spoiled(event)
                elif isinstance(event, Delivered):
                    yield Delivered(tuple(map(self._spoiled, event.blocks)))
                else:
                    yield event

    def _spoiled(self, landed: BlockReceived) -> BlockReceived:
        return self._spoil(landed, self._sink.block(landed.index))

    async def acknowledge(self) -> None:
        await self._inner.acknowledge()

    async def refuse(self, index: int) -> None:
        await self._inner.refuse(index)

    async def close(self) -> None:
        await self._inner.close()


Meddle = Callable[[tuple[Answer, ...], BlockMemory], tuple[Answer, ...]]


class MeddlingHolder:
    """A transport of a holder: `asked` hears of each pull first, `meddle` sees what is about to be sent."""

    def __init__(self, inner: Transport, asked: Callable[[PullOpen], None], meddle: Meddle) -> None:
        self._inner = inner
        self._asked = asked
        self._meddle = meddle

    @property
    def scheme(self) -> str:
        return self._inner.scheme

    async def serve(self, source: ExportSource) -> str:
        return await self._inner.serve(_MeddledSource(source, self._asked, self._meddle))

    async def withdraw(self) -> None:
        await self._inner.withdraw()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        return await self._inner.open(address, request, sink, timeout_s)

    async def close(self) -> None:
        await self._inner.close()


class _MeddledSource:
    def __init__(self, inner: ExportSource, asked: Callable[[PullOpen], None], meddle: Meddle) -> None:
        self._inner = inner
        self._asked = asked
        self._meddle = meddle

    @property
    def memory(self) -> BlockMemory:
        return self._inner.memory

    async def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        self._asked(request)
        async with aclosing(self._inner.answers(request)) as batches:
            async for batch in batches:
                yield self._meddle(batch, self.memory)

    def acknowledge(self, lease_id: str) -> None:
        self._inner.acknowledge(lease_id)

    def refused(self, lease_id: str, name: bytes) -> None:
        self._inner.refused(lease_id, name)


class HeldRunner:
    """A runner that waits for ever before the step after the next `steps`; without a number it just computes.

    `held` is set when a step waits.
    """

    def __init__(self, inner: Runner, steps: int | None = None) -> None:
        self.held = asyncio.Event()
        self._inner = inner
        self._steps = steps

    @property
    def memory(self) -> BlockMemory:
        return self._inner.memory

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        self._inner.watch(seen)

    async def load(self) -> EngineInfo:
        return await self._inner.load()

    async def execute(self, step: Step) -> StepResult:
        if self._steps is not None:
            if self._steps == 0:
                self.held.set()
                await asyncio.get_running_loop().create_future()
            self._steps -= 1
        return await self._inner.execute(step)

    async def close(self) -> None:
        await self._inner.close()


class FlippingProxy:
    """A TCP relay in front of a holder. Once armed it changes one bit of what comes from there."""

    def __init__(self) -> None:
        self.flipped = False
        self._left: int | None = None
        self._server: asyncio.Server | None = None
        self._target: tuple[str, int] = ("", 0)
        self._tasks: list[asyncio.Task[None]] = []

    def arm(self, at: int) -> None:
        """Change byte `at`, counted from now on."""
        self._left = at

    async def before(self, address: str) -> str:
        """Begin to relay to `tcp://host:port`; gives the address to use instead."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        holder_reader, holder_writer = await asyncio.open_connection(*self._target)
        loop = asyncio.get_running_loop()
        self._tasks += [
            loop.create_task(_pump(reader, holder_writer, lambda data: data)),
            loop.create_task(_pump(holder_reader, writer, self._changed)),
        ]

    def _changed(self, data: bytes) -> bytes:
        if self._left is None or self.flipped:
            return data
        at, self._left = self._left, self._left - len(data)
        if at >= len(data):
            return data
        self.flipped = True
        return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(change(data))
            await writer.drain()
    except ConnectionError:
        pass  # One side has hung up; the other learns of it below.
    finally:
        writer.close()


class Proxied:
    """A transport of a holder whose address leads through a proxy."""

    def __init__(self, inner: Transport, proxy: FlippingProxy) -> None:
        self._inner = inner
        self._proxy = proxy

    @property
    def scheme(self) -> str:
        return self._inner.scheme

    async def serve(self, source: ExportSource) -> str:
        return await self._proxy.before(await self._inner.serve(source))

    async def withdraw(self) -> None:
        await self._inner.withdraw()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        return await self._inner.open(address, request, sink, timeout_s)

    async def close(self) -> None:
        await self._proxy.close()
        await self._inner.close()


def flip(block: memoryview, at: int) -> None:
    """Change one bit."""
    block[at % block.nbytes] ^= 0x10


def misnamed(offer: Offer, name: bytes) -> Offer:
    """The same bytes under another name."""
    return replace(offer, handle=replace(offer.handle, name=name))
