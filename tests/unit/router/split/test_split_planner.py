"""The planner of a split: what it changes, when, and what it never does. Traffic is generated, time is told."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement.learning.transfer_costs import TransferCosts
from router.settings import SplitSettings
from router.split.choice import choose_prefill_workers, held_at_unified, step_towards
from router.split.knee import Knee
from router.split.offered import Offered
from router.split.outlook import Replay, held_s
from router.split.plan import Planner, watched_looks
from router.split.record import Record
from router.split.values import ObservedRequest, Outlook, Split, SplitOption, WorkerStatus, WorkTimes
from router.split.window import repeated, settled, since_change
from router.split.work import demands, present, steady
from tandem.core.entropy import SeededEntropy, unit
from tandem.core.slo import Slo

SLO = Slo(ttft_s=2.0, tpot_s=0.025)
TIMES = WorkTimes(
    step_s=0.011,
    sequence_s=55e-6,
    position_s=28e-9,
    prompt_token_s=44e-6,
    prompt_position_s=0.9e-9,
    transfer_latency_s=0.002,
    transfer_token_s=1 / 150_000,
    max_batched_tokens=2048,
)
LOOK_S = SplitSettings().look_s


def workers(count: int = 8, running: int = 0, queued: int = 0, **fields: object) -> list[WorkerStatus]:
    alike = WorkerStatus("", False, running, running * 1000, queued, 40_000, 30_000, 16, True)
    return [alike._replace(worker_id=f"w{place}", **fields) for place in range(count)]  # type: ignore[arg-type]


def prompts(seed: int, begin_s: float, end_s: float, rate: float = 28.0) -> list[ObservedRequest]:
    """Long prompts, short answers: too many for unified workers whose steps are held to 25 ms."""
    return drawn(seed, begin_s, end_s, rate, 5_000, 80)


def answers(seed: int, begin_s: float, end_s: float, rate: float = 26.0) -> list[ObservedRequest]:
    """Short prompts, long answers: half of the workers cannot decode them in time."""
    return drawn(seed, begin_s, end_s, rate, 300, 1_000)


def drawn(seed: int, begin_s: float, end_s: float, rate: float, prompt: int, answer: int) -> list[ObservedRequest]:
    entropy, found, at_s = SeededEntropy(seed, "split"), list[ObservedRequest](), begin_s
    while True:
        at_s += 2 * unit(entropy) / rate
        if at_s >= end_s:
            return found
        tokens = int(prompt * (0.5 + unit(entropy)))
        found.append(ObservedRequest(at_s, tokens, tokens, float(answer)))


def look(planner: Planner, now: float, standings: Sequence[WorkerStatus], slo: Slo = SLO) -> Split:
    for _ in planner.look(now, standings, TIMES, slo):
        pass
    return planner.split


def run(
    planner: Planner, requests: Iterable[ObservedRequest], until_s: float, now: float = 0.0
) -> list[tuple[float, Split]]:
    """Look every five seconds; every request is reported."""
    found, waiting = [], list(requests)
    while now < until_s:
        now += LOOK_S
        while waiting and waiting[0].arrival_s <= now:
            planner.seen(waiting.pop(0))
        found.append((now, look(planner, now, workers())))
    return found


def expected(way: SplitOption, requests: Sequence[ObservedRequest]) -> float:
    replay = Replay(way, demands(requests, TIMES, SLO), present(workers(), requests, TIMES), TIMES, SLO)
    for _ in replay.run():
        pass
    return replay.outlook().attainment


def test_nothing_seen_changes_nothing() -> None:
    planner = Planner(SplitSettings())
    assert all(not split.prefills for _, split in run(planner, [], 60.0))
    assert planner.moves == 0


def test_prompts_that_unified_workers_cannot_take_get_workers_of_their_own() -> None:
    planner = Planner(SplitSettings())
    split = run(planner, prompts(1, 0.0, 60.0), 60.0)[-1][1]
    assert len(split.prefills) >= 4
    assert "of 8 take prompts" in split.reason
    assert "%" in split.reason
    assert expected(SplitOption(len(split.prefills), 0.025), prompts(2, 0.0, 60.0)) > expected(
        SplitOption(0, 0.025), prompts(2, 0.0, 60.0)
    )


@pytest.mark.parametrize("traffic", [prompts, answers])
@pytest.mark.parametrize("seed", range(2))
def test_traffic_that_stays_moves_little(
    seed: int, traffic: Callable[[int, float, float], list[ObservedRequest]]
) -> None:
    planner = Planner(SplitSettings())
    splits = run(planner, traffic(seed, 0.0, 180.0), 180.0)
    late = [split.prefills for at_s, split in splits if at_s > 60.0]
    changes = sum(before != after for before, after in pairwise(late))
    assert changes <= 2, f"{changes} changes in two minutes"


@pytest.mark.parametrize("seed", range(2))
def test_a_shift_is_followed_within_thirty_seconds(seed: int) -> None:
    planner = Planner(SplitSettings())
    run(planner, prompts(seed, 0.0, 120.0), 120.0)
    assert len(planner.split.prefills) >= 4
    after = run(planner, answers(seed, 120.0, 150.0), 150.0, now=120.0)
    later = answers(seed + 10, 0.0, 60.0)
    best = max(expected(SplitOption(prefills, 0.025), later) for prefills in range(8))
    assert expected(SplitOption(len(after[-1][1].prefills), 0.025), later) >= 0.95 * best


def test_all_unified_is_always_looked_at() -> None:
    planner = Planner(SplitSettings())
    for request in prompts(1, 0.0, 30.0):
        planner.seen(request)
    look(planner, 30.0, workers())
    assert any(each.way.prefills == 0 for each in planner.outlooks)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_split_never_names_a_worker_that_is_gone(data: st.DataObject) -> None:
    planner = Planner(SplitSettings())
    for request in prompts(3, 0.0, 30.0):
        planner.seen(request)
    for turn in range(1, 6):
        there = data.draw(st.sets(st.integers(0, 7)))
        standings = [each for each in workers() if int(each.worker_id[1:]) in there]
        split = look(planner, 30.0 + turn, standings)
        assert split.prefills <= {each.worker_id for each in standings}
        assert not split.prefills or len(split.prefills) < len(standings)


def test_forecasts_that_are_off_are_not_followed_for_ever_longer() -> None:
    """Nothing is met in truth but where all are unified: the planner goes back there, ever more rarely leaves it."""
    planner, waiting = Planner(SplitSettings()), prompts(1, 0.0, 300.0)
    splits, now = list[tuple[float, Split]](), 0.0
    while now < 300.0:
        now += LOOK_S
        came = [seen for seen in waiting if seen.arrival_s <= now]
        waiting = waiting[len(came) :]
        unified = not planner.split.prefills
        for seen in came:
            planner.seen(seen)
        splits.append((now, look(planner, now, workers())))
        for seen in came:
            planner.outcome(seen.arrival_s, unified)
    assert planner.forecast_error is not None
    back = [at_s for (_, before), (at_s, after) in pairwise(splits) if before.prefills and not after.prefills]
    again = [at_s for (_, before), (at_s, after) in pairwise(splits) if after.prefills and not before.prefills]
    assert back
    for place, at_s in enumerate(back):
        later = [each for each in again if each > at_s]
        assert not later or later[0] - at_s >= SplitSettings().distrust_s * 2**place


@pytest.mark.parametrize(
    "fields", [{"itl_target": False}, {"barred": "spans two nodes"}], ids=["no ITL target", "barred"]
)
def test_workers_that_cannot_be_split_stay_unified_and_say_so(fields: dict[str, object]) -> None:
    planner = Planner(SplitSettings())
    for request in prompts(1, 0.0, 30.0):
        planner.seen(request)
    split = look(planner, 30.0, workers(**fields))  # type: ignore[arg-type]
    assert not split.prefills
    assert split.reason == held_at_unified(workers(**fields))  # type: ignore[arg-type]


def test_without_bounds_there_is_no_itl_target() -> None:
    planner = Planner(SplitSettings())
    for request in answers(1, 0.0, 30.0):
        planner.seen(request)
    assert look(planner, 30.0, workers(), Slo()).itl_s is None


def test_who_begins_has_the_fewest_streams_and_who_stops_the_fewest_prompts() -> None:
    standings = [
        each._replace(running=running, queued_prompt_tokens=queued)
        for each, running, queued in zip(workers(4), (9, 3, 5, 1), (0, 0, 700, 300), strict=True)
    ]
    assert choose_prefill_workers(2, frozenset(), standings) == {"w3", "w1"}
    assert choose_prefill_workers(1, frozenset({"w2", "w3"}), standings) == {"w2"}
    assert choose_prefill_workers(2, frozenset({"w0"}), standings) == {"w0", "w3"}


@settings(max_examples=25, deadline=None)
@given(
    prefills=st.integers(0, 7),
    running=st.integers(0, 60),
    queued=st.integers(0, 50_000),
    seed=st.integers(0, 1000),
    rate=st.floats(0.5, 60.0),
)
def test_a_replay_ends_and_its_figures_make_sense(
    prefills: int, running: int, queued: int, seed: int, rate: float
) -> None:
    requests = prompts(seed, 0.0, 20.0, rate)
    standings = workers(running=running, queued=queued)
    replay = Replay(
        SplitOption(prefills, 0.025), demands(requests, TIMES, SLO), present(standings, requests, TIMES), TIMES, SLO
    )
    turns = sum(1 for _ in replay.run())
    outlook = replay.outlook()
    assert turns <= 400
    assert 0.0 <= outlook.attainment <= 1.0
    assert outlook.tokens_per_s >= 0.0
    assert replay.met <= replay.ended <= len(requests)


def test_the_same_requests_come_to_the_same() -> None:
    requests = prompts(1, 0.0, 30.0)
    assert expected(SplitOption(3, 0.025), requests) == expected(SplitOption(3, 0.025), requests)


def test_fewer_requests_are_not_met_less_often() -> None:
    light, heavy = prompts(1, 0.0, 60.0, 8.0), prompts(1, 0.0, 60.0, 60.0)
    for prefills in (0, 4):
        assert expected(SplitOption(prefills, 0.025), light) >= 0.99 > expected(SplitOption(prefills, 0.025), heavy)


def test_a_change_of_prompts_is_found_and_one_of_their_rate_is_none() -> None:
    before, after = answers(1, 0.0, 50.0), prompts(1, 50.0, 60.0)
    since = since_change([*before, *after], 20)
    assert 49.0 <= since[0].arrival_s <= 51.0
    assert len(since) < len(before)
    steady = [*prompts(1, 0.0, 50.0, 10.0), *prompts(2, 50.0, 60.0, 40.0)]
    assert since_change(steady, 20) == steady


def test_short_traffic_is_repeated_at_its_own_rate() -> None:
    requests = prompts(1, 0.0, 8.0)
    longer = repeated(requests, 60.0, 1500)
    assert longer[-1].arrival_s - longer[0].arrival_s >= 25.0
    assert [seen.arrival_s for seen in longer] == sorted(seen.arrival_s for seen in longer)
    assert repeated(prompts(1, 0.0, 60.0), 60.0, 10_000) == prompts(1, 0.0, 60.0)


def test_few_that_happen_to_be_alike_are_no_change() -> None:
    """Of a mix of long and short prompts two dozen short ones may well come together."""
    mixed = [seen for seed in range(8) for seen in prompts(seed, 10.0 * seed, 10.0 * seed + 9.0, 5.0)]
    short = [ObservedRequest(80.0 + place, 300, 300, 80.0) for place in range(24)]
    alternating = [
        seen._replace(prompt_tokens=300, uncached_tokens=300) if place % 2 else seen._replace(uncached_tokens=9_000)
        for place, seen in enumerate(mixed)
    ]
    assert len(since_change([*alternating, *short], 20)) == len(alternating) + 24


@settings(max_examples=20, deadline=None)
@given(rate=st.floats(2.0, 20.0), answer=st.integers(50, 600), prefills=st.integers(0, 4))
def test_a_fleet_that_has_long_had_its_load_stands_as_the_sums_say(rate: float, answer: int, prefills: int) -> None:
    """Sums against the replay itself, from an idle fleet for two minutes."""
    requests = drawn(3, 0.0, 120.0, rate, 1_000, answer)
    work, idle = demands(requests, TIMES, SLO), present(workers(), requests, TIMES)
    way = SplitOption(prefills, 0.025)
    begin = steady(way, work, idle, TIMES)
    replay = Replay(way, work, begin, TIMES, SLO)
    lone = Replay(way, work, idle, TIMES, SLO)
    for each in (replay, lone):
        for _ in each.run():
            pass
    assert begin.prompt_s == 0.0
    assert replay.outlook().attainment == pytest.approx(lone.outlook().attainment, abs=0.1)
    per_s = len(requests) / 120.0 * answer
    assert (begin.rows + 1) / per_s >= TIMES.step_s
    assert (begin.rows - 1) / per_s <= 0.025


def test_where_all_ways_hold_the_one_that_carries_most_is_taken_in_good_time() -> None:
    """At this load unified workers hold everything still, at a quarter more they do not."""
    planner = Planner(SplitSettings())
    requests = prompts(1, 0.0, 60.0, 16.0)
    assert expected(SplitOption(0, 0.025), requests) > 0.98
    assert expected(SplitOption(0, 0.025), prompts(1, 0.0, 60.0, 22.0)) < 0.9
    assert run(planner, requests, 60.0)[-1][1].prefills


def test_where_all_is_held_nothing_is_changed_for_more_load_and_it_is_when_some_is_missed() -> None:
    """The same traffic, of which all, and all but one in thirty, have been in the objective."""
    splits = {}
    for every in (1_000_000, 30):
        planner = Planner(SplitSettings())
        requests, told = prompts(1, 0.0, 60.0, 16.0), 0
        for now in range(5, 61, 5):
            for request in requests:
                if now - 5 <= request.arrival_s < now:
                    planner.seen(request)
            look(planner, float(now), workers())
            while told < len(requests) and requests[told].arrival_s < now:
                planner.outcome(requests[told].arrival_s, told % every != every - 1)
                told += 1
        splits[every] = planner.split
    assert not splits[1_000_000].prefills
    assert "nothing is at stake" in splits[1_000_000].reason
    assert splits[30].prefills


def test_clients_that_begin_at_once_do_not_tell_how_fast_they_go_on() -> None:
    burst, then = prompts(1, 0.0, 1.0, 200.0), prompts(2, 1.0, 20.0, 5.0)
    later = settled([*burst, *then], 0.0, 20.0, 60.0, 20)
    assert [seen for seen in then if seen.arrival_s >= 10.0] == later
    assert settled([*burst, *then], 0.0, 20.0, 60.0, 90) == [*burst, *then], "too few came later"
    assert settled([*burst, *then], 0.0, 20.0, 20.0, 20) == [*burst, *then], "that has lasted for a window"
    assert settled([], 0.0, 20.0, 60.0, 20) == []


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_all_that_is_kept_counts_once_traffic_has_lasted(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a planner keeps may be less than a window of it."""
    planner, counted = Planner(SplitSettings(requests_max=200)), list[tuple[int, int]]()

    def noted(requests: Sequence[ObservedRequest], *told: Any) -> Sequence[ObservedRequest]:
        counted.append((len(requests), len(settled(requests, *told))))
        return settled(requests, *told)

    monkeypatch.setattr("router.split.plan.settled", noted)
    for begin_s, end_s in ((7.0, 11.0), (11.0, 57.0), (57.0, 67.0)):
        for request in prompts(1, begin_s, end_s, 50.0):
            planner.seen(request)
        for _ in planner.look(end_s, workers(), TIMES, SLO, share):
            pass
    (first, later), _, (kept, all_of_it) = counted
    assert 0 < later < first, "it has just begun"
    assert kept == all_of_it == 200


def test_light_traffic_is_left_alone() -> None:
    planner = Planner(SplitSettings())
    assert all(not split.prefills for _, split in run(planner, prompts(1, 0.0, 120.0, 5.0), 120.0))


def test_where_nothing_can_be_held_the_way_that_carries_most_is_taken_at_once() -> None:
    """With what waits every way misses everything for the next half minute."""
    planner = Planner(SplitSettings())
    for request in prompts(1, 0.0, 30.0):
        planner.seen(request)
    split = look(planner, 30.0, workers(running=30, queued=400_000))
    assert max(each.attainment for each in planner.outlooks) < 0.1
    assert len(split.prefills) >= 4


def test_the_first_look_comes_with_the_twentieth_request_and_one_at_once_after_a_change() -> None:
    planner, looked = Planner(SplitSettings()), list[float]()
    traffic = [*answers(1, 100.0, 150.0), *prompts(1, 150.0, 170.0)]
    look(planner, 99.0, workers())
    assert not planner.due(100.0)
    for request in traffic:
        planner.seen(request)
        now = request.arrival_s
        early = planner.due(now)
        if early or (looked and now - looked[-1] >= LOOK_S):
            looked.append(now)
            look(planner, now, workers())
    assert looked[0] == traffic[SplitSettings().requests_min - 1].arrival_s
    gaps = [after - before for before, after in pairwise(looked)]
    assert min(gaps) >= 1.0
    assert any(150.0 < at_s < 153.0 for at_s in looked), "a change is not waited for"
    assert len([at_s for at_s in looked if 110.0 <= at_s < 150.0]) <= 8, "traffic that stays is looked at in its time"


def test_workers_that_are_held_at_unified_are_not_looked_at_all_the_time() -> None:
    planner, early = Planner(SplitSettings()), 0
    for request in [*answers(1, 0.0, 20.0), *prompts(1, 20.0, 40.0)]:
        planner.seen(request)
    for now in range(40, 340):
        if planner.due(float(now)):
            early += 1
        if early or now % 5 == 0:
            look(planner, float(now), workers(1))
    assert early <= 1


def test_traffic_after_silence_is_new() -> None:
    planner = Planner(SplitSettings())
    for request in answers(1, 0.0, 30.0):
        planner.seen(request)
    for now in range(30, 200, 5):
        look(planner, float(now), workers())
    for request in prompts(1, 200.0, 211.0):
        planner.seen(request)
        if planner.due(request.arrival_s):
            look(planner, request.arrival_s, workers())
    assert planner.last_look_s is not None
    assert planner.last_look_s < 202.0
    look(planner, 203.5, workers())
    assert "when traffic has lasted 4 s" in planner.split.reason
    look(planner, 206.5, workers())
    assert len(planner.split.prefills) >= 4


def test_where_nothing_is_carried_the_load_is_asked_lower_and_a_look_stays_short() -> None:
    """Six times what the fleet carries, slowly told: replays at a low load last no longer than others."""
    planner = Planner(SplitSettings())
    for request in drawn(1, 0.0, 60.0, 24.0, 15_000, 80):
        planner.seen(request)
    for now in (60.0, 61.0, 62.0):
        turns = sum(1 for _ in planner.look(now, workers(), TIMES, SLO))
        assert turns <= 1_000
    assert len(planner.split.prefills) >= 4
    for request in answers(1, 62.0, 72.0):
        planner.seen(request)
    look(planner, 72.0, workers())
    assert planner._knee.load >= 1.0, "other traffic is asked about at its own load"


def test_a_goal_that_is_far_off_is_approached_and_never_by_staying() -> None:
    outlooks = [Outlook(SplitOption(prefills, 0.025), 0.5, 1.0) for prefills in (6, 0, 1, 2)]
    assert step_towards(SplitOption(6, 0.025), SplitOption(0, 0.025), outlooks, 2) == SplitOption(1, 0.025)
    assert step_towards(SplitOption(6, 0.025), SplitOption(0, 0.025), outlooks[:2], 2) == SplitOption(2, 0.025)
    assert step_towards(SplitOption(1, 0.025), SplitOption(6, 0.025), outlooks, 2) == SplitOption(4, 0.025)


def test_refusals_count_as_outcomes_and_not_as_what_was_replayed() -> None:
    """Of those that were placed all held: the forecast of all is right, however many were refused."""
    planner = Planner(SplitSettings())
    waiting, now = answers(1, 0.0, 120.0, 4.0), 0.0
    while now < 120.0:
        now += LOOK_S
        came = [seen for seen in waiting if seen.arrival_s <= now]
        waiting = waiting[len(came) :]
        for seen in came:
            planner.seen(seen)
        look(planner, now, workers())
        for seen in came:
            planner.outcome(seen.arrival_s, True)
            planner.outcome(seen.arrival_s, False, placed=False)
    assert planner.forecast_error is not None
    assert planner.forecast_error < 0.05


def test_a_planner_that_rests_books_nothing_to_what_it_had_decided() -> None:
    planner = Planner(SplitSettings())
    for seen in answers(1, 0.0, 60.0, 4.0):
        planner.seen(seen)
    for now in (50.0, 55.0, 60.0):
        look(planner, now, workers())
    planner.rest()
    for request in answers(1, 50.0, 60.0, 4.0):
        planner.outcome(request.arrival_s, False)
    compared = list(planner._record._observed.values())
    assert compared == [], "what came under another's split is nobody's here"


def test_steps_of_workers_that_take_prompts_may_take_longer() -> None:
    split = Split(frozenset({"w1"}), 0.025, "")
    assert (split.steps_s("w0"), split.steps_s("w1")) == (0.025, 0.1)
    assert Split(frozenset({"w1"}), None, "").steps_s("w1") is None


@settings(max_examples=50)
@given(st.lists(st.floats(1e6, 1e12), max_size=200))
def test_what_a_way_between_workers_carries_is_what_most_pulls_stay_below(rates: list[float]) -> None:
    costs = TransferCosts(1e9)
    for rate in rates:
        before = costs.carried()
        costs.observe("peer", 1 << 20, rate)
        assert before * 0.98 <= costs.carried() <= before * 1.1, "one pull changes little"


def test_pulls_that_wait_do_not_make_a_way_look_slow() -> None:
    costs = TransferCosts(1e9)
    for place in range(400):
        costs.observe("peer", 1 << 20, 8e9 if place % 4 == 0 else 1e9)
    assert costs.rate("peer") < 5e9
    assert costs.carried() == pytest.approx(8e9, rel=0.25)


def test_prefixes_that_a_split_has_no_memory_for_speak_against_it() -> None:
    """Conversations of 6 k tokens that come again when 3 M others have: eight workers of 640 k tokens hold them,
    four do not."""

    def turns(distance: float, prefills: int) -> list[ObservedRequest]:
        return [
            seen._replace(
                prompt_tokens=6_000,
                uncached_tokens=368,
                answer_tokens=60.0,
                distances=(distance,) * 5,
                marks=(),
                prefills=prefills,
            )
            for seen in prompts(4, 0.0, 30.0, rate=60.0)
        ]

    def carried(distance: float) -> dict[int, float]:
        requests = turns(distance, 0)
        offered = Offered(present(workers(), requests, TIMES), TIMES, SLO)
        offered.add(requests)
        for _ in offered.remember():
            pass
        found: dict[SplitOption, float] = {}
        for _ in Knee().carried(found, [SplitOption(0, 0.025), SplitOption(4, 0.025)], offered, TIMES, SLO):
            pass
        return {way.prefills: share for way, share in found.items()}

    near, far = carried(100_000.0), carried(3_000_000.0)
    assert near[0] == far[0]
    assert near[4] > far[4]


def test_exports_that_leave_room_for_few_prompts_keep_the_workers_that_take_them() -> None:
    """Prompts of 5 k tokens that take .3 s to be fetched: with room for one at a time a worker waits for each."""
    requests = prompts(1, 0.0, 30.0, 22.0)
    slow = TIMES._replace(transfer_latency_s=0.3)

    def promised(export_blocks: int) -> float:
        standings = workers(export_blocks=export_blocks)
        work = demands(requests, slow, SLO)
        replay = Replay(SplitOption(3, 0.025), work, present(standings, requests, slow), slow, SLO)
        for _ in replay.run():
            pass
        return replay.outlook().attainment

    assert promised(0) == promised(20_000)
    assert promised(400) < promised(20_000) - 0.2


@given(
    tokens=st.integers(1, 100_000),
    service_s=st.floats(0.001, 20.0),
    handing_s=st.floats(0.0, 20.0),
    share=st.floats(0.01, 1.0),
)
def test_no_prompt_keeps_a_worker_for_less_than_computing_it_or_more_than_until_it_is_fetched(
    tokens: int, service_s: float, handing_s: float, share: float
) -> None:
    demand = demands([ObservedRequest(0.0, tokens, tokens, 10.0)], TIMES, SLO)[0]._replace(handing_s=handing_s)
    pool = present(workers(), [], TIMES)._replace(kv_tokens=100_000.0)
    held = held_s(demand, service_s, pool._replace(export_tokens=share * 100_000))
    assert service_s <= held <= service_s + handing_s
    assert held_s(demand, service_s, pool) == service_s
    if tokens > share * 100_000:
        assert held == held_s(demand, service_s, pool._replace(export_tokens=100_000.0)), "it may take the pool"


def test_what_is_hopeless_is_left_at_the_first_look() -> None:
    planner = Planner(SplitSettings())
    splits = run(planner, prompts(1, 0.0, 10.0), 10.0)
    assert [bool(split.prefills) for _, split in splits] == [True, True]


@pytest.mark.parametrize("begin_s", [0.6, 0.9, 1.5])
def test_otherwise_the_first_change_comes_at_the_second_look(begin_s: float) -> None:
    """Also where traffic began shortly after the planner had looked for the first time."""
    planner = Planner(SplitSettings())
    splits = run(planner, prompts(1, begin_s, 20.0), 20.0)
    assert [bool(split.prefills) for _, split in splits] == [False, True, True, True]


@given(here=st.floats(0.0, 1.0), best=st.floats(0.0, 1.0))
def test_how_long_traffic_is_watched_falls_with_what_is_at_stake(here: float, best: float) -> None:
    assert watched_looks(here, best) <= watched_looks(1.0, best) == watched_looks(1.0, 1.0)
    assert watched_looks(0.0, 1.0) <= watched_looks(here, best)
    if best - here < 0.5 or here >= 0.5:
        assert watched_looks(here, best) >= 1.8, "one look proves only much"


def test_few_workers_that_decode_have_few_ways_in() -> None:
    """Prompts that are found in a cache where they are computed have to be moved all the same: 30 prompts of 8 k
    tokens a second, of which 1 k is computed, are twice what one way in carries, and half of it four ways."""
    requests = [ObservedRequest(place / 36, 8_000, 1_000, 40.0) for place in range(1_500)]
    assert expected(SplitOption(7, 0.025), requests) < 0.5
    assert expected(SplitOption(4, 0.025), requests) > 0.95


def test_a_change_is_held_no_longer_than_the_traffic_was_that_it_rests_on() -> None:
    planner = Planner(SplitSettings())
    run(planner, prompts(1, 0.0, 20.0), 20.0)
    assert planner.split.prefills
    before = planner.moves
    run(planner, answers(1, 20.0, 50.0), 50.0, now=20.0)
    assert planner.moves > before
    assert len(planner.split.prefills) <= 2


def sessions(begin_s: float, end_s: float, rate: float, count: int, marked: bool = True) -> list[ObservedRequest]:
    """So many conversations of 10 k tokens that come one after the other, again and again; the first turns are told
    as if their prompts had been computed before."""
    names = [tuple(bytes([session % 256, session // 256, place]) for place in range(9)) for session in range(count)]
    return [
        ObservedRequest(
            begin_s + turn / rate, 10_000, 300, 60.0, marks=names[turn % count] if marked else (), prefills=0
        )
        for turn in range(int((end_s - begin_s) * rate))
    ]


def test_marks_that_are_told_tell_what_a_split_has_no_memory_for() -> None:
    """300 conversations, 2.8 M tokens: eight workers remember them, four of them would not."""

    def carried(marked: bool) -> dict[int, float]:
        planner = Planner(SplitSettings())
        for request in sessions(0.0, 30.0, 50.0, 300, marked):
            planner.seen(request)
            if planner.due(request.arrival_s):
                look(planner, request.arrival_s, workers())
        found: dict[int, float] = {}
        for turn in range(6):
            look(planner, 30.0 + turn / 100, workers())
            found |= {each.way.prefills: each.carried for each in planner.outlooks if each.way.itl_s == 0.025}
        return found

    known, unknown = carried(True), carried(False)
    assert known[0] == unknown[0]
    fours = [prefills for prefills in known.keys() & unknown.keys() if prefills in (3, 4, 5)]
    assert fours
    assert all(known[prefills] < unknown[prefills] for prefills in fours)


def test_what_comes_between_two_looks_is_remembered_however_much_it_is() -> None:
    planner = Planner(SplitSettings(requests_max=100))
    for request in sessions(0.0, 30.0, 50.0, 300):
        planner.seen(request)
    look(planner, 30.0, workers())
    assert {len(each.distances) for each in planner._seen} == {9}
    (least, *_), (most, *_) = (sorted(each.distances) for each in (planner._seen[0], planner._seen[-1]))
    assert least == pytest.approx(300 * 9 * 1024, rel=0.05)
    assert most == pytest.approx(300 * 9 * 1024, rel=0.05)


@pytest.mark.parametrize("rate", [10.0, 400.0])
def test_a_better_way_is_taken_at_once_when_traffic_is_known_whatever_its_rate(rate: float) -> None:
    """And one that is a little better when as much time has passed as there was traffic behind the last change."""
    planner = Planner(SplitSettings())
    for request in sessions(0.0, 30.0, rate, 300, marked=False):
        planner.seen(request)
    ways = [Outlook(SplitOption(prefills, 0.025), 0.5, 1.0) for prefills in (0, 1, 2)]

    def decide(now: float, ahead: SplitOption, by: float) -> int:
        here = SplitOption(len(planner.split.prefills), 0.025)
        ordered = sorted(ways, key=lambda each: each.way != here)
        scores = {each.way: by * (each.way == ahead) for each in ways}
        planner._decide(now, workers(), ordered, scores, SLO)
        return len(planner.split.prefills)

    planner._began_s = 10.0
    assert decide(30.0, SplitOption(1, 0.025), 0.2) == 1, "by much"
    assert decide(35.0, SplitOption(2, 0.025), 0.05) == 1, "by little, seen once"
    assert decide(45.0, SplitOption(2, 0.025), 0.05) == 1, "twenty seconds after the change, as it rests on twenty"
    assert decide(51.0, SplitOption(2, 0.025), 0.05) == 2
    assert decide(70.0, SplitOption(1, 0.025), 0.05) == 2
    assert decide(75.0, SplitOption(1, 0.025), 0.05) == 2, "forty-one seconds were behind that one"
    assert decide(93.0, SplitOption(1, 0.025), 0.05) == 1


def test_what_ends_after_a_change_tells_of_what_was_in_force_when_it_came() -> None:
    """The first requests of an idle fleet are quick; those behind them end when another split is in force."""
    record = Record(SplitSettings())
    record.begin(0.0, workers(), SplitOption(0, 0.025))
    for place in range(25):
        record.outcome(place / 10, True, True)
    record.clear()
    record.begin(5.0, workers(), SplitOption(6, 0.025))
    for place in range(200):
        record.outcome(2.5 + place / 100, False, True)
        record.outcome(5.0 + place / 10, place % 5 > 1, True)
    record._too_good = 2
    assert record.fall_back(60.0, 6, 8) is None, "unified workers held 25 of 225, six for prompts 120 of 200"


def test_few_outcomes_are_no_reason_to_fall_back() -> None:
    record = Record(SplitSettings())
    record.begin(0.0, workers(), SplitOption(0, 0.025))
    for _ in range(20):
        record.outcome(1.0, True, True)
    record.begin(5.0, workers(), SplitOption(6, 0.025))
    for place in range(400):
        record.outcome(6.0, place % 5 > 0, True)
    record._too_good = 2
    assert record.fall_back(60.0, 6, 8) is None
    for _ in range(200):
        record.outcome(1.0, True, True)
    record._too_good, record._distrusted_s = 2, 0.0
    assert record.fall_back(60.0, 6, 8) == 0
