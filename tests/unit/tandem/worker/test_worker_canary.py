"""A worker proves its own KV path before it takes work: real engine, leases, tickets, transport and digests."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import msgspec
import pytest

from decode_worker.service import decode_worker
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import (
    BlockReceived,
    BlockSink,
    ExportSource,
    Pull,
    PullEvent,
    PullOpen,
    Transport,
)
from prefill_worker.service import prefill_worker
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.messages import KvDelta, KvSnapshot, Ping, Ready
from tandem.core.metrics import NullMeter
from tandem.engine.local import LocalEngine
from tandem.link.memory_link import MemoryLinks
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.worker.deps import WorkerDeps
from tandem.worker.service import WorkerService
from tandem.worker.settings import HostSettings
from tests.worlds.worker_stage import KEYRING, Router, begin, dial, parts, running, submit


class Gauges(NullMeter):
    """Keeps everything."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        super().add(name, value, *labels)
        self.values[name, *labels] = self.values.get((name, *labels), 0.0) + value

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        self.values[name, *labels] = value


class Faulty:
    """A transport called `scheme` that breaks in one way: refuses, hangs, corrupts, is unserved; or not at all."""

    def __init__(self, inner: Transport, scheme: str, fault: str = "", times: int = 1000) -> None:
        self.scheme = scheme
        self.withdrawn = False
        self._inner = inner
        self._fault = fault
        self._left = times

    async def serve(self, source: ExportSource) -> str:
        if self._fault == "unserved":
            raise TandemError("bad_setting", "the port is in use")
        return f"{self.scheme}://" + (await self._inner.serve(source)).partition("://")[2]

    async def withdraw(self) -> None:
        self.withdrawn = True
        await self._inner.withdraw()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        if self._strikes("refuses"):
            raise TandemError("transfer_failed", "connection refused")
        if self._strikes("hangs"):
            await asyncio.sleep(timeout_s)
            raise TandemError("transfer_failed", "no answer in time")
        pull = await self._inner.open("mem://" + address.partition("://")[2], request, sink, timeout_s)
        return Corrupting(pull, sink) if self._strikes("corrupts") else pull

    async def close(self) -> None:
        await self._inner.close()

    def _strikes(self, fault: str) -> bool:
        if self._fault != fault or not self._left:
            return False
        self._left -= 1
        return True


class Corrupting:
    def __init__(self, inner: Pull, sink: BlockSink) -> None:
        self._inner = inner
        self._sink = sink

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        async with aclosing(self._inner.events()) as events:
            async for event in events:
                blocks = event.blocks if hasattr(event, "blocks") else (event,)
                for block in blocks:
                    if isinstance(block, BlockReceived):
                        self._sink.block(block.index)[3] ^= 1
                yield event

    async def refuse(self, index: int) -> None:
        await self._inner.refuse(index)

    async def acknowledge(self) -> None:
        await self._inner.acknowledge()

    async def close(self) -> None:
        await self._inner.close()


class Bench:
    """One worker with chosen transports, and everything it says."""

    def __init__(self, loop: VirtualLoop, role: str = "prefill", clock: LoopClock | None = None) -> None:
        self.loop = loop
        self.role = role
        self.clock = clock or LoopClock(loop)
        self.links = MemoryLinks()
        self.meter = Gauges()
        self.stream = io.StringIO()
        self.parts: WorkerDeps = replace(parts(self.clock, role), meter=self.meter)

    def transport(self, scheme: str = "mem", fault: str = "", times: int = 1000) -> Faulty:
        return Faulty(MemoryTransport(MemoryNetwork(), scheme), scheme, fault, times)

    def worker(self, *transports: Transport) -> WorkerService:
        lines, server = EventLines(self.stream), self.links.server("w")
        self.health = Health(lines, self.meter)
        if self.role == "prefill":
            return prefill_worker(
                self.parts, "w", server, transports, KEYRING, begin(self.parts), events=lines, health=self.health
            )
        return decode_worker(
            self.parts, "w", server, transports, begin(self.parts), role=self.role, events=lines, health=self.health
        )

    @property
    def engine(self) -> LocalEngine:
        assert isinstance(self.parts.engine, LocalEngine)
        return self.parts.engine

    def told(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def free(self) -> None:
        """Nothing of a canary is left."""
        scheduler = self.engine.scheduler
        pool = scheduler.kv_cache.pool
        scheduler.check()
        assert (pool.used, pool.quarantined, pool.cached, len(scheduler.leases)) == (0, 0, 0, 0)
        assert self.engine.snapshot() == ()


def on_stage(main: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    async def whole(loop: VirtualLoop) -> None:
        await main(loop)

    run(whole, limit_s=200.0)


@pytest.mark.parametrize("role", ["prefill", "decode", "unified"])
def test_every_role_pulls_from_itself_and_leaves_nothing_behind(role: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, role)
        one, other = bench.transport("fast"), bench.transport("slow")
        async with running(bench.worker(one, other)):
            router = await dial(bench.links.dialer("r"), "w")
            hello = router.hello
            assert hello is not None
            assert (hello.canary, hello.problems, hello.unready) == ("self", (), False)
            addresses = ("fast://fast", "slow://slow") if role == "prefill" else ()
            assert hello.addresses == addresses
            assert one.withdrawn == (role != "prefill"), "only a prefill worker goes on serving"
            bench.free()
            router.stop()
        (line,) = bench.told("canary")
        assert (line["canary"], line["paths"], line["broken"]) == ("self", "fast slow", "")
        stages = {key[1] for key in bench.meter.values if key[0] == "tandem_start_stage_seconds"}
        assert stages == {"load", "canary"}
        assert bench.meter.values["tandem_start_stage_seconds", "canary"] > 0.0
        for path in ("fast", "slow"):
            assert bench.meter.values["tandem_kv_transport_usable", path] == 1.0
            assert bench.meter.values["tandem_canaries_total", "self", path, "ok"] == 1.0

    on_stage(main)


def test_canary_blocks_are_in_no_event_that_a_router_hears() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        worker = bench.worker(bench.transport())
        starting = loop.create_task(_serve(worker))
        await asyncio.sleep(0.001)
        early = await dial(bench.links.dialer("r"), "w")
        assert early.hello is not None
        assert early.hello.unready
        await early.until(lambda: any(isinstance(message, Ready) for message in early.heard))
        await asyncio.sleep(1.0)
        events = [update for update in early.state if isinstance(update, KvDelta | KvSnapshot)]
        assert all(not update.stored for update in events if isinstance(update, KvDelta))
        assert all(not update.names for update in events if isinstance(update, KvSnapshot))
        early.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    on_stage(main)


async def _serve(worker: WorkerService) -> None:
    async with running(worker):
        await asyncio.Event().wait()


def test_an_unready_worker_says_so_takes_only_canaries_and_then_becomes_ready() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, "unified")
        worker = bench.worker(bench.transport("mem", "hangs", 1))
        starting = loop.create_task(_serve(worker))
        await asyncio.sleep(0.001)
        router = await dial(bench.links.dialer("r"), "w")
        assert bench.health.stage == "alive"
        router.link.tokens.send(submit(1))
        await router.ended(1)
        assert [(failed.handle, failed.code) for failed in router.failed] == [(1, "no_workers")]
        await router.until(lambda: any(isinstance(message, Ready) for message in router.heard))
        router.link.tokens.send(submit(2))
        assert (await router.ended(2)).tokens_computed == 40
        router.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    on_stage(main)


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("refuses", "transfer_failed", "connection refused"),
        ("hangs", "transfer_failed", "no answer in time"),
        ("corrupts", "kv_corrupt", "not those its holder computed"),
        ("unserved", "bad_setting", "the port is in use"),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_whose_only_transport_is_broken_does_not_start(role: str, fault: str, code: str, words: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, role)
        began = loop.time()
        with pytest.raises(TandemError, match=words) as raised:
            async with running(bench.worker(bench.transport("tcp", fault))):
                raise AssertionError("it started")
        assert raised.value.code == code
        assert "tcp" in raised.value.message or fault == "unserved"
        assert loop.time() - began < 2 * bench.parts.settings.canary_s
        assert bench.health.stage in ("starting", "alive")
        assert not bench.told("ready")
        if fault != "unserved":
            bench.free()

    on_stage(main)


@pytest.mark.parametrize("fault", ["refuses", "hangs", "corrupts", "unserved"])
def test_a_broken_transport_beside_a_working_one_is_withdrawn_and_told(fault: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        good, bad = bench.transport("shm"), bench.transport("tcp", fault)
        async with running(bench.worker(good, bad)):
            router = await dial(bench.links.dialer("r"), "w")
            assert router.hello is not None
            assert router.hello.addresses == ("shm://shm",)
            (problem,) = router.hello.problems
            assert problem.startswith("tcp: ")
            assert bad.withdrawn == (fault != "unserved")
            assert not good.withdrawn
            bench.free()
            router.stop()
        assert bench.meter.values["tandem_kv_transport_usable", "tcp"] == 0.0
        assert bench.meter.values["tandem_kv_transport_usable", "shm"] == 1.0
        (line,) = bench.told("canary")
        assert (line["canary"], line["paths"]) == ("self", "shm")

    on_stage(main)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_transport_that_is_slower_than_it_should_be_is_told_too(role: str) -> None:
    said = "nixl: only 8 MiB of 64 MiB can be locked"

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, role)
        bench.parts = replace(bench.parts, kv_problems=(said,))
        async with running(bench.worker(bench.transport("tcp", "refuses"), bench.transport("shm"))):
            router = await dial(bench.links.dialer("r"), "w")
            assert router.hello is not None
            first, second = router.hello.problems
            assert (first, second.partition(":")[0]) == (said, "tcp")
            router.stop()

    on_stage(main)


def test_one_accident_does_not_stop_a_start() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        async with running(bench.worker(bench.transport("tcp", "corrupts", 1))):
            bench.free()
        assert bench.meter.values["tandem_canaries_total", "self", "tcp", "ok"] == 1.0

    on_stage(main)


def test_without_transports_or_by_setting_there_is_no_canary() -> None:
    async def main(loop: VirtualLoop) -> None:
        bare = Bench(loop, "unified")
        async with running(bare.worker()):
            assert bare.health.stage == "alive"
        off = Bench(loop)
        off.parts = replace(off.parts, settings=HostSettings(canary=False))
        async with running(off.worker(off.transport("tcp", "refuses"))):
            router = await dial(off.links.dialer("r"), "w")
            assert router.hello is not None
            assert (router.hello.canary, router.hello.addresses) == ("", ("tcp://tcp",))
            router.stop()

    on_stage(main)


class FrozenClock(LoopClock):
    """Jumps, as the clock of a process does that was stopped."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.frozen_s = 0.0

    def now(self) -> float:
        return super().now() + self.frozen_s


def test_a_worker_frozen_during_its_canary_tries_again_as_the_new_incarnation() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = FrozenClock(loop)
        bench = Bench(loop, "prefill", clock)
        worker = bench.worker(bench.transport())
        epoch = bench.engine.epoch
        starting = loop.create_task(_serve(worker))
        await asyncio.sleep(0.002)
        clock.frozen_s = 3.0
        await asyncio.sleep(1.0)
        assert bench.engine.epoch != epoch
        assert worker.host.ready
        assert bench.meter.values["tandem_canaries_total", "self", "mem", "ok"] == 1.0
        bench.free()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    on_stage(main)


def test_a_thawed_worker_is_fenced_until_a_router_works_with_it_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = FrozenClock(loop)
        bench = Bench(loop, "prefill", clock)
        async with running(bench.worker(bench.transport())):
            bench.health.ready()
            first = await dial(bench.links.dialer("r"), "w")
            clock.frozen_s = 3.0
            await first.until(lambda: first.lost is not None)
            assert bench.health.stage == "fenced"
            assert bench.meter.values["tandem_health", "fenced"] == 1.0
            first.stop()
            link = await bench.links.dialer("r").dial("w", 1.0)
            second = Router(link, silent=True).start()
            await second.until(lambda: second.hello is not None)
            await asyncio.sleep(0.1)
            assert bench.health.stage == "fenced", "to be dialed is not to be admitted"
            link.tokens.send(Ping(1))
            await asyncio.sleep(0.1)
            assert bench.health.stage == "ready"
            second.stop()
        stages = [line["event"] for line in map(json.loads, bench.stream.getvalue().splitlines())]
        assert [stage for stage in stages if stage in ("alive", "ready", "fenced")] == [
            "alive",
            "ready",
            "fenced",
            "ready",
        ]

    on_stage(main)


def test_a_router_gets_no_mode_from_a_role_by_calling_it_a_canary() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, "decode")
        async with running(bench.worker(bench.transport())):
            router = await dial(bench.links.dialer("r"), "w")
            router.link.tokens.send(msgspec.structs.replace(submit(1, "prefill"), canary=True))
            await router.ended(1)
            assert [failed.code for failed in router.failed] == ["invalid_request"]
            router.stop()

    on_stage(main)
