"""Rollouts where no node has room for new pods beside the old ones."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_plane.rollout import (
    Failure,
    InPlace,
    NoRoom,
    PoolPods,
    PoolTarget,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    step,
)
from tests.worlds.rollout_world import NEVER_READY, POOLS, SLOW, RolloutWorld, seen

AFTER_S = 60.0
FULL = {pool.name: pool.replicas for pool in POOLS}


def full(revision: str = "two", room: dict[str, int] | None = None, **spec: object) -> RolloutWorld:
    """A world whose first revision serves alone on nodes without room for more, and whose spec asks for another."""
    pools = spec.pop("pools", POOLS)
    world = RolloutWorld(RolloutSpec("one", pools, progress_deadline_s=3000))  # type: ignore[arg-type]
    world.room = FULL if room is None else room
    world.settle(200)
    assert world.state.stable == "one"
    world.spec = replace(world.spec, revision=revision, **spec)  # type: ignore[arg-type]
    return world


def turns(world: RolloutWorld, seconds: float, every_s: float = 10.0) -> None:
    """Let time pass, with every plan applied whole."""
    end = world.now + seconds
    while world.now < end:
        world.apply(world.decide())
        world.now += every_s


def reports(world: RolloutWorld) -> dict[str, str]:
    assert world.last is not None
    return {each.pool: each.reason for each in world.last.surges}


def counts(world: RolloutWorld, name: str) -> list[int]:
    return [world.count(pool.name, name) for pool in world.spec.pools]


def test_an_old_pod_gives_way_once_a_new_one_has_waited_for_room() -> None:
    world = full()
    turns(world, AFTER_S)
    assert counts(world, "one") == [2, 6]
    assert reports(world) == {}
    turns(world, 20)
    assert counts(world, "one") == [1, 5]
    assert counts(world, "two") == [1, 1]
    assert reports(world) == {"prefill": "InPlace", "decode": "InPlace"}
    turns(world, 20)
    assert counts(world, "one") == [1, 5], "no other gives way before the new one serves"


def test_a_full_cluster_takes_over_the_new_revision_with_one_pod_less_at_a_time() -> None:
    world = full()
    for _ in range(200):
        world.apply(world.decide())
        assert world.reachable()
        assert world.available("prefill") >= 1
        assert world.available("decode") >= 5
        assert world.count("decode") <= 7
        world.now += 10
    assert world.state == RolloutState("two", {"two": 100}, progress=world.state.progress)
    assert counts(world, "two") == [2, 6]
    assert reports(world) == {}


def test_only_the_pool_without_room_falls_short() -> None:
    world = full(room={"decode": 6})
    for _ in range(200):
        world.apply(world.decide())
        assert world.available("prefill") >= 2
        assert world.available("decode") >= 5
        world.now += 10
    assert world.state.stable == "two"


def test_the_operator_looks_again_when_the_wait_is_over() -> None:
    observed = {"one": seen(prefill=2, decode=6), "two": seen(prefill=0, decode=0, starting=1)}
    observed["two"] = replace(observed["two"], no_room={"decode": NoRoom(100.0)})
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("two", POOLS), observed, 125.0)
    assert plan.requeue_after_s == 35.0
    assert plan.state.in_place is None
    assert plan.surges == ()


@pytest.mark.parametrize(("spec", "reason"), [({"in_place": False}, "Never"), ({"paused": True}, None)])
def test_no_pod_gives_way_where_that_is_not_wanted(spec: dict[str, bool], reason: str | None) -> None:
    world = full()
    turns(world, AFTER_S - 20)
    world.spec = replace(world.spec, **spec)  # type: ignore[arg-type]
    turns(world, 500)
    assert counts(world, "one") == [2, 6]
    if reason is not None:
        assert reports(world) == {"prefill": reason, "decode": reason}


def test_no_pod_gives_way_in_vain() -> None:
    observed = {"one": seen(prefill=2, decode=6), "two": seen(prefill=0, decode=0, starting=1)}
    observed["two"] = replace(observed["two"], no_room={"decode": NoRoom(0.0, "it frees too little")})
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("two", POOLS), observed, 500.0)
    assert plan.replicas["decode", "one"] == 6
    assert [(each.pool, each.reason) for each in plan.surges] == [("decode", "InVain")]
    assert "would not help: it frees too little." in plan.surges[0].sentence


@pytest.mark.parametrize(("now", "goes"), [(159.0, False), (160.0, True)])
def test_it_goes_in_place_at_once_when_the_wait_is_over(now: float, goes: bool) -> None:
    observed = {"one": seen(prefill=2, decode=6), "two": seen(prefill=0, decode=0, starting=1)}
    observed["two"] = replace(observed["two"], no_room={"decode": NoRoom(100.0)})
    plan = step(RolloutState("one", {"one": 100}), RolloutSpec("two", POOLS), observed, now)
    assert plan.replicas["decode", "one"] == 6 - goes


@pytest.mark.parametrize(("lacks", "goes"), [("one", True), ("two", False)])
def test_the_way_back_goes_in_place_for_the_revision_that_comes_back(lacks: str, goes: bool) -> None:
    """Else a revision that misses its objective serves on as long as others have the room."""
    state = RolloutState("one", {"one": 50, "two": 50}, Failure("two", "slo", "it is late"))
    observed = {"one": replace(seen(decode=3), pools={"decode": PoolPods(4, 3)}), "two": seen(decode=3)}
    observed[lacks] = replace(observed[lacks], no_room={"decode": NoRoom(0.0)})
    plan = step(state, RolloutSpec("two", (PoolTarget("decode", 6),)), observed, 500.0)
    assert (plan.state.in_place is not None) == goes
    assert plan.weights["two"] < 50 if goes else plan.weights["two"] == 50, "routers are told first"


def test_a_pool_in_which_nothing_could_give_way_is_not_spoken_of() -> None:
    observed = {"one": seen(prefill=2, decode=0), "two": seen(prefill=0, decode=0, starting=1)}
    observed["two"] = replace(observed["two"], no_room={"decode": NoRoom(0.0)})
    plan = step(RolloutState("one"), RolloutSpec("two", POOLS), observed, 500.0)
    assert plan.surges == ()
    assert plan.state.in_place is None


def test_a_pool_that_goes_in_place_is_spoken_of_once() -> None:
    observed = {"one": seen(prefill=2, decode=5), "two": seen(prefill=0, decode=0, starting=1)}
    observed["two"] = replace(observed["two"], no_room={"decode": NoRoom(0.0, "it frees too little")})
    state = RolloutState("one", {"one": 100}, in_place=InPlace("two", ("decode",)))
    plan = step(state, RolloutSpec("two", POOLS), observed, 500.0)
    assert [each.reason for each in plan.surges] == ["InPlace"]
    assert plan.replicas["decode", "one"] == 5


SINGLE = (PoolTarget("prefill", 1), PoolTarget("decode", 1))


def test_a_pool_of_one_pod_is_not_interrupted_and_it_is_said() -> None:
    world = full(pools=SINGLE, room={"decode": 1})
    turns(world, 500)
    assert counts(world, "one") == [1, 1]
    assert world.reachable()
    assert reports(world) == {"decode": "NeedsOutage"}
    assert world.state.in_place is None


def test_no_pod_gives_way_where_another_pool_cannot_go_in_place() -> None:
    """The new revision serves with every pool or not at all, and would wait for the other one until it goes back."""
    pools = (PoolTarget("prefill", 1), PoolTarget("decode", 4))
    world = full(pools=pools, room={"prefill": 1, "decode": 4})
    turns(world, 500)
    assert counts(world, "one") == [1, 4]
    assert reports(world) == {"prefill": "NeedsOutage", "decode": "InVain"}
    assert world.state.in_place is None


@pytest.mark.parametrize(
    ("pools", "weight", "gated"),
    [
        ((PoolTarget("prefill", 1, 1, 1), PoolTarget("decode", 1, 1, 1)), 50, False),
        ((PoolTarget("prefill", 1, 1, 1), PoolTarget("decode", 1, 1, 1)), 100, True),
        ((PoolTarget("prefill", 2, 1, 1), PoolTarget("decode", 1, 1, 1)), 100, False),
    ],
)
def test_an_outage_that_would_not_be_allowed_in_every_pool_is_none(
    pools: tuple[PoolTarget, ...], weight: int, gated: bool
) -> None:
    world = full(pools=pools, room={"decode": 1})
    world.spec = replace(world.spec, weight=weight, gated=gated)
    turns(world, 500)
    assert world.reachable()
    assert world.count("decode", "one") == 1
    assert reports(world) == {"decode": "NeedsOutage"}


def test_a_service_of_single_pods_is_interrupted_where_the_specification_allows_it() -> None:
    world = full(pools=tuple(replace(pool, unavailable=1) for pool in SINGLE), room={"decode": 1})
    turns(world, AFTER_S)
    assert world.reachable()
    told: list[dict[str, int]] = []
    for _ in range(20):
        before = dict(world.told)
        world.apply(world.decide())
        if not world.count("decode", "one") and "one" not in told:
            told.append(before)
        world.now += 10
    assert told[0] == {}, "routers were told before the pods went"
    assert world.state.stable == "two"
    assert world.told == {"two": 100}
    assert counts(world, "two") == [1, 1]


def test_a_revision_that_misses_its_objective_goes_back_in_place() -> None:
    world = full(SLOW)
    for _ in range(400):
        world.apply(world.decide())
        assert world.available("decode") >= 5
        world.now += 10
    assert world.state.failure is not None
    assert counts(world, "one") == [2, 6]
    assert counts(world, SLOW) == [0, 0]
    assert world.state.in_place is None
    assert reports(world) == {}


def test_a_revision_that_never_starts_gives_its_room_back() -> None:
    world = full(NEVER_READY, progress_deadline_s=300)
    turns(world, 3000)
    assert world.state.failure is not None
    assert counts(world, "one") == [2, 6]
    assert world.available("decode") == 6


def test_another_revision_finds_out_for_itself() -> None:
    world = full()
    turns(world, 100)
    assert world.state.in_place == InPlace("two", ("decode", "prefill"))
    world.spec = replace(world.spec, revision="three")
    assert world.decide().state.in_place is None
    turns(world, 3000)
    assert world.state.stable == "three"
    assert counts(world, "three") == [2, 6]


@st.composite
def crowded(draw: st.DrawFn) -> tuple[tuple[PoolTarget, ...], dict[str, int]]:
    """Pools, and of some of them how many pods have room: as many as run or a few more."""
    names = draw(st.sampled_from([("decode", "prefill"), ("unified",), ("a", "b", "c")]))
    few = st.integers(0, 2)
    pools = tuple(PoolTarget(name, draw(st.integers(2, 7)), draw(few), draw(few)) for name in names)
    return pools, {pool.name: pool.replicas + draw(few) for pool in pools if draw(st.booleans())}


def assert_safe(world: RolloutWorld, plan: RolloutPlan) -> None:
    """No pool has fewer than the specification, or one disruption, allows; and requests always find a revision."""
    assert world.reachable()
    for pool in world.spec.pools:
        assert world.available(pool.name) >= pool.replicas - max(1, min(pool.unavailable, pool.replicas - 1))
    for (pool_name, name), count in plan.replicas.items():
        lowered = count < world.count(pool_name, name)
        assert not lowered or world.told.get(name, 0) <= plan.weights.get(name, 0), "routers are told first"


@settings(max_examples=60)
@given(crowded(), st.sampled_from([100, 100, 30]), st.booleans(), st.sampled_from(["two", SLOW, NEVER_READY]))
@example(
    ((PoolTarget("decode", 2, 2, 0), PoolTarget("prefill", 2, 2, 0)), {"decode": 2, "prefill": 2}), 100, False, "two"
)
def test_a_rollout_without_room_ends_and_takes_no_more_than_it_may(
    drawn: tuple[tuple[PoolTarget, ...], dict[str, int]], weight: int, gated: bool, revision: str
) -> None:
    pools, room = drawn
    world = full(revision, room, pools=pools, progress_deadline_s=600, weight=weight, gated=gated)
    for _ in range(300):
        if gated:
            world.verify()
        plan = world.decide()
        assert_safe(world, plan)
        world.apply(plan)
        world.now += 13.0
    progress, failed = world.state.progress, world.state.failure
    assert progress is not None
    assert progress.left == 0
    assert (failed is None) == (revision == "two")
    if revision == "two" and weight == 100:
        assert world.state.stable == "two"
    assert world.state.in_place is None or weight < 100


@settings(max_examples=40)
@given(crowded(), st.lists(st.integers(0, 1 << 12), min_size=40, max_size=40))
def test_a_rollout_without_room_survives_operators_that_die_halfway(
    drawn: tuple[tuple[PoolTarget, ...], dict[str, int]], crashes: list[int]
) -> None:
    pools, room = drawn
    world = full("two", room, pools=pools)
    for crash in crashes:
        world.apply(world.decide(), crash)
        assert world.reachable()
        for pool in world.spec.pools:
            assert world.available(pool.name) >= pool.replicas - max(1, min(pool.unavailable, pool.replicas - 1))
        world.now += 13.0
    turns(world, 4000, 13.0)
    assert world.state.stable == "two"
    assert [world.count(pool.name) for pool in pools] == [pool.replicas for pool in pools]
