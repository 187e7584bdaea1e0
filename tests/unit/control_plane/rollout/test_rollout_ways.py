"""When a new revision takes over, when it has to go, and how fast."""

from dataclasses import replace

import pytest

from control_plane.rollout import (
    Failure,
    PoolPods,
    PoolTarget,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    step,
)
from tests.worlds.rollout_world import POOLS, WRONG, seen, updating

ASLEEP = (PoolTarget("prefill", 0), PoolTarget("decode", 0))
WHOLE = seen(prefill=2, decode=6)


def failing(kind: str, **spec: object) -> RolloutPlan:
    """A step of a rollout that is halfway there when its new revision has failed."""
    failure = Failure("two", kind, "it is no good")  # type: ignore[arg-type]
    half = seen(prefill=1, decode=3)
    asked = RolloutSpec("two", POOLS, **spec)  # type: ignore[arg-type]
    return step(RolloutState("one", {"one": 50, "two": 50}, failure), asked, {"one": half, "two": half}, 0.0)


def last_step(**spec: object) -> RolloutPlan:
    """The step in which a revision that serves with all its pods, and alone, finds that it took over."""
    asked = replace(RolloutSpec("two", POOLS), **spec)  # type: ignore[arg-type]
    return step(RolloutState("one", {"two": 100}), asked, {"two": WHOLE}, 0.0)


def test_a_revision_that_serves_alone_takes_over() -> None:
    plan = last_step()
    assert plan.state.stable == "two"
    assert plan.verdict.reason == "Complete"


def test_a_weight_below_the_whole_keeps_the_old_revision_to_go_back_to() -> None:
    """Who lowers the weight in the last moment wants the old revision back, and has nothing left to compare with when
    the new one took over."""
    plan = last_step(weight=50)
    assert plan.state.stable == "one"
    assert plan.replicas["decode", "one"] > 0


def test_a_revision_takes_over_awake_only() -> None:
    """Its pods are about to go, so that the old revision is still the one that is known to start."""
    plan = last_step(pools=ASLEEP)
    assert plan.state.stable == "one"
    assert plan.verdict.reason == "ScaledToZero"


@pytest.mark.parametrize(
    ("prefill", "decode", "stable"), [(2, 6, "two"), (2, 5, "two"), (2, 4, "one"), (1, 5, "one"), (0, 6, "one")]
)
def test_a_revision_takes_over_with_what_must_be_available(prefill: int, decode: int, stable: str) -> None:
    pools = (PoolTarget("prefill", 2), PoolTarget("decode", 6, 1, 1))
    observed = {"two": seen(prefill=prefill, decode=decode)}
    assert step(RolloutState("one"), RolloutSpec("two", pools), observed, 0.0).state.stable == stable


@pytest.mark.parametrize("left", ["one", "zero"])
def test_a_revision_takes_over_only_when_no_other_has_pods(left: str) -> None:
    observed = {"two": WHOLE, left: seen(prefill=0, decode=0, starting=1)}
    plan = step(RolloutState("one", {"two": 100}), RolloutSpec("two", POOLS), observed, 0.0)
    assert plan.state.stable == "one"


def test_another_revision_is_not_blamed_for_the_one_that_failed() -> None:
    """The revision that mends what was wrong must be rolled out, or nobody gets out of a failure but by hand."""
    world = updating(WRONG)
    world.settle(2000)
    assert world.state.failure is not None
    world.spec = replace(world.spec, revision="two")
    plan = world.decide()
    assert plan.state.failure is None
    assert plan.replicas["decode", "two"] == 1
    world.settle(1000)
    assert world.told == {"two": 100}
    assert world.state.stable == "two"


def test_a_failure_is_remembered_while_the_same_revision_is_asked_for() -> None:
    """Else a revision that was taken back is tried again and again, each time with the users' requests."""
    world = updating(WRONG)
    world.settle(2000)
    for _ in range(10):
        world.now += 60
        plan = world.decide()
        assert plan.verdict.reason == "RolledBack"
        assert plan.weights == {"one": 100}
        assert plan.replicas["decode", WRONG] == 0
        world.apply(plan)


@pytest.mark.parametrize("stable", ["one", None])
def test_a_revision_that_replaces_no_other_is_not_held_for_failed(stable: str | None) -> None:
    """There is nothing to go back to: a service that serves as asked must not be told of as stalled."""
    state = RolloutState(stable, {"one": 100}, Failure("one", "errors", "it is no good"))
    plan = step(state, RolloutSpec("one", POOLS), {"one": WHOLE}, 0.0)
    assert plan.verdict.reason == "Complete"
    assert not plan.verdict.stalled
    assert plan.weights == {"one": 100}
    assert plan.state.failure is None


def test_a_revision_whose_answers_fail_loses_its_requests_before_others_can_take_them() -> None:
    assert failing("errors").weights == {"one": 100}


@pytest.mark.parametrize("kind", ["slo", "deadline"])
def test_a_revision_that_is_late_keeps_its_requests_until_others_can_take_them(kind: str) -> None:
    """Half of the pods would have to serve everybody at once, and miss more than the new revision did."""
    assert failing(kind).weights == {"one": 50, "two": 50}


def test_without_automatic_rollback_errors_take_no_requests_away() -> None:
    """The user wants to decide, and the pods of the old revision may not carry all."""
    plan = failing("errors", auto_rollback=False)
    assert plan.weights == {"one": 50, "two": 50}
    assert plan.verdict.reason == "RolloutFailed"
    assert plan.verdict.stalled


def test_a_revision_that_goes_back_is_told_of_as_stalled_and_looked_at_no_more() -> None:
    plan = failing("slo")
    assert plan.verdict.reason == "RollingBack"
    assert plan.verdict.stalled
    assert plan.requeue_after_s == 1800.0


def test_a_pause_holds_up_no_service_that_replaces_nothing() -> None:
    """A new service would never start, and one that is scaled would never get its pods."""
    spec = RolloutSpec("one", POOLS, paused=True)
    assert step(RolloutState(), spec, {}, 0.0).replicas["decode", "one"] == 6
    grown = step(RolloutState("one", {"one": 100}), spec, {"one": seen(prefill=2, decode=4)}, 0.0)
    assert grown.replicas["decode", "one"] == 6


def test_a_revision_that_was_asked_for_again_counts_once_when_another_gives_up_its_pods() -> None:
    """Who undoes a rollout halfway has half of the pods in each revision, and needs both halves."""
    half = seen(prefill=1, decode=3)
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("one", POOLS), {"one": half, "two": half}, 0.0)
    assert (plan.replicas["prefill", "two"], plan.replicas["decode", "two"]) == (1, 3)


def test_a_third_revision_has_its_first_pods_while_the_two_before_it_keep_theirs() -> None:
    """Pools of one pod are exceeded by one for each revision that is still alive."""
    pools, one = (PoolTarget("prefill", 1), PoolTarget("decode", 1)), seen(prefill=1, decode=1)
    state = RolloutState("one", {"one": 50, "two": 50})
    plan = step(state, RolloutSpec("three", pools), {"one": one, "two": one}, 0.0)
    assert plan.replicas["prefill", "three"] == plan.replicas["decode", "three"] == 1


def test_an_overtaken_revision_is_given_up_when_its_last_pod_is_gone() -> None:
    """Deployments that are deleted take pods along that still answer; those that stay are left over for ever."""
    observed = {
        "one": WHOLE,
        "asked": seen(prefill=0, decode=0, starting=1),
        "ending": RevisionObserved({"prefill": PoolPods(0, 0), "decode": PoolPods(0, 1)}),
        "gone": seen(prefill=0, decode=0),
    }
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("two", POOLS), observed, 0.0)
    assert plan.retired == ("gone",)


def test_a_revision_whose_answers_fail_serves_on_while_nothing_else_does() -> None:
    """Some answers are better than none."""
    failure = Failure("two", "errors", "it is no good")
    observed = {"one": seen(prefill=1, decode=0, starting=1), "two": WHOLE}
    plan = step(RolloutState("one", {"two": 100}, failure), RolloutSpec("two", POOLS), observed, 0.0)
    assert plan.weights == {"two": 100}
    assert plan.replicas["decode", "two"] == 6


def test_pools_start_in_their_ratio_when_one_has_room_for_all() -> None:
    """Decode pods without the prefill pods that feed them hold accelerators and serve nobody."""
    pools = (PoolTarget("prefill", 4, 1), PoolTarget("decode", 8, 8))
    observed = {"one": seen(prefill=4, decode=8)}
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("two", pools), observed, 0.0)
    assert {pool: plan.replicas[pool, "two"] for pool in ("prefill", "decode")} == {"prefill": 1, "decode": 2}


def test_a_revision_of_which_nothing_is_left_but_empty_pools_is_retired() -> None:
    """Else its Deployments stay for ever, one set more with every release."""
    observed = {
        "one": seen(prefill=2, decode=6),
        "zero": RevisionObserved({"prefill": PoolPods(), "decode": PoolPods()}),
    }
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("one", POOLS), observed, 0.0)
    assert plan.retired == ("zero",)
