"""Single situations of a rollout: what is decided, what is said, and when to look again."""

from dataclasses import replace
from fractions import Fraction

import pytest

from control_plane.rollout import Health, PoolTarget, RolloutSpec, pool_target
from control_plane.rollout.regression import regression
from control_plane.rollout.weights import percentages
from tests.worlds.rollout_world import NEVER_READY, POOLS, REFUSED, SLOW, WRONG, RolloutWorld, updating


def reason(world: RolloutWorld) -> str:
    assert world.last is not None
    return world.last.verdict.reason


def test_the_first_revision_starts_whole_and_is_done_when_ready() -> None:
    world = RolloutWorld(RolloutSpec("one", POOLS))
    plan = world.decide()
    assert plan.replicas == {("prefill", "one"): 2, ("decode", "one"): 6}
    assert plan.weights == {}
    assert plan.verdict.reason == "Progressing"
    world.settle(100)
    assert world.told == {"one": 100}
    assert world.last is not None
    assert world.last.verdict.done
    assert world.last.requeue_after_s is None


def test_the_first_revision_is_the_stable_one_whatever_its_weight() -> None:
    """Else the next one would replace nothing: no weight, no comparison and no way back."""
    world = RolloutWorld(RolloutSpec("one", POOLS, weight=10))
    world.settle(100)
    assert world.last is not None
    assert world.last.state.stable == "one"
    world.spec = RolloutSpec("two", POOLS, weight=10)
    world.settle(100)
    assert world.told == {"one": 90, "two": 10}
    assert reason(world) == "WeightReached"


def test_a_small_weight_gets_one_pod_per_pool_and_its_share_of_traffic() -> None:
    world = updating(weight=10)
    world.settle(100)
    assert [world.count(pool, "two") for pool in ("prefill", "decode")] == [1, 1]
    assert [world.count(pool, "one") for pool in ("prefill", "decode")] == [2, 6]
    assert world.told == {"one": 90, "two": 10}
    assert reason(world) == "WeightReached"


def test_pods_are_taken_only_after_routers_were_told() -> None:
    world = updating()
    world.apply(world.decide())
    world.now += 60
    plan = world.decide()
    assert plan.weights["one"] < 100
    assert plan.replicas["decode", "one"] == 6
    assert plan.requeue_after_s == 1.0
    world.apply(plan)
    assert world.decide().replicas["decode", "one"] == 5


def test_a_revision_becomes_the_stable_one_only_after_the_old_pods_are_gone() -> None:
    world = updating(pools=(PoolTarget("prefill", 2, 2), PoolTarget("decode", 6, 6)))
    world.apply(world.decide())
    world.now += 60
    for _ in range(2):
        plan = world.decide()
        assert plan.weights == {"two": 100}
        assert plan.state.stable == "one"
        world.apply(plan)
    assert world.count("decode", "one") == 0
    assert world.decide().state.stable == "two"


def test_a_revision_whose_pods_never_start_gets_no_traffic_and_is_rolled_back() -> None:
    world = updating(NEVER_READY)
    world.settle(280)
    assert world.told == {"one": 100}
    world.settle(400)
    assert reason(world) == "RolledBack"
    assert world.count("decode", "one") == 6
    assert world.count("decode", NEVER_READY) == 0
    assert world.last is not None
    assert world.last.verdict.stalled
    assert "no pod became ready within 300 s" in world.last.verdict.message


def test_a_gate_that_fails_stops_a_revision_before_any_traffic() -> None:
    world = updating(REFUSED, gated=True)
    for _ in range(60):
        world.now += 10
        world.verify()
        world.apply(world.decide())
        assert not world.told.get(REFUSED)
        assert world.count("decode", REFUSED) <= 1
    assert reason(world) == "RolledBack"


def test_a_gate_holds_a_revision_at_one_pod_per_pool_until_it_passes() -> None:
    world = updating("two", gated=True)
    for _ in range(20):
        world.now += 10
        world.apply(world.decide())
    assert reason(world) == "Verifying"
    assert world.told == {"one": 100}
    world.settle(1000)
    assert world.state.stable == "two"


def test_a_gate_compares_where_no_pool_may_be_exceeded() -> None:
    """Else no pod of the new revision ever starts, and it is taken back for not having started."""
    pools = tuple(replace(pool, surge=0, unavailable=1) for pool in POOLS)
    world = updating("two", pools=pools, gated=True)
    for _ in range(20):
        world.now += 10
        world.apply(world.decide())
        assert all(pool.replicas - 1 <= world.count(pool.name) <= pool.replicas for pool in pools)
    assert reason(world) == "Verifying"
    assert [world.count(pool.name, "two") for pool in pools] == [1, 1]
    world.settle(1000)
    assert world.state.stable == "two"


@pytest.mark.parametrize(("revision", "kind"), [(WRONG, "errors"), (SLOW, "slo")])
def test_a_revision_that_is_worse_under_traffic_is_rolled_back(revision: str, kind: str) -> None:
    world = updating(revision)
    world.settle(2000)
    assert world.state.failure is not None
    assert world.state.failure.kind == kind
    assert world.told == {"one": 100}
    assert world.count("decode", "one") == 6


def test_errors_take_all_traffic_away_in_one_step() -> None:
    world = updating(WRONG)
    while not world.told.get(WRONG):
        world.now += 10
        world.apply(world.decide())
    assert world.decide().weights == {"one": 100}


def test_without_automatic_rollback_a_failed_revision_is_held() -> None:
    world = updating(SLOW, auto_rollback=False)
    world.settle(600)
    assert reason(world) == "RolloutFailed"
    assert world.count("decode", SLOW) >= 1
    assert world.count("decode", "one") >= 1


def test_a_paused_rollout_keeps_its_split_and_a_scaler_still_works() -> None:
    world = updating()
    for _ in range(10):
        world.now += 10
        world.apply(world.decide())
    world.spec = replace(world.spec, paused=True)
    before = [world.count(pool, "two") for pool in ("prefill", "decode")]
    world.settle(2000)
    assert reason(world) == "Paused"
    assert [world.count(pool, "two") for pool in ("prefill", "decode")] == before
    world.scale(1, 12)
    world.settle(200)
    assert world.count("decode") >= 12
    assert [world.count(pool, "two") for pool in ("prefill", "decode")] == before


def test_applying_the_old_spec_again_undoes_a_rollout_without_new_pods_of_the_new_one() -> None:
    world = updating()
    for _ in range(10):
        world.now += 10
        world.apply(world.decide())
    world.spec = replace(world.spec, revision="one")
    world.settle(300)
    assert world.state.stable == "one"
    assert world.count("decode") == world.count("decode", "one") == 6
    assert reason(world) == "Complete"


def test_scaling_to_zero_stops_traffic_first_and_waking_serves_again() -> None:
    world = RolloutWorld(RolloutSpec("one", POOLS))
    world.settle(200)
    world.scale(0, 0)
    world.scale(1, 0)
    plan = world.decide()
    assert plan.weights == {}
    assert plan.replicas["decode", "one"] == 6
    world.settle(100)
    assert world.count("decode") == 0
    assert reason(world) == "ScaledToZero"
    world.scale(1, 1)
    world.settle(100)
    assert [world.count(pool) for pool in ("prefill", "decode")] == [1, 1]
    assert world.told == {"one": 100}


@pytest.mark.parametrize(
    ("surge", "unavailable", "pods"), [("25%", "25%", (2, 1)), (1, 0, (1, 0)), ("0%", "100%", (0, 6))]
)
def test_percentages_err_towards_capacity(surge: int | str, unavailable: int | str, pods: tuple[int, int]) -> None:
    goal = pool_target("decode", 6, surge, unavailable)
    assert (goal.surge, goal.unavailable) == pods


@pytest.mark.parametrize(
    ("new", "old", "worse"),
    [
        (Health(1000, 100), Health(1000, 0), "errors"),
        (Health(1000, 0, 300), Health(1000, 0, 100), "slo"),
        (Health(1000, 300), Health(1000, 295), None),
        (Health(40, 40), Health(1000, 0), None),
        (Health(100, 3), Health(1000, 10), None),
        (Health(100, 30), Health(0, 0), "errors"),
        # So many that chance says nothing: the margin alone decides.
        (Health(1_000_000, 19_000), Health(1_000_000, 10_000), None),
        (Health(1_000_000, 22_000), Health(1_000_000, 10_000), "errors"),
        (Health(1_000_000, 0, 19_000), Health(1_000_000, 0, 10_000), None),
        (Health(1_000_000, 0, 22_000), Health(1_000_000, 0, 10_000), "slo"),
        # Borders by exact fractions: three deviations of the pooled share, each side with its own number of requests.
        (Health(1_000, 41), Health(1_000, 10), None),
        (Health(1_000, 42), Health(1_000, 10), "errors"),
        (Health(100, 5), Health(10_000, 100), None),
        (Health(100, 6), Health(10_000, 100), "errors"),
        (Health(10_000, 1_000), Health(100, 0), None),
        (Health(10_000, 1_001), Health(100, 0), "errors"),
        (Health(50, 8), Health(0, 0), None),
        (Health(50, 9), Health(0, 0), "errors"),
        # Fewer than fifty say nothing, however bad.
        (Health(49, 49), Health(1_000, 0), None),
        (Health(50, 50), Health(1_000, 0), "errors"),
    ],
)
def test_a_regression_is_more_than_margin_and_chance(new: Health, old: Health, worse: str | None) -> None:
    found = regression(new, old, 0.01)
    assert (found[0] if found else None) == worse


def test_percentages_sum_up() -> None:
    assert percentages({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}, 100) == {
        "a": 34,
        "b": 33,
        "c": 33,
    }
    assert percentages({"a": Fraction(1, 3), "b": Fraction(2, 3)}, 100) == {"a": 33, "b": 67}
    assert percentages({"a": Fraction(2, 3), "b": Fraction(1, 3)}, 100) == {"a": 67, "b": 33}
    assert percentages({}, 100) == {}
