"""Whole rollouts by folding the step, with pods that are late, die, and operators that crash between two writes."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_plane.rollout import PoolTarget, RolloutPlan, RolloutSpec
from tests.worlds.rollout_world import GOOD, NEVER_READY, REFUSED, SLOW, WRONG, RolloutWorld

Event = tuple[str, int, int]
REVISIONS = (*GOOD, NEVER_READY, WRONG, REFUSED, SLOW)
DEADLINE_S = 300.0
ENOUGH_S = 6000.0


@st.composite
def pool_goals(draw: st.DrawFn) -> tuple[PoolTarget, ...]:
    names = draw(st.sampled_from([("decode", "prefill"), ("unified",), ("a", "b", "c")]))
    sizes, few = st.integers(1, 9), st.integers(0, 2)
    return tuple(PoolTarget(name, draw(sizes), draw(few), draw(few)) for name in names)


@st.composite
def specs(draw: st.DrawFn) -> RolloutSpec:
    pools = draw(pool_goals())
    return RolloutSpec("one", pools, progress_deadline_s=DEADLINE_S, gated=draw(st.booleans()))


EVENTS: dict[str, Callable[[RolloutWorld, int, int], None]] = {
    "edit": lambda world, a, b: setattr(world, "spec", replace(world.spec, revision=REVISIONS[a % len(REVISIONS)])),
    "weight": lambda world, a, b: setattr(world, "spec", replace(world.spec, weight=a % 101)),
    "pause": lambda world, a, b: setattr(world, "spec", replace(world.spec, paused=bool(a % 2))),
    "scale": lambda world, a, b: world.scale(a, b % 10),
    "kill": lambda world, a, b: world.kill(a),
    "verify": lambda world, a, b: world.verify(),
    "wait": lambda world, a, b: setattr(world, "now", world.now + a % 120),
}
PLAIN = ("edit", "weight", "pause", "kill", "verify", "wait", "wait", "wait")


def events(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Event]]:
    numbers = st.integers(0, 1000)
    return st.lists(st.tuples(st.sampled_from(kinds), numbers, numbers), max_size=25)


def running(spec: RolloutSpec) -> RolloutWorld:
    """A world whose first revision serves alone."""
    world = RolloutWorld(spec)
    world.settle(200)
    assert world.state.stable == "one"
    assert world.last is not None
    assert world.last.verdict.done
    return world


def apply_safely(world: RolloutWorld, plan: RolloutPlan, crash: int | None) -> None:
    """Apply, and check that the step itself has taken nothing away that was needed."""
    goals = world.goals()
    before = {goal.name: (world.available(goal.name), world.count(goal.name)) for goal in goals}
    reachable = world.reachable()
    rejected = plan.state.failure is not None
    world.apply(plan, crash)
    assert world.reachable() or not reachable or not any(goal.replicas for goal in goals), "nobody can be reached"
    for goal in goals:
        available, total = before[goal.name]
        least = min(available, goal.replicas - goal.unavailable)
        assert rejected or world.available(goal.name) >= least, f"{goal.name}: too few are left"
        assert world.count(goal.name) <= max(total, goal.replicas + goal.surge), f"{goal.name}: too many"


def assert_weights(world: RolloutWorld, plan: RolloutPlan) -> None:
    assert sum(plan.weights.values()) in (0, 100)
    for name, weight in plan.weights.items():
        assert not weight or world.routable(name), f"traffic to {name}, which cannot serve"
        assert not (weight and name == REFUSED and world.spec.gated and plan.state.stable != name)


def assert_ratio(world: RolloutWorld, plan: RolloutPlan) -> None:
    """For each revision there is a share of the service of which every pool is within one pod."""
    goals = world.goals()
    for name in dict.fromkeys(name for _, name in plan.replicas):
        counts = [(plan.replicas[goal.name, name], goal.replicas) for goal in goals]
        assert len({count > 0 for count, _ in counts}) == 1, f"{name}: some pools have no pod: {counts}"
        highest_low = max((count - 1) / wanted for count, wanted in counts)
        lowest_high = min((count + 1) / wanted for count, wanted in counts)
        assert highest_low < lowest_high or counts[0][0] == 0, f"{name}: {counts} is no share of the service"


def turn(world: RolloutWorld, event: Event, crash: int | None, ratio: bool) -> None:
    kind, a, b = event
    EVENTS[kind](world, a, b)
    plan = world.decide()
    assert_weights(world, plan)
    if ratio:
        assert_ratio(world, plan)
    apply_safely(world, plan, crash)


def assert_converges(world: RolloutWorld) -> None:
    """After the faults: the wanted revision alone, or back at the old one, with exactly the wanted pods."""
    world.spec = replace(world.spec, paused=False, weight=100)
    world.settle(ENOUGH_S)
    stable = world.state.stable
    assert stable is not None
    asleep = not any(goal.replicas for goal in world.goals())
    # Without a pod nothing can be proven: the new revision takes over when the service wakes up.
    assert asleep or world.state.failure is not None or stable == world.spec.revision
    for goal in world.goals():
        assert world.count(goal.name, stable) == goal.replicas
        assert world.count(goal.name) == goal.replicas, "an orphan revision has pods"
    assert {name for _, name in world.pods} <= {stable, world.spec.revision}
    assert world.told == ({} if asleep else {stable: 100})
    again = world.decide()
    assert again.state == world.state, "steady state writes nothing"


@settings(max_examples=40)
@given(specs(), events(PLAIN))
def test_any_edits_and_deaths_converge_and_keep_ratio(spec: RolloutSpec, happened: list[Event]) -> None:
    world = running(spec)
    for event in happened:
        turn(world, event, None, ratio=True)
    assert_converges(world)


@settings(max_examples=40)
@given(specs(), events((*PLAIN, "scale")), st.lists(st.none() | st.integers(0, 1 << 21), min_size=25, max_size=25))
def test_any_crash_and_scaler_never_loses_the_service(
    spec: RolloutSpec, happened: list[Event], crashes: list[int | None]
) -> None:
    world = running(spec)
    for event, crash in zip(happened, crashes, strict=False):
        turn(world, event, crash, ratio=False)
    assert_converges(world)


@settings(max_examples=25)
@given(pool_goals(), st.integers(0, 100))
@example((PoolTarget("decode", 9, 2), PoolTarget("prefill", 2, 2)), 100)
@example((PoolTarget("decode", 7, 0, 1), PoolTarget("prefill", 3, 0, 2)), 50)
def test_undisturbed_rollout_keeps_capacity_and_ratio_at_every_step(
    pools: tuple[PoolTarget, ...], weight: int
) -> None:
    world = running(RolloutSpec("one", pools, progress_deadline_s=DEADLINE_S))
    world.spec = replace(world.spec, revision="two", weight=weight)
    for _ in range(100):
        plan = world.decide()
        assert_ratio(world, plan)
        apply_safely(world, plan, None)
        for goal in world.goals():
            assert world.available(goal.name) >= goal.replicas - goal.unavailable
        assert plan.weights.get("two", 0) <= weight
        world.now += 14.0
    progress = world.state.progress
    assert world.state.failure is None
    assert progress is not None
    assert progress.left == 0, "stuck before its weight is reached"
    assert_converges(world)
    assert world.state.stable == "two"
