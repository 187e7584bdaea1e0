"""Streams of a worker that leaves: the short ones finish, the long ones move a few at a time, and none is torn."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from router.dispatch.kv_migration import can_migrate_kv, holds_now, with_migrated_kv
from router.dispatch.migration import Leaving, Stream, at_once, moves
from router.dispatch.retry_state import RetryState
from router.placement import Placement, PlacementRequest
from router.placement.view import WorkerView
from router.settings import MigrationSettings, PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.messages import Cancel, Drain, Draining, Load
from tests.worlds.router_world import LAYOUT, ROOT, ScriptedWorker, World

SETTINGS = MigrationSettings(margin=1.25, at_once=4, every_s=0.1)
NO_RETRIES = RouterSettings(
    placement=PlacementSettings(prefer="local"), retry=RetrySettings(share=0.0, burst=0, resume_wait_s=5.0)
)


def test_only_what_would_end_too_late_moves_and_says_why() -> None:
    streams = [Stream(1, 90), Stream(2, 500), Stream(3, 10), Stream(4, 300)]
    found = moves(streams, 0, Leaving("d1", 0.01, 2.0), SETTINGS)
    assert list(found) == [2, 4]
    assert found[2] == "moved: d1 leaves in 2.0 s, and up to 500 tokens of 10.0 ms would take 6.2 s"


def test_the_margin_decides_about_what_would_end_just_in_time() -> None:
    assert not moves([Stream(1, 160)], 0, Leaving("d1", 0.01, 2.0), SETTINGS)
    assert moves([Stream(1, 161)], 0, Leaving("d1", 0.01, 2.0), SETTINGS)


@given(
    lengths=st.lists(st.integers(0, 10_000), max_size=300),
    moving=st.integers(0, 50),
    step_s=st.floats(1e-4, 1.0),
    left_s=st.floats(0.01, 600.0),
)
@example(lengths=[10_000] * 15, moving=0, step_s=1.0, left_s=1 / 3)
def test_never_more_than_a_few_move_at_once_and_all_have_moved_by_half_of_the_time(
    lengths: list[int], moving: int, step_s: float, left_s: float
) -> None:
    streams = [Stream(key, tokens) for key, tokens in enumerate(lengths)]
    found = moves(streams, moving, Leaving("d1", step_s, left_s), SETTINGS)
    late = sum(tokens * step_s * SETTINGS.margin > left_s for tokens in lengths)
    assert len(found) + moving <= max(moving, at_once(late, left_s, SETTINGS))
    looks = max(1.0, left_s / 2 / SETTINGS.every_s)
    assert at_once(late, left_s, SETTINGS) * looks >= late * (1 - 1e-12)  # 9 * 1.66… is 15 but for rounding
    assert len(found) == min(late, max(0, at_once(late, left_s, SETTINGS) - moving))
    shortest = min((lengths[key] for key in found), default=10_000)
    assert all(tokens <= shortest or key in found for key, tokens in enumerate(lengths))


def view(worker_id: str, pairing: int = 0, free: int = 100, waiting: int = 0) -> WorkerView:
    load = Load(1, waiting, 0, free, 0, 0, 0.01, 1000.0, 100.0, 0)
    return WorkerView(worker_id, 1, "decode", "m", "", pairing, ROOT.name(), LAYOUT, 1000, 4096, load=load)


def test_blocks_are_handed_over_where_both_exchange_kv_and_nothing_waits() -> None:
    asked = PlacementRequest("m", prompt_tokens=100, sequences=1, max_tokens=50)
    assert can_migrate_kv(view("d1"), view("d2"), asked)
    assert not can_migrate_kv(view("d1", pairing=1), view("d2"), asked)
    assert not can_migrate_kv(view("d1", waiting=1), view("d2"), asked)
    assert not can_migrate_kv(view("d1"), view("d2"), structs.replace(asked, local_only=True))
    assert holds_now(view("d2", free=9), asked)
    assert not holds_now(view("d2", free=8), asked)
    found = Placement("local", "d2", None, 100, 0, (), ("because",))
    moved = with_migrated_kv(found, view("d1"), asked)
    assert (moved.mode, moved.decode, moved.prefill) == ("disaggregated", "d2", "d1")
    assert (moved.prefill_tokens, moved.cached_tokens) == (4, 96)
    assert moved.reasons == ("because", "its blocks come from d1, which leaves")


def test_moves_and_leaving_workers_use_up_no_attempt() -> None:
    trials = RetryState(RetrySettings(attempts_max=2, fruitless_attempts_max=2))
    for _ in range(10):
        trials.begin()
        assert trials.ended("draining", "d1 is leaving", fruitful=False) is None
        trials.check()
    trials.begin()
    assert trials.ended("engine_failed", "oops", fruitful=False) is None
    trials.begin()
    error = trials.ended("engine_failed", "oops", fruitful=False)
    assert isinstance(error, TandemError)


def test_a_move_is_worth_one_attempt_and_no_more() -> None:
    """A request that fails everywhere is not tried more often for having been moved once."""
    trials, ends = RetryState(RetrySettings(attempts_max=3, fruitless_attempts_max=100)), []
    trials.begin()
    trials.moved()
    for _ in range(3):
        trials.begin()
        ends.append(trials.ended("engine_failed", "oops", fruitful=True))
        trials.check()
    assert ends[:2] == [None, None]
    assert isinstance(ends[2], TandemError)


def scenario(body: Callable[[World], Awaitable[None]], workers: str, settings: RouterSettings = NO_RETRIES) -> None:
    """Run `body` over workers that decode, with no retry to spend."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings)
        for worker_id in workers.split():
            world.worker(worker_id, "unified")
        await world.start()
        await body(world)
        await world.stop()

    run(main, limit_s=3000.0)


def leaving(worker: ScriptedWorker, within_s: float) -> None:
    """What a worker does when it is asked to leave."""
    worker.draining = True
    worker.fail_with = ("draining", f"{worker.worker_id} is leaving")
    assert worker.link is not None
    worker.link.tokens.send(Draining(within_s))


def busy_and_idle(world: World) -> tuple[ScriptedWorker, ScriptedWorker]:
    """The worker that generates, and the other."""
    one, other = world.workers["u1"], world.workers["u2"]
    return (one, other) if one.jobs else (other, one)


def test_a_long_stream_moves_and_a_short_one_finishes_where_it_is() -> None:
    async def body(world: World) -> None:
        long = world.ask(max_tokens=400)
        await asyncio.sleep(0.3)
        busy, idle = busy_and_idle(world)
        idle.draining = True  # not announced: it only shows where the next one is placed
        short = world.ask(max_tokens=40)
        await asyncio.sleep(0.2)
        leaving(busy, 1.0)
        await asyncio.wait_for(long.ended.wait(), 20)
        await asyncio.wait_for(short.ended.wait(), 20)
        long.check_whole()
        short.check_whole()
        moved = [submit for submit in idle.submits if submit.branches[0].forced]
        assert [submit.request_id for submit in moved] == [long.generation.request_id]
        assert busy.commands.count(Cancel(1)) == 1
        attempts = [span for span in world.recorder.kept["req-1"] if span.name == "attempt"]
        assert [span.attributes["outcome"] for span in attempts] == ["moved", "done"]
        assert "would take" in str(attempts[0].attributes["notes"])

    scenario(body, "u1 u2")


@pytest.mark.parametrize(("step_s", "moves"), [(0.01, 0), (0.05, 1)])
def test_a_stream_moves_by_what_steps_take_as_its_worker_has_told(step_s: float, moves: int) -> None:
    """Forty tokens in a second: in time where steps are as quick as expected, not where they are as slow as told."""

    async def body(world: World) -> None:
        client = world.ask(max_tokens=45)
        await asyncio.sleep(0.1)
        busy, idle = busy_and_idle(world)
        peer = world.fleet.peer(busy.worker_id)
        assert peer is not None
        peer.view.loaded(Load(1, 0, 0, 900, 0, 0, step_s, 1000.0, 100.0, 0), world.clock.now(), 0.0)
        leaving(busy, 1.0)
        await asyncio.wait_for(client.ended.wait(), 20)
        client.check_whole()
        assert len(idle.submits) == moves

    scenario(body, "u1 u2")


@pytest.mark.parametrize(("share", "moves"), [(0.9, 0), (1.1, 1), (1.9, 1)])
def test_a_stream_moves_by_what_steps_are_expected_to_take_where_its_worker_has_told_nothing_yet(
    share: float, moves: int
) -> None:
    """The share of the time that is left which its tokens would take, with the margin."""

    async def body(world: World) -> None:
        client = world.ask(max_tokens=400)
        await asyncio.sleep(0.1)
        busy, idle = busy_and_idle(world)
        peer = world.fleet.peer(busy.worker_id)
        assert peer is not None
        assert peer.view.load is None
        step_s = world.tools.costs.step_ms(busy.worker_id, peer.view.sequences) / 1e3
        left = 400 - len(client.tokens[0])
        busy.step_s = step_s / 4
        leaving(busy, left * step_s * NO_RETRIES.migration.margin / share)
        await asyncio.wait_for(client.ended.wait(), 60)
        client.check_whole()
        assert len(idle.submits) == moves

    scenario(body, "u1 u2")


def test_a_worker_that_leaves_earlier_than_it_said_is_looked_at_by_that_alone() -> None:
    """The trace of a stream that moved says how long its worker was to stay, and the moves are a few at a time."""

    async def body(world: World) -> None:
        world.workers["u2"].draining = True
        clients = [world.ask(max_tokens=600) for _ in range(40)]
        await asyncio.sleep(0.3)
        busy, _ = busy_and_idle(world)
        leaving(busy, 6.0)
        await asyncio.sleep(0.05)
        told_at = world.clock.now()
        leaving(busy, 4.0)
        for client in clients:
            await asyncio.wait_for(client.ended.wait(), 60)
            client.check_whole()
        spans = [span for kept in world.recorder.kept.values() for span in kept if span.name == "attempt"]
        moved = [span for span in spans if span.attributes["outcome"] == "moved"]
        to_wall = world.clock.wall() - world.clock.now()
        later = [span for span in moved if span.end_s - to_wall > told_at + 0.02]
        assert len(later) > 4
        for span in later:
            (left_s,) = re.findall(r"leaves in ([\d.]+) s", str(span.attributes["notes"]))
            assert span.end_s - to_wall + float(left_s) == pytest.approx(told_at + 4.0, abs=0.1)

    scenario(body, "u1 u2")


def test_without_another_worker_a_stream_stays_and_goes_on_in_the_next_incarnation() -> None:
    async def body(world: World) -> None:
        client = world.ask(max_tokens=400)
        await asyncio.sleep(0.5)
        worker = world.workers["u1"]
        leaving(worker, 1.0)
        await asyncio.sleep(0.9)
        assert len(worker.submits) == 1
        assert len(client.tokens[0]) > 100
        worker.die()
        await asyncio.sleep(1.0)
        worker.fail_with, worker.draining = None, False
        await worker.revive()
        await asyncio.wait_for(client.ended.wait(), 30)
        client.check_whole()

    scenario(body, "u1")


def test_when_nobody_comes_the_stream_ends_with_a_typed_error() -> None:
    async def body(world: World) -> None:
        client = world.ask(max_tokens=400)
        await asyncio.sleep(0.5)
        worker = world.workers["u1"]
        leaving(worker, 1.0)
        worker.die()
        await asyncio.wait_for(client.ended.wait(), 30)
        client.check_prefix()
        assert client.error is not None
        assert client.error.code == "no_workers"

    scenario(body, "u1")


def test_many_streams_move_a_few_at_a_time_and_all_arrive_whole() -> None:
    async def body(world: World) -> None:
        world.workers["u2"].draining = True
        clients = [world.ask(max_tokens=600) for _ in range(40)]
        await asyncio.sleep(0.3)
        busy, idle = world.workers["u1"], world.workers["u2"]
        if not busy.jobs:
            busy, idle = idle, busy
        there = len(idle.submits)
        begun = len(busy.jobs)
        leaving(busy, 4.0)
        await asyncio.sleep(0.06)
        assert len(idle.submits) - there <= 4
        await asyncio.sleep(3.0)
        assert len(idle.submits) - there == begun
        for client in clients:
            await asyncio.wait_for(client.ended.wait(), 60)
            client.check_whole()

    scenario(body, "u1 u2")


def test_the_blocks_come_from_the_worker_that_leaves() -> None:
    settings = replace(NO_RETRIES, placement=PlacementSettings(prefer="auto"))

    async def body(world: World) -> None:
        client = world.ask(max_tokens=400)
        await asyncio.sleep(0.3)
        busy, idle = busy_and_idle(world)
        busy.draining = True
        assert busy.link is not None
        busy.link.tokens.send(Draining(1.0))
        await asyncio.wait_for(client.ended.wait(), 30)
        client.check_whole()
        assert [submit.mode for submit in busy.submits] == ["local", "prefill"]
        assert [submit.mode for submit in idle.submits] == ["decode"]
        remote = idle.submits[0].remote
        assert remote is not None
        assert (remote.worker_id, remote.epoch) == (busy.worker_id, busy.epoch)

    scenario(body, "u1 u2", settings)


def test_no_blocks_are_asked_of_a_worker_that_leaves_and_lets_others_wait() -> None:
    """A move that stands in line there has not come through when the worker goes."""
    settings = replace(NO_RETRIES, placement=PlacementSettings(prefer="auto"))

    async def body(world: World) -> None:
        client = world.ask(max_tokens=400)
        await asyncio.sleep(0.3)
        busy, idle = busy_and_idle(world)
        peer = world.fleet.peer(busy.worker_id)
        assert peer is not None
        peer.view.loaded(Load(1, 1, 0, 900, 0, 0, 0.01, 1000.0, 100.0, 0), world.clock.now(), 0.0)
        busy.draining = True
        assert busy.link is not None
        busy.link.tokens.send(Draining(1.0))
        await asyncio.wait_for(client.ended.wait(), 30)
        client.check_whole()
        assert [submit.mode for submit in busy.submits] == ["local"]
        assert [submit.mode for submit in idle.submits] == ["local"]

    scenario(body, "u1 u2", settings)


def test_the_router_passes_a_drain_on_once_per_link_and_bound() -> None:
    async def body(world: World) -> None:
        def asked() -> list[float]:
            return [command.within_s for command in world.workers["u1"].commands if isinstance(command, Drain)]

        world.fleet.set_drains({"u1": 20.0})
        world.fleet.set_drains({"u1": 20.0, "u9": 5.0})
        await asyncio.sleep(0.1)
        assert asked() == [20.0]
        world.fleet.set_drains({"u1": 3.0})
        await asyncio.sleep(0.1)
        assert asked() == [20.0, 3.0]
        world.workers["u1"].die()
        await world.workers["u1"].revive()
        await asyncio.sleep(3.0)
        assert asked() == [20.0, 3.0, 3.0]
        assert not world.workers["u2"].commands

    scenario(body, "u1 u2")
