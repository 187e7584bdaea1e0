"""A fleet that comes back together: how long placing waits, and where what waited goes."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.heartbeat_timeout import timed_out_workers
from router.fleet.reconnect_holdoff import ReconnectTracker
from router.placement.view import WorkerView
from router.settings import FleetSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tests.worlds.router_world import LAYOUT, World

WITHIN_S = 1.0
EVENTS = st.lists(
    st.tuples(st.sampled_from(("usable", "lost", "gone", "drain")), st.integers(0, 7), st.floats(0.0, 0.7)),
    max_size=60,
)


def view(number: int) -> WorkerView:
    """Workers with even numbers generate."""
    role = "prefill" if number % 2 else "decode"
    return WorkerView(str(number), 1, role, "demo", "r1", 0, b"root", LAYOUT, 100, 4096)


def fleet(workers: int) -> ReconnectTracker:
    """So many workers that generate, all there."""
    reconnect_holdoff = ReconnectTracker(WITHIN_S)
    for number in range(workers):
        reconnect_holdoff.usable(view(2 * number), 0.0)
    return reconnect_holdoff


def lose(reconnect_holdoff: ReconnectTracker, workers: range, now: float) -> None:
    reconnect_holdoff.lost([view(2 * number) for number in workers], now)


def told(reconnect_holdoff: ReconnectTracker, what: str, worker: WorkerView, now: float) -> None:
    match what:
        case "usable":
            worker.draining = False
            reconnect_holdoff.usable(worker, now)
        case "drain":
            worker.draining = True
        case "lost":
            reconnect_holdoff.lost([worker], now)
        case _:
            reconnect_holdoff.gone(worker)


@given(EVENTS, st.floats(0.0, 2.0))
def test_placing_waits_for_a_bounded_time_after_the_last_event_and_until_just_when_it_said(
    events: list[tuple[str, int, float]], later_s: float
) -> None:
    reconnect_holdoff, views, now = ReconnectTracker(WITHIN_S), [view(number) for number in range(8)], 0.0
    for what, number, after_s in events:
        now += after_s
        told(reconnect_holdoff, what, views[number], now)
    found = reconnect_holdoff.look("demo", now)
    assert reconnect_holdoff.look("demo", now + WITHIN_S + 1e-6) is None, "nobody waits longer than that"
    if found is not None:
        assert now < found.until <= now + WITHIN_S + 1e-9


@given(EVENTS)
def test_nothing_but_time_or_a_worker_ends_the_wait(events: list[tuple[str, int, float]]) -> None:
    reconnect_holdoff, views, now = ReconnectTracker(WITHIN_S), [view(number) for number in range(8)], 0.0
    for what, number, after_s in events:
        now += after_s
        told(reconnect_holdoff, what, views[number], now)
        found = reconnect_holdoff.look("demo", now)
        if found is not None:
            again = reconnect_holdoff.look("demo", (now + found.until) / 2)
            assert again is not None
            assert again.until == found.until
            now = found.until
            assert reconnect_holdoff.look("demo", now) is None


@given(st.lists(st.integers(0, 7), max_size=20))
def test_one_worker_at_a_time_is_never_waited_for(numbers: list[int]) -> None:
    reconnect_holdoff = fleet(8)
    for turn, number in enumerate(numbers):
        now = turn * 2 * WITHIN_S
        lose(reconnect_holdoff, range(number, number + 1), now)
        assert reconnect_holdoff.look("demo", now) is None
        reconnect_holdoff.usable(view(2 * number), now + WITHIN_S / 2)
        assert reconnect_holdoff.look("demo", now + WITHIN_S / 2) is None


@pytest.mark.parametrize("away_s", [0.0, 0.5, 3600.0])
def test_after_an_outage_of_any_length_placing_waits_for_most_of_the_fleet(away_s: float) -> None:
    reconnect_holdoff = fleet(8)
    lose(reconnect_holdoff, range(8), 1.0)
    assert reconnect_holdoff.look("demo", 1.0) is None, "there is nobody to wait with"
    back_at = 1.0 + away_s
    for number in range(3):
        reconnect_holdoff.usable(view(2 * number), back_at)
        assert reconnect_holdoff.look("demo", back_at) is not None
    reconnect_holdoff.usable(view(6), back_at)
    assert reconnect_holdoff.look("demo", back_at) is None


def test_who_has_left_or_is_wanted_no_longer_is_not_waited_for() -> None:
    reconnect_holdoff = fleet(5)
    for number in range(4):
        leaving = view(2 * number)
        leaving.draining = number % 2 == 0
        reconnect_holdoff.lost([leaving], 1.0)
    assert reconnect_holdoff.look("demo", 1.0) is not None
    reconnect_holdoff.gone(view(2))
    assert reconnect_holdoff.look("demo", 1.0) is None


def test_a_fleet_with_decode_but_without_prefill_is_waited_for_too() -> None:
    reconnect_holdoff = ReconnectTracker(WITHIN_S)
    for number in range(8):
        reconnect_holdoff.usable(view(number), 0.0)
    reconnect_holdoff.lost([view(number) for number in range(8)], 1.0)
    for number in (0, 2, 4):
        reconnect_holdoff.usable(view(number), 2.0)
    found = reconnect_holdoff.look("demo", 2.0)
    assert found is not None
    assert "5 workers were lost together and 3 are here" in found.reason
    reconnect_holdoff.usable(view(1), 2.5)
    assert reconnect_holdoff.look("demo", 2.5) is None


class Worker:
    def __init__(self, worker_id: str, heard_at: float) -> None:
        self.worker_id, self.heard_at = worker_id, heard_at


def test_a_beat_judges_the_silent_unless_it_is_late_itself_and_all_when_it_is_very_late() -> None:
    deadlines = Deadlines()
    workers = [Worker("w1", 10.0), Worker("w2", 13.0)]
    assert set(timed_out_workers(workers, 13.1, 13.0, deadlines).reasons) == {"w1"}
    assert timed_out_workers(workers, 13.1, 13.0, deadlines).fenced
    assert not timed_out_workers(workers, 13.1 + deadlines.heartbeat_every_s, 13.0, deadlines).reasons
    stopped = timed_out_workers(workers, 20.0, 13.0, deadlines)
    assert set(stopped.reasons) == {"w1", "w2"}
    assert not stopped.fenced


def spread(settings: RouterSettings) -> Counter[str]:
    """All links break while 64 requests run; one worker comes back first, the others 0.1 s after its link stands.
    Where does everything go?"""

    async def main(loop: VirtualLoop) -> Counter[str]:
        world = World(loop, settings)
        first, *others = [world.worker(f"d{number}", "decode") for number in range(8)]
        await world.start()
        clients = [world.ask(tokens=100, max_tokens=100) for _ in range(64)]
        await asyncio.sleep(0.1)
        for worker in (first, *others):
            worker.submits.clear()
            worker.die()
        await asyncio.sleep(10.0)
        for worker in (first, *others):
            worker.submits.clear()
        await first.revive()
        while world.fleet.peer("d0") is None:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for worker in others:
            await worker.revive()
        for client in clients:
            await asyncio.wait_for(client.ended.wait(), 100.0)
            client.check_whole()
        await world.stop()
        return Counter({worker.worker_id: len(worker.submits) for worker in (first, *others)})

    return run(main, limit_s=1000.0)


def test_what_waited_for_a_fleet_is_spread_over_it_and_not_heaped_on_the_first_to_return() -> None:
    impatient = spread(RouterSettings(fleet=FleetSettings(regroup_s=0.0)))
    assert max(impatient.values()) > 32, "without waiting most of it lands on one worker"
    patient = spread(RouterSettings())
    assert max(patient.values()) <= 24
    assert sum(patient.values()) == 64, "nothing is tried twice"
