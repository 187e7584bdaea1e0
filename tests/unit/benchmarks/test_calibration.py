"""The simulator's calibration: what a bar is, and what published runs have that the fleet must have too."""

from dataclasses import replace

import pytest

from benchmarks import calibration_published as published
from benchmarks.calibration import concluded, decider_of, points
from benchmarks.calibration_judge import Bar, Point, judged, judged_ratios, knee, medians
from benchmarks.fleet.fleet import Fleet, FleetSettings, roles, simulate
from benchmarks.fleet.peers.llm_d import Weights
from benchmarks.fleet.peers.policy import CandidateView, PeerContext
from benchmarks.fleet.peers.published import FirstPrecise, LeastToCompute, among_holders
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios import ladder
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError

TIME = StepTime(0.01, 1e-5, 1e-8, 1e-4, 0.0)


def ladder_of(*waits: float, tokens: float = 100.0) -> list[Point]:
    return [Point(10.0 * (place + 1), tokens, wait, wait / 2) for place, wait in enumerate(waits)]


def by_name(bars: list[Bar]) -> dict[str, Bar]:
    return {bar.name: bar for bar in bars}


# ---- bars ----


def test_the_knee_is_the_first_rate_whose_requests_queue() -> None:
    assert knee(ladder_of(0.1, 4.9, 5.1, 90.0)) == 30.0
    assert knee(ladder_of(0.1, 0.2)) is None


def test_figures_at_the_margins_hold_and_those_beyond_do_not() -> None:
    theirs = ladder_of(0.2, 50.0, 100.0)
    good = [
        replace(theirs[0], tokens_per_s=114.0),
        replace(theirs[1], ttft_mean_s=1.0),
        replace(theirs[2], ttft_p90_s=71.0),
    ]
    assert all(bar.holds for bar in judged(good, theirs))
    bad = [replace(theirs[0], tokens_per_s=84.0), theirs[1], replace(theirs[2], ttft_mean_s=66.0)]
    found = by_name(judged(bad, theirs))
    assert [found[name].holds for name in ("knee", "tokens/s below the knee")] == [True, False]
    assert [found[f"{name} beyond the knee"].holds for name in ("mean TTFT", "TTFT p90")] == [False, True]
    assert found["tokens/s below the knee"].where == "at 10/s"


def test_a_calibration_is_good_only_when_bars_were_judged_and_hold() -> None:
    good, bad = Bar("a", 1.1, 1.0, 0.15), Bar("b", 1.2, 1.0, 0.15)
    assert [concluded(bars) for bars in ([good], [good, bad], [])] == [0, 1, 1]


def test_a_knee_that_is_not_there_is_missed_either_way() -> None:
    flat, bent = ladder_of(0.1, 0.2), ladder_of(0.1, 9.0)
    assert not by_name(judged(flat, bent))["knee"].holds
    assert not by_name(judged(bent, flat))["knee"].holds
    assert by_name(judged(flat, flat))["knee"].holds
    assert "mean TTFT beyond the knee" not in by_name(judged(flat, flat))


def test_ratios_are_to_the_first() -> None:
    bars = judged_ratios({"a": 40.0, "b": 10.0, "c": 4.0}, {"a": 20.0, "b": 5.0, "c": 3.0}, "a")
    assert [(bar.name, bar.ratio) for bar in bars] == [("b : a", 1.0), ("c : a", pytest.approx(2 / 3))]
    assert [bar.holds for bar in bars] == [True, False]


def test_medians_are_of_the_same_rates() -> None:
    runs = [ladder_of(wait) for wait in (1.0, 9.0, 2.0)]
    assert medians(runs) == ladder_of(2.0)
    for bad in ([], [ladder_of(1.0), ladder_of(1.0, 2.0)]):
        with pytest.raises(TandemError):
            medians(bad)


def test_published_rates_are_those_that_are_played_and_their_knees_the_known_ones() -> None:
    for shape, rows in ((ladder.R1, published.R1), (ladder.SIBLING, published.SIBLING)):
        for policy in rows.values():
            assert sorted(policy) == [rate for rate, _ in shape.stages]
    knees = {
        name: knee([Point(rate, *row) for rate, row in sorted(policy.items())])
        for name, policy in published.R1.items()
    }
    assert knees == {"random": 20.0, "load-only": 15.0, "approximate": 40.0, "precise": None}


# ---- policies of the published runs ----


def test_precise_scores_were_spread_between_the_pods_that_held_anything() -> None:
    assert among_holders([0, 15, 18]) == [0.0, 0.0, 1.0]
    assert among_holders([0, 15, 0]) == [0.0, 1.0, 0.0]
    assert among_holders([6, 12, 18]) == [0.0, 0.5, 1.0]
    assert among_holders([0, 0]) == [0.0, 0.0]
    policy = FirstPrecise(SeededEntropy(0), Weights(3, 2, 2))
    seen = [CandidateView(hbm=150, waiting=1, kv_usage=0.7), CandidateView(kv_usage=0.3)]
    assert policy.choose(PeerContext(0, tuple(range(18)), 10, 180, seen)) == 0


def test_the_least_to_compute_counts_what_is_had_locally_or_by_anybody() -> None:
    seen = [
        CandidateView(prefill_tokens=90),
        CandidateView(prefill_tokens=120, hbm=80),
        CandidateView(prefill_tokens=100),
    ]
    ask = PeerContext(0, tuple(range(10)), 10, 100, seen)
    assert LeastToCompute(SeededEntropy(0)).choose(ask) == 0
    assert LeastToCompute(SeededEntropy(0), local=True).choose(ask) == 1
    assert LeastToCompute(SeededEntropy(0), pooled=True).choose(ask) == 0


# ---- what the fleet has for them ----


class First:
    """Everything to worker 0."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.pages: list[tuple[int, int]] = []

    def place(self, request: Request, now: float) -> tuple[int, int]:
        self.pages.append(self.knowledge.workers[0].page(now))
        return 0, -1

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def fleet(front_s: float = 0.0, time: StepTime = TIME, kv_tokens: int = 10_000) -> FleetSettings:
    return FleetSettings(roles(unified=1), WorkerSettings(kv_tokens, 100, time), front_s=front_s)


def requests(*arrivals: float, shared: bool = False, patience_s: float = float("inf")) -> Workload:
    made = tuple(
        Request(n, at, tuple(range(10)) if shared else tuple(range(n << 8, (n << 8) + 10)), 100, 1_000, 50, 50)
        for n, at in enumerate(arrivals)
    )
    for each in made:
        each.patience_s = patience_s
    return Workload("x", (Stage(1.0, 1.0, made),))


def test_the_way_to_the_worker_adds_to_every_first_token() -> None:
    direct = simulate(fleet(), First, requests(0.0, 5.0)).stages[0]
    far = simulate(fleet(front_s=0.3), First, requests(0.0, 5.0)).stages[0]
    assert far.ttft_mean_s == pytest.approx(direct.ttft_mean_s + 0.3)
    assert far.itl_mean_s == pytest.approx(direct.itl_mean_s)


def test_a_request_that_is_cancelled_on_its_way_is_never_computed() -> None:
    work = requests(0.0, 1.0)
    work.stages[0].requests[0].patience_s = 0.2
    run = Fleet(fleet(front_s=0.3), First)
    run.run(work, check_every=1)
    gone, served = work.stages[0].requests
    assert (gone.cancelled_s, gone.computed, gone.ended) == (0.2, 0, False)
    assert served.ended


def test_the_metrics_page_tells_of_the_last_step_that_ended() -> None:
    made: list[First] = []

    def decider(knowledge: Knowledge) -> First:
        made.append(First(knowledge))
        return made[0]

    # A prompt takes 0.11 s: what is admitted at 0 shows after that step, and who came during it after the next.
    simulate(fleet(kv_tokens=2_500), decider, requests(0.0, 0.05, 0.06, 0.115, 0.225, 0.3))
    free = [page[1] for page in made[0].pages]
    waiting = [page[0] for page in made[0].pages]
    assert free[:3] == [2_500, 2_500, 2_500]
    assert free[3] < 1_600
    assert waiting[:4] == [0, 0, 0, 0]
    assert waiting[4] >= 1


def test_positions_that_sequences_share_are_read_faster_the_second_time() -> None:
    def tpot(reread: float, *, shared: bool) -> float:
        settings = fleet(time=replace(TIME, read_s=1e-6, reread=reread), kv_tokens=100_000)
        run = Fleet(settings, First)
        return run.run(requests(0.0, 1.0, 1.01, 1.02, shared=shared), check_every=1).stages[0].itl_mean_s

    assert tpot(0.5, shared=False) == pytest.approx(tpot(1.0, shared=False))
    assert tpot(0.5, shared=True) < 0.98 * tpot(1.0, shared=True)


def test_the_clients_count_of_tokens_is_what_is_compared() -> None:
    figures = simulate(fleet(), First, requests(0.0, 1.0))
    assert points(figures, 0.9)[0].tokens_per_s == pytest.approx(0.9 * figures.stages[0].tokens_per_s)


@pytest.mark.parametrize(("policy", "queues"), [("random", True), ("precise", False)])
def test_at_twenty_a_second_random_is_beyond_its_knee_and_precise_is_not(policy: str, queues: bool) -> None:
    work = ladder.ladder(ladder.R1, 1, ((20.0, 38.0),))
    found = points(simulate(ladder.fleet(ladder.R1), decider_of("R1", policy, 1), work), ladder.R1.counted)
    assert (knee(found) is not None) == queues
    assert found[0].tokens_per_s == pytest.approx(published.R1[policy][20.0][0], rel=0.2)
