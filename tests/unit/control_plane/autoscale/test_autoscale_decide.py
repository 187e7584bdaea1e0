"""What holds of every scaling decision, whatever the load was before."""

from dataclasses import replace
from math import ceil

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.autoscale import DecodeFit, History, PoolLoad, Scaling, ServiceLoad, decide
from control_plane.autoscale.cron import open_floor
from tandem.spec.pool import Autoscaling, Pool, ScheduledFloor
from tandem.spec.service import Spec
from tests.worlds.autoscale_cases import (
    ANSWER,
    NOON,
    PROMPT,
    SLO,
    SPEEDS,
    loads,
    scaled,
    service,
    specs,
    speeds_of,
    steady,
)


def scaling_of(pool: Pool) -> Autoscaling:
    assert pool.autoscaling is not None
    return pool.autoscaling


@st.composite
def lives(draw: st.DrawFn) -> tuple[Spec, list[tuple[float, ServiceLoad]]]:
    """A service and a sequence of looks whose totals grow."""
    spec = draw(specs())
    now, looks, sums = NOON, list[tuple[float, ServiceLoad]](), [0, 0, 0, 0]
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([1.0, 5.0, 60.0, 400.0]))
        load = draw(loads(spec))
        sums[0] += load.arrived_prompt_tokens
        sums[1] += load.arrived_requests
        sums[2] += load.output_tokens
        sums[3] += load.finished_requests
        total = replace(
            load,
            arrived_prompt_tokens=sums[0],
            arrived_requests=sums[1],
            output_tokens=sums[2],
            finished_requests=sums[3],
        )
        looks.append((now, total))
    return spec, looks


def live(spec: Spec, looks: list[tuple[float, ServiceLoad]]) -> list[Scaling]:
    history, made = History(), list[Scaling]()
    for now, load in looks:
        made.append(decide(spec, load, speeds_of(spec), history, now))
        history = made[-1].history
    return made


@settings(max_examples=100, deadline=None)
@given(lives())
def test_numbers_keep_to_limits_floors_and_one_answer(life: tuple[Spec, list[tuple[float, ServiceLoad]]]) -> None:
    spec, looks = life
    for scaling, (now, _) in zip(live(spec, looks), looks, strict=True):
        assert scaling.pools.keys() == {pool.name for pool in spec.pools}
        for pool in spec.pools:
            replicas, limits = scaling.pools[pool.name].replicas, scaling_of(pool)
            assert scaling.active == (replicas > 0), "one answer for the whole service"
            if scaling.active:
                floor = max(1, limits.min_replicas, min(open_floor(limits.schedule, now), limits.max_replicas))
                assert floor <= replicas <= limits.max_replicas
                assert scaling.pools[pool.name].reasons


@settings(max_examples=100, deadline=None)
@given(lives())
def test_the_metric_rounds_up_to_the_decision(life: tuple[Spec, list[tuple[float, ServiceLoad]]]) -> None:
    spec, looks = life
    for scaling, (_, load) in zip(live(spec, looks), looks, strict=True):
        for name, each in scaling.pools.items():
            # The autoscaler divides thousandths, and looks away from a tenth.
            wanted = load.pools[name].wanted
            thousandths = int(each.metric(wanted) * 1000)
            assert ceil(thousandths / 1000) == each.replicas
            if wanted and each.replicas < wanted <= 19:
                assert abs(thousandths / 1000 / wanted - 1) > 0.1, "lost in the tolerance"


@settings(max_examples=100, deadline=None)
@given(lives())
def test_sleep_only_when_no_router_has_anything(life: tuple[Spec, list[tuple[float, ServiceLoad]]]) -> None:
    spec, looks = life
    for scaling, (_, load) in zip(live(spec, looks), looks, strict=True):
        running = any(each.wanted for each in load.pools.values())
        if not scaling.active:
            assert not load.busy
            assert all(scaling_of(pool).min_replicas == 0 for pool in spec.pools)
            assert load.complete or not running, "who is not heard may have requests"


@settings(max_examples=100, deadline=None)
@given(lives())
def test_a_pool_of_role_auto_has_the_number_that_unified_workers_would_have(
    life: tuple[Spec, list[tuple[float, ServiceLoad]]],
) -> None:
    spec, looks = life
    autos, wholes = (
        msgspec.structs.replace(spec, pools=tuple(msgspec.structs.replace(each, role=role) for each in spec.pools))
        for role in ("auto", "unified")
    )
    for one, other in zip(live(autos, looks), live(wholes, looks), strict=True):
        assert one.pools == other.pools


def test_a_pool_of_role_auto_carries_prompts_and_answers() -> None:
    """Sixteen prompts of 3,000 tokens a second take eight workers, 500 tokens of answer each take more."""
    spec = Spec(pools=(scaled("all", "auto", most=64, window_s=0),), slo=SLO)
    now, history = NOON, History()
    for look in range(200):
        count = 80 * look
        load = ServiceLoad(
            pools={"all": PoolLoad(20, 20)},
            arrived_prompt_tokens=count * PROMPT,
            arrived_requests=count,
            output_tokens=count * ANSWER,
            finished_requests=count,
        )
        scaling = decide(spec, load, speeds_of(spec), history, now + 5.0 * look)
        history = scaling.history
    said = scaling.pools["all"]
    assert said.replicas > 8 + 1, "prompts alone take eight"
    assert [reason.split(":")[0] for reason in said.reasons[:2]] == ["prefill", "decode"]


def test_sleep_takes_the_longest_patience_and_waits_for_starting_workers() -> None:
    spec = service(least=0)
    idle = steady(1, 1)
    first = decide(spec, idle, SPEEDS, History(), NOON)
    assert first.active
    assert decide(spec, idle, SPEEDS, first.history, NOON + 59).active
    asleep = decide(spec, idle, SPEEDS, first.history, NOON + 61)
    assert not asleep.active
    assert {each.replicas for each in asleep.pools.values()} == {0}
    loading = replace(idle, pools={**idle.pools, "decode": PoolLoad(1, 0, (100.0,))})
    assert decide(spec, loading, SPEEDS, first.history, NOON + 61).active
    stuck = replace(idle, pools={**idle.pools, "decode": PoolLoad(1, 0, (1000.0,))})
    assert not decide(spec, stuck, SPEEDS, first.history, NOON + 61).active
    unheard = replace(idle, complete=False)
    assert decide(spec, unheard, SPEEDS, first.history, NOON + 61).active


def test_one_request_wakes_every_pool() -> None:
    woken = decide(service(least=0), steady(0, 0, queued_requests=1), SPEEDS, History(), NOON)
    assert woken.active
    assert {name: each.replicas for name, each in woken.pools.items()} == {"prefill": 1, "decode": 1}


def flowing(rate: float, seconds: float = 900.0, prefill: int = 1, decode: int = 1) -> tuple[History, ServiceLoad]:
    """A constant rate of requests/s for so long; gives the history and the next load."""
    history, load, now = History(), steady(prefill, decode), 0.0
    spec = service()
    while now <= seconds:
        requests = int(rate * now)
        load = replace(
            load,
            arrived_requests=requests,
            arrived_prompt_tokens=requests * PROMPT,
            finished_requests=requests,
            output_tokens=requests * ANSWER,
        )
        history = decide(spec, load, SPEEDS, history, NOON - seconds + now).history
        now += 5.0
    return history, load


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 12), st.floats(0, 6), st.integers(0, 300), st.integers(0, 300))
def test_more_load_never_gets_fewer_workers(rate: float, more: float, sequences: int, others: int) -> None:
    spec = service(window_s=0, most=64)
    numbers = []
    for each, running in ((rate, sequences), (rate + more, sequences + others)):
        history, load = flowing(each)
        load = replace(load, sequences=running)
        made = decide(spec, load, SPEEDS, replace(history, recommended={}), NOON)
        numbers.append((made.pools["prefill"].replicas, made.pools["decode"].replicas))
    assert numbers[0][1] <= numbers[1][1]
    assert numbers[0][0] <= numbers[1][0]


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.5, 12),
    st.integers(0, 3_000_000),
    st.integers(1, 8),
    st.integers(1, 8),
    st.lists(st.floats(0, 900), max_size=4),
)
def test_prefill_grows_no_further_than_decode_can_absorb(
    rate: float, tokens: int, prefill: int, decode: int, ages: list[float]
) -> None:
    spec = service(most=64)
    history, load = flowing(rate, 300.0, prefill, decode)
    coming = PoolLoad(decode + len(ages), decode, tuple(ages))
    load = replace(load, queued_prompt_tokens=tokens, queued_requests=1, pools={**load.pools, "decode": coming})
    scaling = decide(spec, load, SPEEDS, replace(history, recommended={}), NOON)
    fit = SPEEDS["decode"].decode
    assert isinstance(fit, DecodeFit)
    # Decode takes four minutes to start and prefill one and a half: only who has started 150 s ago is there by then.
    there = decode + sum(1 for age in ages if 150 <= age <= 720)
    absorbed = there * fit.sequences_within(0.04) / (ANSWER * 0.04)
    handed_over = (scaling.pools["prefill"].replicas - 1) * 6000 / PROMPT
    assert scaling.pools["prefill"].replicas <= prefill or handed_over <= absorbed * 1.01


@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 12), st.integers(1, 4))
def test_decode_grows_no_further_than_prefill_can_hand_over(rate: float, most: int) -> None:
    spec = Spec(pools=(scaled("prefill", "prefill", 1, most), scaled("decode", "decode", 1, 64)), slo=SLO)
    history, load = flowing(rate)
    load = replace(load, queued_requests=5000, queued_prompt_tokens=5000 * PROMPT)
    scaling = decide(spec, load, SPEEDS, replace(history, recommended={}), NOON)
    handed = most * 6000 / PROMPT * ANSWER * 0.04
    assert scaling.pools["decode"].replicas <= ceil((handed + 2.4 * handed**0.5) / 52) + 1


def test_floors_open_a_cold_start_early_and_close_on_time() -> None:
    scaling = Autoscaling(16, 1, None, 0, (ScheduledFloor("0 12 * * *", 3600, 7),))
    spec = Spec(pools=(Pool("prefill", "prefill", autoscaling=scaling), scaled("decode", "decode")), slo=SLO)

    def replicas(now: float) -> int:
        return decide(spec, steady(), SPEEDS, History(), now).pools["prefill"].replicas

    assert [replicas(NOON - 91), replicas(NOON - 89), replicas(NOON + 3599)] == [1, 7, 7]
    assert replicas(NOON + 3601) == 1
    wrong = Autoscaling(16, 2, None, 0, (ScheduledFloor("0 25 * * *", 3600, 7),))
    spec = Spec(pools=(Pool("prefill", "prefill", autoscaling=wrong), scaled("decode", "decode")), slo=SLO)
    made = decide(spec, steady(), SPEEDS, History(), NOON).pools["prefill"]
    assert made.replicas == 2
    assert any("the hour '25'" in reason for reason in made.reasons)


def test_spares_come_on_top_of_what_the_load_asks_for() -> None:
    history, load = flowing(4.0, prefill=4, decode=3)
    history = replace(history, recommended={})
    bare = decide(service(window_s=0), load, SPEEDS, history, NOON)
    spared = decide(service(window_s=0, spare=1), load, SPEEDS, history, NOON)
    for name in ("prefill", "decode"):
        assert spared.pools[name].replicas == bare.pools[name].replicas + 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=40))
def test_nothing_flaps_within_the_window(sequences: list[int]) -> None:
    """As many as were needed at any time within the window, and no more; so that whatever goes up stays for one."""
    spec, history, told = service(window_s=300), History(), list[tuple[float, int]]()
    wanted = 1
    for number, running in enumerate(sequences):
        now = NOON + 20 * number
        scaling = decide(spec, steady(1, wanted, sequences=running), SPEEDS, history, now)
        history, made = scaling.history, scaling.pools["decode"]
        told.append((now, min(16, max(1, ceil(made.load - 1e-9)))))
        assert made.replicas == max(needed for at, needed in told if at > now - 300)
        wanted = made.replicas


def test_a_restarted_operator_keeps_what_there_is_for_a_window() -> None:
    first = decide(service(), steady(6, 5), SPEEDS, History(), NOON)
    assert (first.pools["prefill"].replicas, first.pools["decode"].replicas) == (6, 5)
    later = decide(service(), steady(6, 5), SPEEDS, first.history, NOON + 301)
    assert (later.pools["prefill"].replicas, later.pools["decode"].replicas) == (1, 1)


def test_without_measured_speeds_the_number_stays() -> None:
    scaling = decide(service(), steady(3, 2, sequences=500), {}, History(), NOON + 1)
    assert (scaling.pools["prefill"].replicas, scaling.pools["decode"].replicas) == (3, 2)
    assert "no warm worker" in scaling.pools["decode"].reasons[0]


def test_pools_of_fixed_size_carry_first() -> None:
    spec = Spec(
        pools=(scaled("prefill", "prefill"), Pool("kept", "decode", replicas=2), scaled("more", "decode")), slo=SLO
    )
    speeds = {"prefill": SPEEDS["prefill"], "kept": SPEEDS["decode"], "more": SPEEDS["decode"]}
    load = steady(sequences=52 * 4)
    load = replace(load, pools={"prefill": PoolLoad(1, 1), "kept": PoolLoad(2, 2), "more": PoolLoad(1, 1)})
    scaling = decide(spec, load, speeds, History(), NOON)
    assert scaling.pools.keys() == {"prefill", "more"}
    # 208 sequences, and 2.33 standard deviations more, need 4.7 workers, of which two are there for good.
    assert scaling.pools["more"].replicas == 3


def test_a_pool_at_a_limit_says_so_beside_what_it_is_from() -> None:
    """Else nobody learns why there are no more, or why there are so many."""
    spec = service(least=2, most=3)
    busy = steady(2, 2, sequences=2000)
    (most,) = [
        scaling for name, scaling in decide(spec, busy, SPEEDS, History(), NOON).pools.items() if name == "decode"
    ]
    assert most.replicas == 3
    assert "at most 3" in most.reasons
    assert any(reason.startswith("decode:") for reason in most.reasons)
    idle = decide(spec, steady(2, 2), SPEEDS, History(), NOON).pools["decode"]
    assert idle.replicas == 2
    assert not any(reason.startswith("at most") for reason in idle.reasons)
