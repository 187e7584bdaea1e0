"""When a rollout is looked at again, and what moves the clock of its deadline."""

from dataclasses import replace

import pytest

from control_plane.rollout import PoolTarget, Progress, RolloutPlan, RolloutSpec, RolloutState, step
from tests.worlds.rollout_world import NEVER_READY, POOLS, RolloutWorld, seen, updating

DEADLINE_S = 300.0


def halfway(now: float, **spec: object) -> RolloutPlan:
    """A step of a rollout whose new revision serves with one pod in each pool, and has not come nearer since 0 s."""
    asked = RolloutSpec("two", POOLS, 50, progress_deadline_s=DEADLINE_S, auto_rollback=False)
    aim = Progress("two:50%:not_required", "prefill=2,decode=6", 4, 0.0)
    state = RolloutState("one", {"one": 83, "two": 17}, progress=aim)
    observed = {"one": seen(prefill=2, decode=5), "two": seen(prefill=1, decode=1)}
    return step(state, replace(asked, **spec), observed, now)  # type: ignore[arg-type]


def stuck(seconds: float, **spec: object) -> RolloutWorld:
    """A world whose new revision has not become ready for so long, with the deadline at 300 s."""
    world = updating(NEVER_READY, **spec)
    world.settle(60)
    assert world.state.progress is not None
    world.now = world.state.progress.since + seconds
    world.apply(world.decide())
    assert world.state.failure is None
    return world


def rest(world: RolloutWorld, seconds: float) -> None:
    """Let time pass with only the state written, as by an operator that gets no further."""
    world.now += seconds
    world.apply(world.decide(), crash=1)


def has_failed(world: RolloutWorld) -> bool:
    return world.decide().state.failure is not None


def test_a_new_revision_that_serves_is_looked_at_long_before_its_deadline() -> None:
    """Else errors of the new revision reach clients for as long as a pod may take to start."""
    assert halfway(100).requeue_after_s == 10.0


@pytest.mark.parametrize(("now", "again"), [(295.0, 5.0), (299.5, 1.0), (300.0, 10.0), (310.0, 10.0)])
def test_a_rollout_is_looked_at_when_its_deadline_is_over_and_then_at_its_usual_pace(
    now: float, again: float
) -> None:
    assert halfway(now).requeue_after_s == again


def test_a_paused_rollout_has_no_deadline_to_look_at() -> None:
    spec = RolloutSpec("two", POOLS, paused=True)
    observed = {"one": seen(prefill=2, decode=6), "two": seen(prefill=0, decode=0, starting=1)}
    assert step(RolloutState("one", {"one": 100}), spec, observed, 0.0).requeue_after_s is None


def test_a_revision_that_does_not_serve_yet_has_no_health_to_look_at() -> None:
    observed = {"one": seen(prefill=2, decode=6), "two": seen(prefill=0, decode=0, starting=1)}
    assert step(RolloutState("one", {"one": 100}), RolloutSpec("two", POOLS), observed, 0.0).requeue_after_s == 1800.0


def test_without_automatic_rollback_a_late_rollout_is_told_of_and_goes_on() -> None:
    plan = halfway(DEADLINE_S)
    assert plan.state.failure is None
    assert plan.verdict.reason == "ProgressDeadlineExceeded"
    assert plan.verdict.stalled


@pytest.mark.parametrize(("now", "again"), [(0.0, 300.0), (299.5, 1.0), (300.0, None), (400.0, None)])
def test_a_service_that_never_starts_is_said_to_be_late_once_and_then_left_alone(
    now: float, again: float | None
) -> None:
    """Nothing more comes with time alone: an operator that looks each second only keeps the API server busy."""
    world = RolloutWorld(RolloutSpec(NEVER_READY, (PoolTarget("decode", 6),), progress_deadline_s=DEADLINE_S))
    world.apply(world.decide())
    world.now = now
    plan = world.decide()
    assert plan.requeue_after_s == again
    assert plan.verdict.stalled == (again is None)


def test_routers_are_waited_for_only_when_pods_are_to_go() -> None:
    """A revision that gets less traffic and keeps its pods is no reason to look again in a second."""
    world = updating(weight=10)
    world.apply(world.decide())
    world.now += 60
    plan = world.decide()
    assert plan.weights == {"one": 90, "two": 10}
    assert {pool: plan.replicas[pool, "one"] for pool in ("prefill", "decode")} == {"prefill": 2, "decode": 6}
    assert plan.requeue_after_s == 10.0


def test_a_revision_that_goes_back_is_looked_at_no_more_for_its_health() -> None:
    world = stuck(300 - 1)
    world.now += 1
    plan = world.decide()
    assert plan.verdict.reason == "RollingBack"
    assert plan.requeue_after_s == DEADLINE_S


def test_going_back_has_the_whole_deadline() -> None:
    """The way back starts at the deadline of the way there, and would be late at once."""
    world = stuck(300 - 1)
    world.now += 1
    world.apply(world.decide(), crash=1)
    assert world.state.progress is not None
    assert world.state.progress.since == world.now


def test_a_rollout_fails_at_its_deadline() -> None:
    world = stuck(300 - 1)
    assert not has_failed(world)
    world.now += 1
    assert has_failed(world)


def test_time_spent_asleep_is_not_held_against_a_rollout() -> None:
    """Else a service that is woken up is rolled back before its new revision could start a pod."""
    world = stuck(200)
    awake = world.spec
    world.scale(0, 0)
    world.scale(1, 0)
    rest(world, 90)
    world.spec = awake
    rest(world, 20)
    assert not has_failed(world)
    rest(world, DEADLINE_S)
    assert has_failed(world)


def test_time_spent_paused_is_not_held_against_a_rollout() -> None:
    world = stuck(200)
    world.spec = replace(world.spec, paused=True)
    rest(world, 5)
    rest(world, 1000)
    assert not has_failed(world)
    world.spec = replace(world.spec, paused=False)
    rest(world, 20)
    assert not has_failed(world)
    rest(world, DEADLINE_S)
    assert has_failed(world)


def test_another_weight_has_the_whole_deadline() -> None:
    """Who raises the weight of a late revision asks for more pods, and not for the way back some seconds later."""
    world = stuck(290, weight=10)
    world.spec = replace(world.spec, weight=50)
    rest(world, 5)
    world.now += 20
    assert not has_failed(world)
    rest(world, DEADLINE_S)
    assert has_failed(world)


def test_a_gate_that_passes_gives_the_whole_deadline() -> None:
    world = updating("two", gated=True)
    world.apply(world.decide())
    world.gates["two"] = "unknown"
    rest(world, 290)
    world.gates["two"] = "passed"
    rest(world, 5)
    assert world.state.progress is not None
    assert world.state.progress.since == world.now


def test_a_scaler_puts_off_no_deadline() -> None:
    world = stuck(290)
    world.scale(1, 8)
    rest(world, 5)
    world.now += 5
    assert has_failed(world)


@pytest.mark.parametrize("happens", ["scaled", "died"])
def test_what_is_complete_has_the_whole_deadline_when_something_has_to_change_again(happens: str) -> None:
    """Else a service that is scaled up a day later is said to be late before its first new pod could start."""
    world = RolloutWorld(RolloutSpec("one", POOLS, progress_deadline_s=DEADLINE_S))
    world.settle(200)
    world.now += 86_400
    if happens == "scaled":
        world.scale(1, 8)
    else:
        world.kill(0)
    for seconds, stalled in ((0, False), (DEADLINE_S - 1, False), (1, True)):
        rest(world, seconds)
        assert world.decide().verdict.stalled == (stalled and happens == "scaled")


def test_a_pod_that_comes_and_goes_puts_off_no_deadline() -> None:
    """A new revision whose pods crash after a while would be tried for ever."""
    spec = RolloutSpec("two", (PoolTarget("decode", 6),), progress_deadline_s=DEADLINE_S)
    state, since = RolloutState("one", {"one": 100}), []
    for turn in range(6):
        new = seen(decode=1) if turn % 2 else seen(decode=0, starting=1)
        plan = step(state, spec, {"one": seen(decode=6), "two": new}, 20.0 * turn)
        state = replace(plan.state, weights={"one": 100})
        assert state.progress is not None
        since.append(state.progress.since)
    assert since == [0.0, *5 * [20.0]]
