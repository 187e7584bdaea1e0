"""Workers that come, go, differ, and are placed on by several routers at once: small cells on virtual time."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from benchmarks.fleet.fleet import FleetSettings
from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.routers import several
from benchmarks.fleet.workload import Request
from tests.worlds.held_cells import CHATS, Played, attained, play, requests_of, router, workers

FULL = 8.0
"""Chats a second and worker that four workers carry with nothing to spare."""
EVENT_S, END_S = 12.0, 36.0


def computed(requests: Iterable[Request]) -> int:
    """Prompt tokens."""
    return sum(request.computed for request in requests)


@cache
def chats(workers_: int, load: float, seed: int, settings: FleetSettings) -> Played:
    """Cached: the runs that cells are compared with are the same for several."""
    return play(settings, requests_of(CHATS, seed, load * FULL * workers_, END_S))


def waited(played: Played, chosen: Callable[[Request], bool], share: float) -> float:
    """The TTFT that this share of the chosen requests does not exceed."""
    return quantile(sorted(request.ttft_s for request in played.requests if chosen(request)), share)


# ---- scale-out ----


@pytest.mark.parametrize(("before", "more", "seed"), [(4, 1, 1), (4, 1, 4), (2, 2, 1)])
def test_workers_that_join_with_empty_caches_get_their_share_and_no_more_than_helps(
    before: int, more: int, seed: int
) -> None:
    newcomers = range(before, before + more)
    settings = workers(before + more, joins=tuple((EVENT_S, number) for number in newcomers))
    grown, without = chats(before, 1.1, seed, settings), chats(before, 1.1, seed, workers(before))

    def late(request: Request) -> bool:
        return request.arrival_s >= EVENT_S

    def there(request: Request) -> bool:
        return late(request) and request.decode in newcomers

    # It helps from the first second on, also those that are sent to the newcomers.
    assert grown.attainment(late) >= without.attainment(late)
    assert grown.attainment(there) >= without.attainment(late)
    assert waited(grown, there, 0.9) <= waited(without, late, 0.9)
    # At most a tenth of what the join gains is lost again by its beginning with nothing.
    ever = chats(before, 1.1, seed, workers(before + more))
    assert 1 - grown.attainment(late) <= 0.1 * (1 - without.attainment(late)) + 0.01
    assert ever.attainment(late) - grown.attainment(lambda request: request.arrival_s >= EVENT_S + 6) <= 0.02
    # Five seconds after a second they have had a fair share of the prompts, and at most twice that.
    soon = [request for request in grown.requests if EVENT_S + 1 <= request.arrival_s < EVENT_S + 6]
    share = computed(request for request in soon if request.decode in newcomers) / computed(soon)
    assert 0.5 <= share / (more / (before + more)) <= 2.0


@pytest.mark.parametrize(
    ("before", "more", "seed"), [(4, 1, 1), (4, 1, 2), (4, 1, 3), (4, 1, 4), (2, 2, 1), (2, 2, 2)]
)
def test_prompts_at_a_newcomer_wait_about_as_long_as_elsewhere(before: int, more: int, seed: int) -> None:
    """For the 30 s after it came; up to 3.5 times as long where it is sent whatever seems to disturb nobody there."""
    settings = workers(before + more, joins=tuple((EVENT_S, number) for number in range(before, before + more)))
    grown = play(settings, requests_of(CHATS, seed, 1.1 * FULL * before, EVENT_S + 30.0))

    def there(request: Request) -> bool:
        return request.arrival_s >= EVENT_S and request.decode >= before

    def elsewhere(request: Request) -> bool:
        return request.arrival_s >= EVENT_S and request.decode < before

    assert waited(grown, there, 0.9) <= 1.5 * waited(grown, elsewhere, 0.9)


# ---- a worker is lost ----


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_lost_worker_had_goes_on_with_all_others_alike(seed: int) -> None:
    fallen = chats(4, 0.75, seed, workers(5, losses=((EVENT_S, 0),)))
    again = [request for request in fallen.requests if request.retried]
    assert len(again) >= 10
    assert all(request.emitted == request.output_tokens for request in fallen.requests)
    tokens = [sum(r.input_tokens + r.emitted for r in again if r.decode == number) for number in range(1, 5)]
    assert max(tokens) <= 2 * fmean(tokens)
    ever = chats(4, 0.75, seed, workers(4))

    def later(request: Request) -> bool:
        return request.arrival_s >= EVENT_S + 3

    assert fallen.attainment(later) >= ever.attainment(later) - 0.01
    assert not any(view.sequences_in_flight for view in fallen.routers[0].views)


def test_hand_overs_that_lose_a_worker_end_whole() -> None:
    settings = replace(workers(6), roles=("prefill",) * 3 + ("decode",) * 3)
    requests = requests_of(CHATS, 1, 20.0, 20.0)
    played = play(replace(settings, losses=((8.0, 0), (12.0, 3))), requests)
    assert sum(request.retried for request in requests) >= 10
    assert all(request.emitted == request.output_tokens for request in requests)
    assert all(request.decode != 3 for request in requests if request.arrival_s > 12.0)
    for view in played.routers[0].views:
        assert view.sequences_in_flight == view.prompt_tokens_in_flight == view.attended_in_flight == 0
    played.fleet.check()


# ---- unlike workers ----


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_are_half_as_fast_get_half_as_much(seed: int) -> None:
    """Two workers take twice as long as the two others: together they are three."""
    settings = workers(4)
    slow = replace(settings.worker, step_time=settings.worker.step_time.paced(2.0), hardware="slow")
    unlike = chats(3, 0.75, seed, replace(settings, unlike=((2, slow), (3, slow))))
    shares = [computed(request for request in unlike.requests if request.decode in pair) for pair in ((0, 1), (2, 3))]
    assert shares[0] / sum(shares) == pytest.approx(2 / 3, rel=0.15)
    assert unlike.attainment() >= 0.97 * chats(3, 0.75, seed, workers(3)).attainment()
    costs, ids = unlike.routers[0].costs, unlike.fleet.knowledge.ids
    for other in (0, 1):
        prompts = [costs.prefill_ms(ids[number], 2_000) for number in (other, 2 + other)]
        assert prompts[1] / prompts[0] == pytest.approx(2, rel=0.1)
        steps = [costs.step_ms(ids[number], 16, 32_000) for number in (other, 2 + other)]
        assert steps[1] / steps[0] == pytest.approx(2, rel=0.1)


# ---- two routers ----


@pytest.mark.parametrize(("late_s", "lag_s"), [(0.1, 0.15), (0.5, 0.65)])
def test_two_routers_that_hear_late_of_each_other_do_no_worse_together_than_apart(
    late_s: float, lag_s: float
) -> None:
    """Against a fleet that is cut in two halves with a router each. Figures are late, and routers are told how late
    they are at most: by default, or for slow networks by their setting."""
    late, rate = replace(router(), figures_late_s=late_s, load_lag_s=lag_s), 0.85 * FULL * 4
    together, apart = list[Request](), list[Request]()
    for seed in (1, 2):
        both = play(workers(4), requests_of(CHATS, seed, rate, END_S), late, around=lambda one: several(one, 2))
        together += both.requests
        for half in range(2):
            own = [request for request in requests_of(CHATS, seed, rate, END_S) if request.number % 2 == half]
            apart += play(workers(2), own, late).requests
        for router_ in both.routers:
            assert not any(view.sequences_in_flight for view in router_.views)
    assert attained(together) >= attained(apart) - 0.01
