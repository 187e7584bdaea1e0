"""Every kind of fault does what it says, leaves no promise broken, and is drawn."""

import asyncio
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from dataclasses import is_dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from tandem.apps.simulation import faults as package
from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.demand import demand_of
from tandem.apps.simulation.faults.drawing import KINDS, FaultProfile, draw_faults
from tandem.apps.simulation.judge import Record, objection
from tandem.apps.simulation.loop import Process, VirtualLoop, run
from tandem.apps.simulation.network import NetworkProfile, SimNetwork
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.seeds import Seed, read_kept
from tandem.apps.simulation.traffic import TrafficProfile, draw_traffic
from tandem.apps.simulation.truth import build_oracle
from tandem.apps.simulation.world import Report, WorldSettings, simulate
from tandem.engine.simulated.model import SimulatedModel

KEPT = read_kept(Path(__file__).parent / "kept_seeds.txt")
WORLD = WorldSettings(traffic=TrafficProfile(requests=30))


@pytest.mark.parametrize("seed", KEPT, ids=str)
def test_what_failed_once_does_not_fail_again(seed: Seed) -> None:
    base = WorldSettings(traffic=TrafficProfile(requests=60))
    simulate(varied(base, seed.number, plain=seed.plain), seed.number)


def with_faults(kind: str, seed: int) -> Report:
    faults = FaultProfile(kills=0, corrupt_share=0.0, others=4, kinds=(kind,))
    return simulate(replace(WORLD, faults=faults, skew_s=20.0), seed)


@pytest.mark.parametrize("kind", KINDS)
def test_no_promise_breaks_under_many_faults_of_one_kind(kind: str) -> None:
    for seed in range(2):
        report = with_faults(kind, seed)
        assert len(report.faults) >= 4
        ends = Counter(outcome.end for outcome in report.outcomes)
        assert ends["done"] + ends["cancelled"] + ends["disconnected"] == 30
        assert ends["done"] >= 15


def test_a_restarted_router_takes_its_clients_with_it() -> None:
    lost = [outcome for seed in range(6) for outcome in with_faults("router", seed).outcomes]
    assert any(outcome.end == "disconnected" for outcome in lost)


def test_blocks_are_changed_in_memory_and_on_their_way() -> None:
    assert sum(with_faults("damage", seed).corrupted for seed in range(4)) > 0
    assert sum(with_faults("corrupt", seed).corrupted for seed in range(4)) > 0


def kinds_there_are() -> set[type]:
    """Every fault that has a file."""
    modules = [import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)]
    found = (each for module in modules for each in vars(module).values() if isinstance(each, type))
    return {each for each in found if is_dataclass(each) and hasattr(each, "apply")}


def test_every_kind_is_drawn_and_so_is_every_kind_of_world() -> None:
    worlds = [varied(WORLD, seed) for seed in range(200)]
    faults = [fault for seed, world in enumerate(worlds) for fault in draw_faults(world.faults, seed, ("p0", "d0"))]
    assert {type(fault) for fault in faults} == kinds_there_are()
    assert {world.model.blocks for world in worlds} == {72, 160}
    assert {world.skew_s > 0 for world in worlds} == {True, False}
    assert {world.router.admission.requests_max < 100 for world in worlds} == {True, False}
    assert {world.traffic.deadline_share > 0 for world in worlds} == {True, False}
    assert varied(WORLD, 7) == worlds[7]


def test_a_frozen_process_misses_its_time_and_makes_up_for_it() -> None:
    happened: list[tuple[str, float]] = []

    async def tick(name: str, loop: VirtualLoop) -> None:
        for _ in range(4):
            await asyncio.sleep(1.0)
            happened.append((name, loop.time()))

    async def main(loop: VirtualLoop) -> None:
        process = Process("frozen")
        tasks = [
            loop.create_task(tick("frozen", loop), context=process.context),
            loop.create_task(tick("free", loop)),
        ]
        await asyncio.sleep(1.5)
        loop.freeze(process)
        await asyncio.sleep(2.25)
        loop.thaw(process)
        await asyncio.wait(tasks)

    run(main)
    assert [at for name, at in happened if name == "free"] == [1.0, 2.0, 3.0, 4.0]
    assert [at for name, at in happened if name == "frozen"] == [1.0, 3.75, 4.75, 5.75]


def test_the_network_blocks_slows_and_breaks_one_direction_only() -> None:
    network = SimNetwork(NetworkProfile(link_delay_s=(0.001, 0.001), pull_latency_s=(0.001, 0.001)), 0)
    broken: list[tuple[str, str]] = []
    network.broken = lambda source, target: broken.append((source, target))
    network.block(("router", "d0"))
    assert network.delay_s("router-2", "d0") is None
    assert network.delay_s("d0", "router-2") == 0.001
    network.unblock(("router", "d0"))
    network.slow(("router", "d0"), 50.0)
    assert network.delay_s("router-2", "d0") == pytest.approx(0.05)
    network.quicken(("router", "d0"), 50.0)
    network.break_at(("d0", "router"), 2)
    assert [network.delay_s("d0", "router-3") for _ in range(3)] == [0.001] * 3
    assert broken == [("d0", "router-3")]
    network.block(("p0", "d0"))
    assert not network.carries("p0", "d0")
    assert not network.carries("d0", "p0")


def test_frames_come_twice_and_messages_of_pulls_get_lost() -> None:
    network = SimNetwork(NetworkProfile(), 0)
    network.repeat(("router", "d0"), 2)
    assert [network.repeats("router-1", "d0") for _ in range(3)] == [True, True, False]
    assert not network.repeats("d0", "router-1")
    network.lose("p0", "acknowledge", 1)
    assert not network.loses("p0", "d0", "ask")
    assert [network.loses("p0", "d0", "acknowledge") for _ in range(2)] == [True, False]
    assert (network.repeated, network.lost) == (2, {"acknowledge": 1})
    network.repeat(("router", "d0"), 2)
    network.lose("p0", "ask", 9)
    network.forgive()
    assert not network.repeats("router-1", "d0")
    assert not network.loses("p0", "d0", "ask")


@pytest.mark.parametrize("blocks", [60, 72])
def test_small_pools_do_not_wait_for_each_other_in_a_circle(blocks: int) -> None:
    """Pools that hold one long prompt, and many long prompts: nobody stands still for longer than elsewhere."""
    base = WorldSettings(traffic=TrafficProfile(requests=60))
    for seed in (1293, 3025, 6016):
        world = varied(base, seed)
        traffic = replace(world.traffic, long_prompt_share=0.3, slow_share=0.0, shared_prefix_tokens=48)
        simulate(replace(world, model=replace(world.model, blocks=blocks), traffic=traffic), seed)


def test_slow_clients_are_cut_off_and_disturb_nobody() -> None:
    faults = FaultProfile(kills=0, corrupt_share=0.0)
    traffic = TrafficProfile(requests=40, slow_share=0.5)
    outcomes = [
        outcome
        for seed in range(4)
        for outcome in simulate(replace(WORLD, faults=faults, traffic=traffic), seed).outcomes
    ]
    ends = Counter(outcome.error or outcome.end for outcome in outcomes)
    assert ends["slow_client"] >= 5
    assert ends["done"] >= 80
    assert set(ends) <= {"done", "cancelled", "slow_client"}


@pytest.mark.parametrize(
    ("end", "error", "timeout_s", "ended_s", "right"),
    [
        ("done", "", None, 1.0, True),
        ("failed", "deadline_exceeded", 0.5, 0.5, True),
        ("failed", "deadline_exceeded", 0.5, 0.2, False),
        ("failed", "deadline_exceeded", None, 40.0, False),
        ("failed", "queue_full", None, 0.0, False),
        ("failed", "worker_lost", None, 5.0, False),
        ("failed", "internal", None, 1.0, False),
        ("cancelled", "", None, 1.0, False),
    ],
)
def test_an_end_has_to_be_justified(
    end: str, error: str, timeout_s: float | None, ended_s: float, right: bool
) -> None:
    request = replace(draw_traffic(TrafficProfile(requests=1, cancel_share=0.0), 0)[0], timeout_s=timeout_s)
    outcome = Outcome(request.request_id, end, error, ended_s=ended_s)
    assert (objection(request, outcome, WORLD.router, Record([], [], [], 8.0)) is None) == right


def test_an_answer_must_not_stand_still_for_longer_than_a_fault_takes_to_be_noticed() -> None:
    request = draw_traffic(TrafficProfile(requests=1), 0)[0]
    outcome = Outcome(request.request_id, "done", longest_pause_s=9.0, ended_s=12.0)
    assert objection(request, outcome, WORLD.router, Record([], [], [], 8.0)) is not None
    assert objection(request, outcome, WORLD.router, Record([], [], [], 18.0)) is None
    assert objection(request, outcome, WORLD.router, Record([], [(0.0, 2.0)], [], 8.0)) is None
    assert objection(request, outcome, WORLD.router, Record([], [(20.0, 22.0)], [], 8.0)) is not None


def test_waiting_for_ones_turn_is_no_standing_still() -> None:
    request = draw_traffic(TrafficProfile(requests=1), 0)[0]
    outcome = Outcome(request.request_id, "done", longest_pause_s=9.0, ended_s=12.0)
    busy, elsewhere = (3.0, 8.0, 1.5), (12.5, 20.0, 1.5)
    assert objection(request, outcome, WORLD.router, Record([], [], [], 8.0, [busy])) is None
    assert objection(request, outcome, WORLD.router, Record([], [], [], 8.0, [elsewhere])) is not None


def test_what_a_request_needs_at_least_grows_with_its_share_of_the_pools() -> None:
    request = replace(draw_traffic(TrafficProfile(requests=1), 0)[0], prompt=bytes(4 * 512), n=1)
    outcome = Outcome(request.request_id, "done", asked_s=1.0, ended_s=2.0, tokens=48)
    small, large = (SimulatedModel(blocks=blocks, base_s=0.01, token_s=1e-4) for blocks in (70, 7000))
    assert demand_of(request, outcome, small, 2) == (1.0, 3.0, pytest.approx((0.0512 + 0.48) * 35 / 70 / 2))
    assert demand_of(request, outcome, large, 2)[2] == pytest.approx(demand_of(request, outcome, small, 2)[2] / 100)


def test_an_outage_of_everything_that_decodes_justifies_a_lost_request() -> None:
    request = draw_traffic(TrafficProfile(requests=1), 0)[0]
    outcome = Outcome(request.request_id, "failed", "no_workers", asked_s=1.0, ended_s=12.0)
    assert objection(request, outcome, WORLD.router, Record([(0.5, 12.5)], [], [], 8.0)) is None
    assert objection(request, outcome, WORLD.router, Record([(20.0, 30.0)], [], [], 8.0)) is not None


def test_the_truth_ends_at_the_first_stop_string() -> None:
    profile = TrafficProfile(requests=40, stop_share=1.0, output_tokens=(30, 48), branches_share=0.0)
    requests = draw_traffic(profile, 3)
    truths = build_oracle(WORLD.model, requests).truths
    ended = 0
    for request in requests:
        (truth,) = truths[request.request_id]
        if truth.finish == "stop" and len(truth.tokens) < request.stopping.max_tokens:
            ended += 1
        assert request.stopping.min_tokens > 1 or not any(stop in truth.text for stop in request.stopping.stop)
    assert ended >= 10


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_with_every_kind_of_fault_repeats_itself_in_another_process(hash_seed: str) -> None:
    program = (
        "from tandem.apps.simulation.scenario import varied\n"
        "from tandem.apps.simulation.traffic import TrafficProfile\n"
        "from tandem.apps.simulation.world import WorldSettings, simulate\n"
        "base = WorldSettings(traffic=TrafficProfile(requests=30))\n"
        "for seed in (6, 8, 23):\n"
        "    report = simulate(varied(base, seed), seed)\n"
        "    print(report.trace, report.rounds)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    here = [simulate(varied(WORLD, seed), seed) for seed in (6, 8, 23)]
    assert done.stdout.split() == [part for report in here for part in (report.trace, str(report.rounds))]
