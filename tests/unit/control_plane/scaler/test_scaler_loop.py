"""From what routers and cluster tell to the answer that KEDA gets."""

import asyncio
from dataclasses import dataclass, field, replace

import grpc.aio
import msgspec

from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.http_get import Endpoint
from control_plane.reports.poller import Poller
from control_plane.reports.service import PoolObserved, ServiceObserved, WorkerPod, samples, service_load
from control_plane.reports.wire import (
    RevisionCounts,
    RevisionsAnswer,
    RouterReport,
    ServiceCounts,
    WorkerLoad,
    WorkerReport,
)
from control_plane.scaler import MetricCache, ScalerSettings, ScalingLoop, serve
from control_plane.scaler.metric_cache import PoolName
from control_plane.scaler.state import ScalingState
from tandem.process.system import SystemClock
from tandem.spec.service import Spec
from tests.unit.control_plane.reports.test_reports_poller import serving
from tests.unit.control_plane.scaler.test_scaler_server import ExternalScalerStub, reference
from tests.worlds.autoscale_cases import NOON, scaled, service

DECODE = PoolName("llm", "llama", "decode")


def llama(wanted: int = 1, ready_s: float | None = 0.0, least: int = 1) -> ServiceObserved:
    """One prefill and one decode pod, ready so long ago, or still starting."""
    now = NOON if ready_s is None else NOON - ready_s
    pods = {
        pool: {f"llama-{pool}-v1-0": WorkerPod(now - 100, None if ready_s is None else now)} if wanted else {}
        for pool in ("prefill", "decode")
    }
    pools = {pool: PoolObserved(wanted, each) for pool, each in pods.items()}
    return ServiceObserved("llm", "llama", service(least), pools)


def report(running: int = 0, queued: int = 0, arrived: int = 0, step_s: float = 0.0) -> RouterReport:
    decode = WorkerLoad(running=running, kv_used=0.25, step_s=step_s)
    prefill = WorkerLoad(running=1 if queued else 0, queued_prompt_tokens=40, prefill_tokens_per_s=6000.0)
    workers = (
        WorkerReport("llama-decode-v1-0", "decode", load=decode),
        WorkerReport("llama-prefill-v1-0", "prefill", load=prefill),
        WorkerReport("somebody-else", "decode", load=WorkerLoad(running=99)),
    )
    held = (queued, 100 * queued, running, 40)
    counts = ServiceCounts("llm/llama", "llm", *held, arrived, 300 * arrived, 50 * arrived)
    revision = RevisionCounts("llm/llama", "llm", "v1", arrived, 0, 0)
    return RouterReport(workers, RevisionsAnswer("i", (revision,), (counts,)))


def test_cluster_and_routers_are_joined() -> None:
    books = ReportAggregate().round(("r0",), {"r0": report(running=20, queued=3, arrived=9)}, 0.0)
    load = service_load(llama(2, ready_s=None), books, NOON + 20)
    assert load.pools["decode"].wanted == 2
    assert load.pools["decode"].starting_s == (120.0,)
    assert load.pools["decode"].on_the_way == (120.0, 0.0)
    assert load.pools["decode"].kv_used == 0.25
    assert (load.queued_requests, load.outstanding_prompt_tokens) == (3, 340)
    assert (load.sequences, load.prefilling, load.decoding, load.coming) == (20, 1, 19, 4)
    assert (load.arrived_requests, load.arrived_prompt_tokens) == (9, 3000)
    assert (load.output_tokens, load.finished_requests) == (450, 9)


def test_what_only_workers_tell_of_keeps_nobody_awake() -> None:
    told = report(running=2)
    idle = RouterReport(told.workers, RevisionsAnswer("i", (), (ServiceCounts("llm/llama", "llm"),)))
    books = ReportAggregate().round(("r0",), {"r0": idle}, 0.0)
    assert not service_load(llama(), books, NOON).busy
    # While a router has not told, they may be its requests.
    books = ReportAggregate().round(("r0", "r1"), {"r0": idle}, 0.0)
    assert service_load(llama(), books, NOON).busy


def test_speeds_are_learned_from_warm_pods_and_starts_from_all() -> None:
    keeper, warm = ScalingState(), llama(ready_s=300.0)
    books = ReportAggregate()
    for look in range(20):
        books = books.round(("r0",), {"r0": report(10 + look, step_s=0.014 + 0.0005 * (10 + look))}, 2.0 * look)
        keeper.look(warm, books, NOON + 2 * look)
    speed = keeper.measured("llm", "llama")["decode"].speed
    assert speed.decode is not None
    assert round(speed.decode.sequences_within(0.04)) == 52
    assert speed.cold_start_s == 100.0
    cold = llama(ready_s=-30.0)
    keeper = ScalingState()
    for look in range(20):
        keeper.look(cold, books, NOON + 31 + look)
    measured = keeper.measured("llm", "llama")
    assert measured["decode"].speed.decode is None
    assert measured["prefill"].speed.prefill_token_s is None
    keeper.keep(set())
    assert keeper.measured("llm", "llama") == {}


def auto_fleet(prefills: int) -> tuple[ServiceObserved, RouterReport]:
    """Four workers of role auto, the first so many of which compute the prompts of two requests each that the others
    have been given, too."""
    names = [f"w-{number}" for number in range(4)]
    pods = {name: WorkerPod(NOON - 400, NOON - 300) for name in names}
    spec = Spec(pools=(scaled("all", "auto"),))
    each = [WorkerLoad(running=2 if number < prefills else 8, step_s=0.02) for number in range(4)]
    workers = tuple(
        WorkerReport(name, "auto", load=load, takes_prompts=number < prefills)
        for number, (name, load) in enumerate(zip(names, each, strict=True))
    )
    in_flight = 8 * (4 - prefills)
    counts = ServiceCounts("llm/llama", "llm", 0, 0, in_flight, 0, 1000, 3000, 50)
    told = RouterReport(workers, RevisionsAnswer("i", (), (counts,)))
    return ServiceObserved("llm", "llama", spec, {"all": PoolObserved(4, pods)}), told


def test_requests_that_auto_workers_compute_for_each_other_count_once() -> None:
    for prefills in range(4):
        observed, told = auto_fleet(prefills)
        load = service_load(observed, ReportAggregate().round(("r0",), {"r0": told}, 0.0), NOON)
        assert load.sequences == 8 * (4 - prefills)
        assert load.prefilling == 2 * prefills
        steps = samples(observed, ReportAggregate().round(("r0",), {"r0": told}, 0.0), NOON)["all"]
        assert [each.running > 0 for each in steps] == [number >= prefills for number in range(4)]


class LaterClock(SystemClock):
    """Its wall clock can be put forward."""

    later_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.later_s


@dataclass
class Cluster:
    """What the operator has observed, to be changed by the test."""

    services: list[ServiceObserved] = field(default_factory=list)


def bodies(told: RouterReport) -> dict[str, bytes]:
    workers = msgspec.json.encode({"object": "list", "data": told.workers})
    return {"/v1/workers": workers, "/v1/revisions": msgspec.json.encode(told.revisions)}


async def test_a_sleeping_service_is_woken_over_the_stream_and_put_to_sleep_again() -> None:
    clock, said, cluster = LaterClock(), bodies(report()), Cluster([llama(0, least=0)])
    board = MetricCache(clock)
    async with serving(said) as place:
        routers: dict[str, Endpoint] = {"r0": place}
        loop = ScalingLoop(Poller(lambda: routers, clock), lambda: cluster.services, board, clock, every_s=0.02)
        task = asyncio.create_task(loop.run())
        server = await serve(board, clock, ScalerSettings("127.0.0.1:0"))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                keda = ExternalScalerStub(channel)
                stream = keda.StreamIsActive(reference())
                assert (await asyncio.wait_for(stream.read(), 5)).result is False
                assert board.answer(DECODE).replicas == 0
                said |= bodies(report(queued=1, arrived=1))
                assert (await asyncio.wait_for(stream.read(), 5)).result is True
                assert board.answer(DECODE).replicas == 1
                assert "requests" in loop.looks["llm", "llama"].scaling.reason
                # The request is gone before anybody has scaled: nothing is taken back for a minute.
                said |= bodies(report(arrived=1))
                await asyncio.sleep(0.1)
                assert board.answer(DECODE).active
                cluster.services = [llama(1, least=0)]
                clock.later_s = 61.0
                assert (await asyncio.wait_for(stream.read(), 5)).result is False
                cluster.services = []
                async with asyncio.timeout(60.0):
                    while loop.looks:  # noqa: ASYNC110  (there is nothing to be told by)
                        await asyncio.sleep(0.01)
                assert (await stream.code()).name == "NOT_FOUND"
        finally:
            task.cancel()
            await server.close(0.2)


async def test_services_without_autoscaling_are_left_alone() -> None:
    clock = SystemClock()
    plain = llama()
    pools = tuple(msgspec.structs.replace(pool, autoscaling=None, replicas=2) for pool in plain.spec.pools)
    plain = replace(plain, spec=msgspec.structs.replace(plain.spec, pools=pools))
    loop = ScalingLoop(Poller(dict, clock), lambda: [plain], MetricCache(clock), clock)
    await loop.once()
    assert loop.looks == {}


def test_each_start_is_counted_once_however_often_it_is_looked_at() -> None:
    """A start that waited for a node is one of several, not all of them."""
    keeper, books = ScalingState(), ReportAggregate()
    pods = {
        name: WorkerPod(NOON - 1000, NOON - 1000 + took_s)
        for name, took_s in (("a", 400.0), ("b", 90.0), ("c", 80.0))
    }
    pools = {"decode": PoolObserved(3, pods), "prefill": PoolObserved(0, {})}
    observed = ServiceObserved("llm", "llama", service(1), pools)
    for look in range(10):
        keeper.look(observed, books, NOON + 2 * look)
    measured = keeper.measured("llm", "llama")["decode"]
    assert sorted(measured.starts_s) == [80.0, 90.0, 400.0]
    assert measured.speed.cold_start_s == 90.0
