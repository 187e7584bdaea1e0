"""A small stage for worker tests: simulated engines behind real hosts, on virtual time, and a scripted router."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from decode_worker.service import decode_worker
from kv_transfer.tickets import Claims, Keyring, TicketKey, issue
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import Transport
from prefill_worker.service import prefill_worker
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Export,
    Hello,
    Ping,
    RemoteKv,
    SequenceOutput,
    StepOutputs,
    Submit,
)
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.link.protocol import Dialer, LinkServer, RouterLink
from tandem.process.run import Service
from tandem.worker.deps import WorkerDeps
from tandem.worker.service import WorkerService
from tandem.worker.simple_decoder import SimpleDecoder

MODEL = SimulatedModel(blocks=512, context_tokens=4096)
KEYRING = Keyring(TicketKey("test", b"k" * 32))
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def parts(clock: Clock, label: str, model: SimulatedModel = MODEL, deadlines: Deadlines | None = None) -> WorkerDeps:
    entropy = SeededEntropy(7, label)
    engine = LocalEngine(SimulatedRunner(model), SchedulerSettings(), clock, entropy.u64())
    return WorkerDeps(engine, SimpleDecoder(), clock, entropy, deadlines=deadlines or Deadlines())


def begin(parts: WorkerDeps) -> Callable[[int], None]:
    assert isinstance(parts.engine, LocalEngine)
    return parts.engine.begin_epoch


def build_prefill(
    parts: WorkerDeps, links: LinkServer, transports: Sequence[Transport], name: str = "prefill-0"
) -> WorkerService:
    return prefill_worker(parts, name, links, transports, KEYRING, begin(parts))


def build_decode(
    parts: WorkerDeps,
    links: LinkServer,
    transports: Sequence[Transport],
    name: str = "decode-0",
    role: str = "decode",
    keyring: Keyring | None = None,
) -> WorkerService:
    return decode_worker(parts, name, links, transports, begin(parts), role=role, keyring=keyring)


def memory_transport(fabric: MemoryNetwork, name: str) -> MemoryTransport:
    return MemoryTransport(fabric, name)


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    """Services that have started and serve."""
    tasks: list[asyncio.Task[None]] = []
    try:
        for service in services:
            await service.start()
            tasks += [asyncio.create_task(root(), name=name) for name, root in service.roots().items()]  # type: ignore[arg-type]
            await service.serve()
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in services:
            await service.stop()


@dataclass
class Router:
    """A scripted router's end of one link: remembers everything it hears, pings while it lives."""

    link: RouterLink
    hello: Hello | None = None
    outputs: list[SequenceOutput] = field(default_factory=list)
    failed: list[AttemptFailed] = field(default_factory=list)
    reports: list[AttemptReport] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    lost: str | None = None
    silent: bool = False
    on_message: Callable[[Any], None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> "Router":
        self._tasks = [asyncio.create_task(task()) for task in (self._tokens, self._state, self._ping)]
        return self

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ended(self, handle: int) -> AttemptReport:
        """Wait for the attempt's report."""
        await self.until(lambda: any(report.handle == handle for report in self.reports))
        return next(report for report in self.reports if report.handle == handle)

    def tokens(self, handle: int, sequence: int = 0) -> tuple[int, ...]:
        mine = [output for output in self.outputs if (output.handle, output.sequence) == (handle, sequence)]
        return tuple(token for output in mine for token in output.tokens)

    def text(self, handle: int, sequence: int = 0) -> str:
        mine = [output for output in self.outputs if (output.handle, output.sequence) == (handle, sequence)]
        return "".join(output.text for output in mine)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _tokens(self) -> None:
        await self._read(self.link.tokens, self._take)

    async def _state(self) -> None:
        await self._read(self.link.state, self.state.append)

    async def _read(self, channel: Any, take: Callable[[Any], None]) -> None:
        try:
            while True:
                for message in await channel.receive():
                    take(message)
                self._news.set()
        except TandemError as error:
            self.lost = error.message
            self._news.set()

    def _take(self, message: Any) -> None:
        self.heard.append(message)
        match message:
            case Hello():
                self.hello = message
            case StepOutputs():
                self.outputs.extend(message.outputs)
            case AttemptFailed():
                self.failed.append(message)
            case AttemptReport():
                self.reports.append(message)
        if self.on_message is not None:
            self.on_message(message)

    async def _ping(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(0.5)
            count += 1
            if not self.silent:
                self.link.tokens.send(Ping(count))


async def dial(dialer: Dialer, address: str) -> Router:
    router = Router(await dialer.dial(address, 5.0)).start()
    await router.until(lambda: router.hello is not None and any(_last(piece) for piece in router.state))
    return router


def _last(piece: Any) -> bool:
    return getattr(piece, "last", False)


def prompt(length: int, salt: int = 0) -> bytes:
    return pack_tokens([256 + (index * 31 + salt * 977) % 5000 for index in range(length)])


def submit(
    handle: int,
    mode: str = "local",
    tokens: bytes | None = None,
    *,
    branches: tuple[ChildRequest, ...] = (ChildRequest(0, 11),),
    stopping: Stopping | None = None,
    sampling: Sampling | None = None,
    remote: RemoteKv | None = None,
    export: Export | None = None,
    deadline_s: float = 60.0,
) -> Submit:
    return Submit(
        handle=handle,
        request_id=f"request-{handle}",
        attempt=1,
        mode=mode,
        prompt=prompt(40) if tokens is None else tokens,
        branches=branches,
        sampling=sampling or Sampling(),
        stopping=stopping or Stopping(max_tokens=12),
        deadline_s=deadline_s,
        remote=remote,
        export=export,
        traceparent=TRACE,
    )


def hand_off(
    handle: int, prefill: Hello, decode: Hello, tokens: bytes, wall: float, keyring: Keyring = KEYRING, **more: Any
) -> tuple[Submit, Submit]:
    """The two submits of one disaggregated attempt."""
    lease_id = f"lease-{handle}"
    ticket = issue(keyring, Claims("tenant", prefill.epoch, lease_id, decode.epoch, wall + 60.0))
    export = Export(lease_id, decode.epoch, 30.0)
    remote = RemoteKv(prefill.worker_id, prefill.epoch, prefill.addresses, lease_id, ticket)
    return (
        submit(handle, "prefill", tokens, export=export, **more),
        submit(handle, "decode", tokens, remote=remote, **more),
    )
