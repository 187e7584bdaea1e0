"""What the policies compete on is what was published, and the bars are judged as they are written."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from benchmarks import routing_judge as judge
from benchmarks import routing_tasks
from benchmarks.fleet.contenders import EQUAL_TERMS, OURS
from benchmarks.fleet.fleet import DeciderOf, FleetSettings, simulate
from benchmarks.fleet.goodput import Judged, Quantiles
from benchmarks.fleet.metrics import RunMetrics, StageMetrics
from benchmarks.fleet.ours import ours
from benchmarks.fleet.peers.catalogue import PEERS
from benchmarks.fleet.scenarios import conversation, decode_bound, ladder
from benchmarks.fleet.workload import Request, Workload
from benchmarks.routing_report import by_rate, goodput, goodput_lines, overview, write_json
from benchmarks.routing_tasks import SCENARIOS, RoutingTask, RunOutcome, carry_out
from tandem.engine.simulated.presets import preset


def test_the_ladder_is_the_published_one() -> None:
    work = ladder.ladder(ladder.R1, 0)
    warm_up, *stages = work.stages
    assert (len(stages), len(warm_up.requests)) == (16, 750)
    assert [stage.rate for stage in stages][::15] == [3.0, 60.0]
    assert sum(len(stage.requests) for stage in stages) == 16_334
    assert len({request.blocks for request in warm_up.requests}) == 750
    assert len({request.blocks[:15] for request in warm_up.requests}) == 150
    assert {(request.input_tokens, request.output_tokens) for request in work.requests} == {(7_578, 1_000)}
    last = stages[-1].requests
    assert len(last) / last[-1].arrival_s == pytest.approx(60)
    assert [request.blocks for request in last[:750]] == [request.blocks for request in warm_up.requests]
    assert [request.blocks for request in last[750:]] == [request.blocks for request in last[:750]]
    assert [request.number for request in work.requests] == list(range(17_084))


def test_equal_seeds_give_equal_ladders_and_others_others() -> None:
    def arrivals(seed: int) -> list[float]:
        return [request.arrival_s for request in ladder.ladder(ladder.R1, seed, ((20.0, 5.0),)).requests]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_the_sibling_has_its_own_stages_and_pods_that_hold_bf16_weights() -> None:
    work = ladder.ladder(ladder.SIBLING, 0)
    assert [(stage.rate, len(stage.requests)) for stage in work.stages[::3]] == [
        (9.0, 270),
        (5.0, 600),
        (10.0, 700),
        (20.0, 1_000),
    ]
    assert {request.input_tokens for request in work.requests} == {9_000}
    pod = preset(ladder.SIBLING.model)
    left = 0.9 * 4 * 80 * 2**30 - 70.6e9 * 2
    assert 0.85 * left < ladder.SIBLING.kv_tokens * pod.kv_token_bytes < left


@pytest.mark.parametrize("shape", [ladder.R1, ladder.SIBLING])
def test_the_bench_plays_every_ladder_with_its_own_stages(
    shape: ladder.LadderShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is played is caught before it is simulated."""
    played: list[list[float]] = []

    def caught(settings: FleetSettings, decider: DeciderOf, workload: Workload) -> RunMetrics:
        played.append([stage.rate for stage in workload.stages if not stage.warm_up])
        raise InterruptedError

    monkeypatch.setattr(routing_tasks, "simulate", caught)
    for quick in (False, True):
        with pytest.raises(InterruptedError):
            carry_out(RoutingTask(shape.name, "random", 0, Path(), quick))
    whole, quick_rates = played
    assert whole == [rate for rate, _ in shape.stages]
    assert quick_rates == [rate for rate in whole if rate in (15.0, 20.0, 40.0, 60.0)]


def test_the_published_stack_computes_prompts_as_fast_as_its_routers_were_told() -> None:
    """llm-d's recipe for these pods says 15,928 tokens/s."""
    settings = ladder.fleet(ladder.R1)
    assert 7_200 / settings.worker.step_time.prompt(0, 7_200) == pytest.approx(15_928, rel=0.05)
    assert settings.front_s > 0


def write_trace(path: Path, requests: int) -> None:
    lines = []
    for number in range(requests):
        own = [1 + number % 7, 100 + number]
        line = {"timestamp": 3_000 * (number // 5), "input_length": 1_300, "output_length": 7, "hash_ids": [0, *own]}
        lines.append(msgspec.json.encode(line))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join(lines))


def test_the_trace_is_spread_inside_its_buckets_and_played_faster_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "FILE", "traces/small.jsonl")
    write_trace(tmp_path / "traces" / "small.jsonl", 90)
    shape = replace(conversation.SHAPES[0], speeds=(1.0, 2.0))
    work = conversation.conversation(conversation.load(tmp_path), shape, 1)
    slow, fast = work.stages
    assert (len(slow.requests), len(fast.requests)) == (45, 45)
    assert slow.duration_s == pytest.approx(2 * fast.duration_s, rel=0.1)
    gaps = [b.arrival_s - a.arrival_s for a, b in zip(slow.requests, slow.requests[1:], strict=False)]
    assert min(gaps) > 0
    assert fmean(gaps) == pytest.approx(0.6, rel=0.1)
    assert slow.requests[0].leading(3) == 1_300


def test_one_pool_finds_what_lru_would() -> None:
    def request(number: int, *blocks: int) -> Request:
        return Request(number, 0.0, blocks, 10, 10 * len(blocks), 1, 1)

    requests = [request(0, 1, 2), request(1, 1, 2, 3), request(2, 9), request(3, 1, 2)]
    assert conversation.one_pool_hit_ratio(requests, 1000) == pytest.approx((20 + 19) / 80)
    # Three blocks: the tail 3 went when 9 came, and the head stayed; two: the fourth finds the first block only.
    assert conversation.one_pool_hit_ratio(requests, 30) == pytest.approx((20 + 19) / 80)
    assert conversation.one_pool_hit_ratio(requests, 20) == pytest.approx((20 + 10) / 80)


def test_the_decode_bound_mix_is_short_in_and_long_out() -> None:
    requests = decode_bound.decode_bound(0, rates=(20.0,), stage_s=20.0).requests
    assert fmean(request.input_tokens for request in requests) == pytest.approx(224, rel=0.05)
    assert fmean(request.output_tokens for request in requests) == pytest.approx(1_000, rel=0.05)
    assert {request.blocks[:2] for request in requests} == {(0, 1)}
    assert 0.84 < len({request.blocks for request in requests}) / len(requests) < 0.97


# ---- the bars ----


def run(tokens: float, wait_s: float, seed: int = 0, **more: float) -> RunOutcome:
    """Two stages, at rates 15 and 20."""
    stage = StageMetrics(15.0, 9, tokens, tokens, wait_s, wait_s, wait_s, wait_s, 0.02, more.get("end_s", 10.0), 30.0)
    figures = RunMetrics(
        stages=(stage, replace(stage, rate=20.0)),
        hit_ratio=more.get("hit_ratio", 0.3),
        imbalance=more.get("imbalance", 1.1),
        preemptions=0,
        ttft_p50_s=wait_s,
        ttft_p90_s=wait_s,
        ttft_p99_s=wait_s,
        ttft_mean_s=wait_s,
        tokens_per_s=tokens,
        end_to_end_mean_s=10.0,
        virtual_s=60.0,
        requests=18,
    )
    met = more.get("met", 9)
    times = Quantiles(wait_s, wait_s, wait_s)
    judged = Judged(
        10, 9, int(met), met / 30, tokens, times, Quantiles(0.02, 0.03, 0.04), Quantiles(0.02, 0.03, 0.04), ()
    )
    return RunOutcome(
        RoutingTask("x", "", seed, Path(), False), figures, 1.0, (judged, replace(judged, met=int(met) // 2))
    )


def found(tokens: float, wait_s: float, **more: float) -> judge.Medians:
    return judge.medians([run(tokens, wait_s, 0, **more)])


def against(**policies: tuple[float, float]) -> list[bool]:
    runs = {OURS if name == "ours" else name: [run(*each)] for name, each in policies.items()}
    checks = judge.against_peers("x", runs, {name: judge.medians(each) for name, each in runs.items()})
    return [check.met for check in checks]


@pytest.mark.parametrize(
    ("tokens", "wait_s", "met"),
    [
        (100.0, 0.1, [True, True]),
        (98.9, 0.1, [False, True]),
        (100.0, 0.121, [True, False]),
        (99.0, 0.12, [True, True]),
    ],
)
def test_ours_is_held_to_the_best_peer_at_every_rate(tokens: float, wait_s: float, met: list[bool]) -> None:
    assert against(ours=(tokens, wait_s), a=(100, 0.2), b=(90, 0.1)) == met


def test_a_large_best_wait_allows_five_percent() -> None:
    assert against(ours=(100, 10.4), a=(100, 10.0)) == [True, True]
    assert against(ours=(100, 10.6), a=(100, 10.0)) == [True, False]


def test_tokens_are_compared_seed_by_seed_over_the_seeds_that_both_have() -> None:
    mine = [run(tokens, 0.1, seed) for seed, tokens in enumerate((100, 200, 300, 1, 1))]
    peers = [run(tokens, 0.1, seed) for seed, tokens in ((2, 310), (1, 190), (0, 99))]
    runs = {OURS: mine, "a": peers}
    checks = judge.against_peers("x", runs, {name: judge.medians(each) for name, each in runs.items()})
    assert checks[0].value == pytest.approx(100 / 99)


def test_the_ladder_is_reproduced_when_ratio_and_knees_are() -> None:
    precise = "llm-d precise 3:2:2"
    blind = found(50, 1.0)
    knee = replace(blind, stages=(blind.stages[0], replace(blind.stages[1], ttft_p90_s=40.0)))
    assert all(check.met for check in judge.reproduction({precise: found(98, 0.3), "random": knee}))
    flat = judge.reproduction({precise: found(70, 6.0), "random": blind})
    assert [check.met for check in flat] == [False, True, True, False, False]


def test_caches_are_held_to_one_pool_balance_and_the_tail_of_hashing() -> None:
    others = {"hash 2nd block": found(100, 2.0)}
    good = judge.caching("x", {OURS: found(100, 1.0, hit_ratio=0.292), **others}, 0.3)
    assert all(check.met for check in good)
    bad = judge.caching("x", {OURS: found(100, 2.1, hit_ratio=0.29, imbalance=1.3), **others}, 0.3)
    assert not any(check.met for check in bad)


def test_decode_bound_work_is_never_two_percent_behind() -> None:
    for tokens, end_s, met in ((98.5, 10.1, True), (97.5, 10.3, False)):
        runs = {OURS: [run(tokens, 0.1, end_s=end_s)], "least loaded": [run(100, 0.1)]}
        medians = {name: judge.medians(each) for name, each in runs.items()}
        assert [check.met for check in judge.never_behind("x", runs, medians)] == [met, met]


def test_every_scenario_has_ours_and_known_peers() -> None:
    for scenario in SCENARIOS:
        assert scenario.policies[0] == OURS
        assert set(scenario.policies[1:]) <= {EQUAL_TERMS, *PEERS}


def test_the_report_names_the_best_peer_and_writes_short_numbers(tmp_path: Path) -> None:
    policies = {OURS: found(100, 0.1234567), "a": found(110, 0.2), "b": found(90, 0.05)}
    assert overview("x", policies).splitlines()[1].startswith("a")
    assert [line.split() for line in by_rate("x", policies).splitlines()][1] == [
        *("15", "100", "110", "a", "0.123", "0.050", "b"),
    ]
    hashed = {**policies, "hash 2nd block": found(100, 0.1)}
    write_json(tmp_path / "out.json", {"seeds": 5}, {"x": policies}, judge.caching("x", hashed, 0.3))
    written = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert (written["runs"][0]["policy"], written["runs"][0]["ttft_p90_s"]) == (OURS, 0.1235)
    assert written["runs"][0]["stages"]["rate"] == [15.0, 20.0]
    assert (written["runs"][0]["stages"]["attainment"], written["runs"][0]["attainment"]) == ([0.9, 0.4], 0.65)
    assert written["runs"][0]["stages"]["tpot_p99_s"] == [0.04, 0.04]
    assert [check["met"] for check in written["checks"]] == [True, True, False]


def test_goodput_is_told_beside_the_best_peer_by_seed(tmp_path: Path) -> None:
    runs = {
        OURS: [run(100, 0.1, seed, met=met) for seed, met in enumerate((8, 6, 4, 10))],
        "a": [run(100, 0.1, seed, met=met) for seed, met in enumerate((4, 3, 2))],
        "b": [run(100, 0.1, seed, met=2) for seed in range(3)],
    }
    first, second = judge.goodput_against_best(runs)
    assert (first.peer, first.ours) == ("a", {0: 0.8, 1: 0.6, 2: 0.4})
    assert first.ratio is not None
    assert (first.ratio.mean, first.ratio.low, first.ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert second.ratio is not None
    assert second.ratio.low < second.ratio.mean == pytest.approx(0.9 / 0.4)
    text = goodput("x", judge.medians(runs[OURS]), [first, second]).splitlines()
    assert text[1].split()[:6] == ["15", "0.23", "0.600", "0.300", "a", "2.000"]
    assert text[-1].startswith("geometric mean of the ratios over 2 of 2 rates, 3 seeds: 2.12")

    nothing = judge.goodput_against_best({name: [run(1, 1, met=0)] for name in (OURS, "a")})
    assert [each.ratio for each in nothing] == [None, None]
    assert judge.goodput_over_rates(nothing) is None
    single = judge.goodput_against_best({name: each[:1] for name, each in runs.items()})
    write_json(tmp_path / "out.json", {}, {}, [], goodput_lines("x", single))
    written = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert (written["goodput"][0]["ratio"], written["goodput"][0]["low"], written["goodput"][0]["seeds"]) == (
        2,
        None,
        1,
    )


def test_a_run_is_judged_stage_by_stage_and_warm_ups_are_not() -> None:
    outcome = carry_out(RoutingTask("decode-bound", "least loaded", 0, Path(), True))
    assert len(outcome.goodput) == len(outcome.figures.stages)
    for stage, judged in zip(outcome.figures.stages, outcome.goodput, strict=True):
        assert judged.offered == judged.ended == stage.requests
        assert judged.ttft.p90_s == stage.ttft_p90_s


def test_on_the_ladder_prefixes_stay_and_nobody_waits() -> None:
    """What is brought pushes out as much as what is computed: a policy that forgets it spreads prefixes until none
    stays anywhere, and queues grow for half a minute."""
    workload = ladder.ladder(ladder.R1, 1, ((20.0, 12.0), (40.0, 12.0)))
    figures = simulate(ladder.fleet(ladder.R1), ours(ladder.ours_settings(ladder.R1), 1), workload)
    assert figures.hit_ratio > 0.9
    assert figures.ttft_p90_s < 0.5
