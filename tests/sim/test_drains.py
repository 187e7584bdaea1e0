"""Workers that leave in good order: nothing is lost or torn, nobody waits long, and they are gone when they said."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from router.dispatch.request_state import RequestState
from router.fleet.peer import Peer
from router.placement import Placement
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.faults.drawing import FaultProfile, draw_faults
from tandem.apps.simulation.faults.leave import Leave
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import Report, WorldSettings, simulate
from tandem.engine.simulated.model import SimulatedModel
from tandem.worker.drain_state import DrainResult
from tandem.worker.host import WorkerHost

SEEDS = range(3)
WORLD = WorldSettings(
    prefill=2,
    decode=3,
    model=SimulatedModel(blocks=600, token_s=0.0001, base_s=0.008),
    faults=FaultProfile(kills=0, corrupt_share=0.0, drains=4),
    traffic=TrafficProfile(requests=20, output_tokens=(100, 400), cancel_share=0.0),
)
PAUSE_MAX_S = 0.6
"""Some prompts of a busy prefill worker, which a moved stream may have to wait for."""


@cache
def report(seed: int) -> Report:
    return simulate(WORLD, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_is_lost_and_no_stream_breaks(seed: int) -> None:
    found = report(seed)
    assert sum(isinstance(fault, Leave) for fault in found.faults) == 4
    assert Counter(outcome.end for outcome in found.outcomes) == {"done": 20}
    assert max(outcome.longest_pause_s for outcome in found.outcomes) < PAUSE_MAX_S


def test_without_prefill_workers_it_is_no_different() -> None:
    for seed in range(2):
        found = simulate(replace(WORLD, prefill=0), seed)
        assert {outcome.end for outcome in found.outcomes} == {"done"}


def test_the_only_worker_can_leave_and_its_streams_go_on_in_the_next_life() -> None:
    for seed in range(2):
        found = simulate(replace(WORLD, prefill=0, decode=1), seed)
        assert {outcome.end for outcome in found.outcomes} <= {"done", "failed"}
        assert {outcome.error for outcome in found.outcomes} <= {"", "no_workers"}


def test_both_ways_of_asking_and_both_kinds_of_bounds_are_drawn() -> None:
    faults = [fault for seed in range(50) for fault in draw_faults(WORLD.faults, seed, ("p0", "d0", "d1"))]
    leaves = [fault for fault in faults if isinstance(fault, Leave)]
    assert {fault.by_signal for fault in leaves} == {True, False}
    assert min(fault.within_s for fault in leaves) < 0.5 < 4.0 < max(fault.within_s for fault in leaves)


def test_drains_move_nothing_else_that_a_seed_draws() -> None:
    without = draw_faults(replace(WORLD.faults, kills=2, others=5, drains=0), 7, ("p0", "d0"))
    with_drains = draw_faults(replace(WORLD.faults, kills=2, others=5, drains=3), 7, ("p0", "d0"))
    assert tuple(fault for fault in with_drains if not isinstance(fault, Leave)) == without


def test_streams_do_move_and_their_blocks_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str | None] = []
    move = RequestState.move

    def recording(
        request: RequestState, reason: str, placement: Placement, decode: Peer, prefill: Peer | None
    ) -> None:
        moved.append(placement.prefill)
        move(request, reason, placement, decode, prefill)

    monkeypatch.setattr(RequestState, "move", recording)
    assert simulate(WORLD, 2).trace == report(2).trace
    assert sum(name is not None and name.startswith("d") for name in moved) >= 2


def test_a_worker_that_does_not_keep_its_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dawdling(host: WorkerHost) -> DrainResult:
        await asyncio.sleep(30.0)
        return host.drain_state.farewell

    monkeypatch.setattr(WorkerHost, "drained", dawdling)
    with pytest.raises(Violation, match="s to leave within"):
        simulate(replace(WORLD, traffic=TrafficProfile(requests=5)), 0)
