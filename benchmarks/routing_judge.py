"""What the routing bench holds the router to. Pure: medians over seeds in, checks out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

from benchmarks.calibration_judge import KNEE_S
from benchmarks.fleet.contenders import OURS, OURSELVES
from benchmarks.fleet.goodput import Judged
from benchmarks.fleet.metrics import RunMetrics, StageMetrics
from benchmarks.rounds import Check
from benchmarks.routing_tasks import RunOutcome
from benchmarks.statistics import BySeed, Interval, over_cells, paired

_PUBLISHED_RATIO: Final = 1.97
_PUBLISHED_MARGIN: Final = 0.3
_PRECISE: Final = "llm-d precise 3:2:2"
"""The weights of the published run."""


Runs = Mapping[str, Sequence[RunOutcome]]
"""Of one scenario, by policy."""


@dataclass(frozen=True)
class StageMedians:
    """One stage of one policy, each figure its median over seeds. `attainment` is the share of offered requests that
    met the scenario's objective, `goodput_per_s` how many a second did; `tpot` is a request's mean time per token,
    `itl` is of all gaps between tokens."""

    rate: float
    tokens_per_s: float
    steady_tokens_per_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    itl_mean_s: float
    end_to_end_mean_s: float
    attainment: float
    goodput_per_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    itl_p50_s: float
    itl_p99_s: float


@dataclass(frozen=True)
class Medians:
    """All of one policy in one scenario."""

    stages: tuple[StageMedians, ...]
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    hit_ratio: float
    imbalance: float
    end_to_end_mean_s: float
    preemptions: float
    attainment: float


@dataclass(frozen=True)
class AgainstBest:
    """Ours beside the peer whose mean attainment over the common seeds is best at one rate; no `ratio` where that
    peer meets the objective for no request."""

    rate: float
    ours: BySeed
    peer: str
    theirs: BySeed
    ratio: Interval | None


def medians(outcomes: Sequence[RunOutcome]) -> Medians:
    """Over the seeds of one policy."""
    runs = [outcome.figures for outcome in outcomes]
    return Medians(
        stages=tuple(_stage_medians(outcomes, place) for place in range(len(runs[0].stages))),
        tokens_per_s=_median(runs, lambda run: run.tokens_per_s),
        ttft_p50_s=_median(runs, lambda run: run.ttft_p50_s),
        ttft_p90_s=_median(runs, lambda run: run.ttft_p90_s),
        ttft_p99_s=_median(runs, lambda run: run.ttft_p99_s),
        ttft_mean_s=_median(runs, lambda run: run.ttft_mean_s),
        hit_ratio=_median(runs, lambda run: run.hit_ratio),
        imbalance=_median(runs, lambda run: run.imbalance),
        end_to_end_mean_s=_median(runs, lambda run: run.end_to_end_mean_s),
        preemptions=_median(runs, lambda run: run.preemptions),
        attainment=median(_attainment(outcome.goodput) for outcome in outcomes),
    )


def _median(runs: Sequence[RunMetrics], of: Callable[[RunMetrics], float]) -> float:
    return median(of(run) for run in runs)


def _attainment(stages: Sequence[Judged]) -> float:
    """Over all stages."""
    return sum(stage.met for stage in stages) / max(1, sum(stage.offered for stage in stages))


def _stage_medians(outcomes: Sequence[RunOutcome], place: int) -> StageMedians:
    stages = [outcome.figures.stages[place] for outcome in outcomes]
    verdicts = [outcome.goodput[place] for outcome in outcomes]

    def middle(of: Callable[[StageMetrics], float]) -> float:
        return median(of(stage) for stage in stages)

    return StageMedians(
        rate=round(middle(lambda stage: stage.rate), 1),
        tokens_per_s=middle(lambda stage: stage.tokens_per_s),
        steady_tokens_per_s=middle(lambda stage: stage.steady_tokens_per_s),
        ttft_p90_s=middle(lambda stage: stage.ttft_p90_s),
        ttft_p99_s=middle(lambda stage: stage.ttft_p99_s),
        ttft_mean_s=middle(lambda stage: stage.ttft_mean_s),
        itl_mean_s=middle(lambda stage: stage.itl_mean_s),
        end_to_end_mean_s=middle(lambda stage: stage.end_to_end_mean_s),
        attainment=median(each.attainment for each in verdicts),
        goodput_per_s=median(each.goodput_per_s for each in verdicts),
        ttft_p50_s=median(each.ttft.p50_s for each in verdicts),
        tpot_p50_s=median(each.tpot.p50_s for each in verdicts),
        tpot_p90_s=median(each.tpot.p90_s for each in verdicts),
        tpot_p99_s=median(each.tpot.p99_s for each in verdicts),
        itl_p50_s=median(each.itl.p50_s for each in verdicts),
        itl_p99_s=median(each.itl.p99_s for each in verdicts),
    )


def goodput_against_best(runs: Runs) -> list[AgainstBest]:
    """At every rate, over the seeds that ours and each peer have in common."""
    peers = [name for name in runs if name not in OURSELVES]
    found = []
    for place, stage in enumerate(runs[OURS][0].figures.stages):
        ours = _attained(runs[OURS], place)
        shares = {name: _attained(runs[name], place) for name in peers}
        common = {
            name: {seed: share for seed, share in each.items() if seed in ours} for name, each in shares.items()
        }
        best = max(peers, key=lambda name: fmean(common[name].values()))
        theirs = common[best]
        mine = {seed: ours[seed] for seed in theirs}
        ratio = paired(mine, theirs) if any(theirs.values()) else None
        found.append(AgainstBest(round(stage.rate, 1), mine, best, theirs, ratio))
    return found


def goodput_over_rates(found: Sequence[AgainstBest]) -> Interval | None:
    """The geometric mean of the ratios over rates, over the seeds that all of them have; None where no peer met the
    objective for any request of those seeds, at any rate."""
    cells = rates_compared(found)
    return over_cells([(each.ours, each.theirs) for each in cells]) if cells else None


def rates_compared(found: Sequence[AgainstBest]) -> list[AgainstBest]:
    """Of what was found, the rates at which there is something to compare with, each with the seeds of all."""
    if not found:
        return []
    common = set.intersection(*(set(each.theirs) for each in found))
    alike = [replace(each, ours=_only(each.ours, common), theirs=_only(each.theirs, common)) for each in found]
    return [each for each in alike if any(each.theirs.values())]


def _only(figures: BySeed, seeds: set[int]) -> BySeed:
    return {seed: figure for seed, figure in figures.items() if seed in seeds}


def _attained(outcomes: Sequence[RunOutcome], place: int) -> BySeed:
    return {outcome.task.seed: outcome.goodput[place].attainment for outcome in outcomes}


def against_peers(scenario: str, runs: Runs, found: Mapping[str, Medians]) -> list[Check]:
    """At every rate: tokens/s at least 0.99 of every peer's, TTFT p90 at most 1.05 times the best peer's, or
    20 ms more. One check each, where it is closest to failing.

    Tokens per second are compared seed by seed, with the median over them: they depend on a stage's arrivals, which
    both policies of a pair have in common. They are the steady ones: a single straggler moves the others by percents.
    """
    peers = [name for name in found if name not in OURSELVES]
    tokens = min(
        (median(_ratios(runs, name, place)), name, stage.rate)
        for place, stage in enumerate(found[OURS].stages)
        for name in peers
    )
    waits = []
    for place, stage in enumerate(found[OURS].stages):
        best = min(found[name].stages[place].ttft_p90_s for name in peers)
        waits.append((stage.ttft_p90_s / max(1.05 * best, best + 0.02), stage.rate))
    most, rate = max(waits)
    least = f"{scenario}, tokens/s over a peer's, least at rate {tokens[2]:g} over {tokens[1]}"
    return [
        Check(least, tokens[0], 0.99, True),
        Check(f"{scenario}, TTFT p90 over what is allowed, most at rate {rate:g}", most, 1.0, False),
    ]


def _ratios(runs: Runs, peer: str, place: int) -> list[float]:
    """Of steady tokens/s in one stage, ours over the peer's, for each seed that both were run with."""
    theirs = {outcome.task.seed: outcome.figures.stages[place] for outcome in runs[peer]}
    return [
        outcome.figures.stages[place].steady_tokens_per_s / theirs[outcome.task.seed].steady_tokens_per_s
        for outcome in runs[OURS]
        if outcome.task.seed in theirs
    ]


def reproduction(found: Mapping[str, Medians]) -> list[Check]:
    """The published ladder: where the knees are, and how far apart the policies."""
    precise, blind = found[_PRECISE], found["random"]
    ratio = precise.tokens_per_s / blind.tokens_per_s
    low, high = _PUBLISHED_RATIO - _PUBLISHED_MARGIN, _PUBLISHED_RATIO + _PUBLISHED_MARGIN
    at_15 = next(stage for stage in blind.stages if stage.rate == 15.0)
    at_20 = next(stage for stage in blind.stages if stage.rate == 20.0)
    worst = max(stage.ttft_p90_s for stage in precise.stages)
    return [
        Check("R1 as published, precise : random in tokens/s", ratio, low, True),
        Check("R1 as published, precise : random in tokens/s (upper end)", ratio, high, False),
        Check("R1 as published, random before its knee: TTFT p90 at 15/s", at_15.ttft_p90_s, KNEE_S, False, "s"),
        Check("R1 as published, random beyond its knee: TTFT p90 at 20/s", at_20.ttft_p90_s, KNEE_S, True, "s"),
        Check("R1 as published, precise without a knee: greatest TTFT p90", worst, KNEE_S, False, "s"),
    ]


def caching(scenario: str, found: Mapping[str, Medians], bound: float) -> list[Check]:
    """Hits against one LRU pool of all capacity, balance, and the tail against hashing."""
    mine, hashing = found[OURS], found["hash 2nd block"]
    return [
        Check(f"{scenario}, hit ratio over one pool's", mine.hit_ratio / bound, 0.97, True),
        Check(f"{scenario}, max/mean work", mine.imbalance, 1.25, False),
        Check(
            f"{scenario}, TTFT p99 over that of hashing the 2nd block",
            mine.ttft_p99_s / hashing.ttft_p99_s,
            1.0,
            False,
        ),
    ]


def never_behind(scenario: str, runs: Runs, found: Mapping[str, Medians]) -> list[Check]:
    """At no rate more than 2 % behind the least loaded, in tokens/s or in mean time to the end."""
    mine, blind = found[OURS].stages, found["least loaded"].stages
    tokens = min(
        (median(_ratios(runs, "least loaded", place)), stage.rate) for place, stage in enumerate(found[OURS].stages)
    )
    ends = max((a.end_to_end_mean_s / b.end_to_end_mean_s, a.rate) for a, b in zip(mine, blind, strict=True))
    return [
        Check(f"{scenario}, tokens/s over the least loaded's, least at rate {tokens[1]:g}", tokens[0], 0.98, True),
        Check(f"{scenario}, time to the end over the least loaded's, most at rate {ends[1]:g}", ends[0], 1.02, False),
    ]
