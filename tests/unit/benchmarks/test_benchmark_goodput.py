"""The goodput bench: what it runs next, when it stops, where a capacity lies, and that it goes on where it was."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import goodput, goodput_capacity, goodput_judge, goodput_plan, goodput_report, goodput_runs
from benchmarks.fleet.contenders import AUTO, OURS
from benchmarks.fleet.fleet import roles
from benchmarks.fleet.goodput import recovery_s
from benchmarks.fleet.scenarios import generated
from benchmarks.fleet.workload import Listed
from benchmarks.goodput_capacity import LADDER, Capacity, capacity_of, next_probe
from benchmarks.goodput_cells import CLOSED, Cell, Options, Run, prefills
from benchmarks.goodput_code import Codes, code_files, codes, settings_hash, without_prose
from benchmarks.goodput_judge import Contest, Found
from benchmarks.goodput_plan import PEER_BAR, decided, peer_rounds, ratio_of, unsettled
from benchmarks.goodput_results import ResultsFile
from benchmarks.goodput_runs import RunResult
from benchmarks.rounds import Check, verdict
from benchmarks.statistics import Interval
from tandem.core.errors import TandemError

CELL = Cell("bimodal", 8, 0.95, 50)
Attained = Callable[[Run], float]


def result(run: Run, attainment: float, per_s: float | None = None) -> RunResult:
    per_s = 10 * attainment if per_s is None else per_s
    figures = {"attainment": attainment, "goodput_per_s": per_s, "offered": 1200.0, "offered_per_s": 10.0}
    figures |= {"ttft_p90_s": 1.0, "tpot_p90_s": 0.02, "itl_p99_s": 0.03, "tokens_per_s": 1000.0}
    return RunResult(run, 1500, 2.0, {25: figures, 50: figures}, {}, 30.0, (), "a")


def played(
    options: Options, cell: Cell, of: Attained, known: dict[Run, RunResult] | None = None
) -> dict[Run, RunResult]:
    """All that the plan wants, given what runs come to."""
    results = dict(known or {})
    while runs := list(goodput_plan.wanted(options, cell, 0.6, results)):
        assert not set(runs) & set(results), "a run that is known is wanted again"
        results |= {run: result(run, of(run)) for run in runs}
    return results


def seeds(results: dict[Run, RunResult], prefill_workers: int, contender: str = OURS) -> list[int]:
    return sorted(run.seed for run in results if (run.prefills, run.contender) == (prefill_workers, contender))


# ---- capacity ----


def searched(knees: Sequence[float], fall: float) -> tuple[Capacity, dict[tuple[int, int], float]]:
    """A search among splits 0, 1, 2, … whose attainment is 0.9 at their knees."""
    splits = range(len(knees))
    points: dict[tuple[int, int], float] = {}
    while (following := next_probe(points, splits)) is not None:
        assert following not in points, "a rung is tried again"
        split, rung = following
        points[following] = min(1.0, max(0.0, 0.9 - fall * (LADDER[rung] - knees[split])))
    return capacity_of(points, splits), points


@given(st.lists(st.floats(0.12, 1.8), min_size=1, max_size=6), st.floats(0.3, 20))
def test_the_search_finds_the_greatest_knee_of_all_splits(knees: list[float], fall: float) -> None:
    found, points = searched(knees, fall)
    assert found.scale == pytest.approx(max(knees), rel=0.1)
    assert knees[found.prefills] == pytest.approx(max(knees), rel=0.1), "knees a rung apart are alike"
    assert len(points) <= len(LADDER) + 4 * len(knees)


def test_a_split_that_is_worse_costs_one_probe() -> None:
    _, points = searched([0.7, 0.5, 0.4, 0.3], 2.0)
    assert [sum(split == each for split, _ in points) for each in (1, 2, 3)] == [1, 1, 1]


def test_a_fleet_that_carries_nothing_is_named() -> None:
    with pytest.raises(TandemError, match="no split reaches 90%"):
        searched([0.01], 50.0)


def test_capacities_are_kept_for_the_settings_they_were_measured_with(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    assert goodput_capacity.read(path, "a") == {}
    capacities = {("agents", 8, 25): Capacity(0.5, 0), ("agents", 16, 25): Capacity(0.61, 8)}
    goodput_capacity.write(path, "a", capacities)
    assert goodput_capacity.read(path, "a") == goodput_capacity.read(path, None) == capacities
    assert goodput_capacity.read(path, "b") == {}
    path.write_text("[]")
    with pytest.raises(TandemError, match="does not hold capacities"):
        goodput_capacity.read(path, "a")


# ---- plan ----

ALONE = Options(peers=(), ablations=False, auto=False)


def test_shares_are_whole_workers_on_both_sides() -> None:
    assert Options().splits(8) == (0, 2, 4, 5, 6, 7)
    assert Options().splits(16) == (0, 4, 8, 10, 12, 14)
    assert prefills(0.87, 2) == prefills(0.01, 2) == 1
    assert len(Options().cells()) == 96
    assert len(Options().compared()) == 12
    assert Options().compared() <= set(Options().cells())


def test_every_split_runs_once_and_the_best_three_with_all_seeds_while_they_are_close() -> None:
    def noisy(run: Run) -> float:
        return 0.85 + 0.02 * ((run.seed * run.seed * 5 + run.prefills * (run.seed + 3)) % 6)

    results = played(ALONE, CELL, noisy)
    assert {run.prefills for run in results if run.seed == 0} == set(ALONE.splits(8))
    rerun = {run.prefills for run in results if run.seed > 0}
    assert len(rerun) == 3
    assert all(seeds(results, split) == [0, 1, 2, 3, 4] for split in rerun)


def test_who_is_behind_in_every_seed_gets_no_more_of_them() -> None:
    results = played(ALONE, CELL, lambda run: {0: 0.9, 2: 0.8, 4: 0.7}.get(run.prefills, 0.1) + 0.001 * run.seed)
    assert seeds(results, 0) == seeds(results, 2) == [0, 1, 2]
    assert seeds(results, 4) == [0], "one of the best three, and far behind"
    assert seeds(results, 5) == [0]


def test_those_that_are_alike_stop_early() -> None:
    results = played(ALONE, CELL, lambda run: 1.0)
    assert len(results) == 6 + 2 * 3
    assert goodput_plan.best_split(ALONE, goodput_plan.split_runs(ALONE, CELL, 0.6, results)) == 0


def test_a_decision_needs_three_seeds_and_an_interval_on_one_side() -> None:
    assert not decided({0: 0.9, 1: 0.9}, {0: 0.1, 1: 0.1})
    assert decided({0: 0.9, 1: 0.9, 2: 0.91}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert not decided({0: 0.9, 1: 0.5, 2: 0.7}, {0: 0.5, 1: 0.9, 2: 0.7})
    assert decided({0: 0.97, 1: 0.99, 2: 1.0}, {0: 0.97, 1: 0.99, 2: 1.0}), "alike"
    assert decided(dict.fromkeys(range(3), 0.0), dict.fromkeys(range(3), 0.0))
    assert not decided(dict.fromkeys(range(3), 0.5), dict.fromkeys(range(3), 0.0)), "there is no ratio to nothing"


def test_a_peer_stops_at_the_bar_that_it_is_judged_by() -> None:
    near = {0: 0.88, 1: 0.9, 2: 0.93}
    ours = dict.fromkeys(range(5), 0.9)
    ratio = ratio_of(ours, near)
    assert ratio is not None
    assert ratio.low < PEER_BAR < ratio.high
    far, level = dict.fromkeys(range(3), 0.3), dict.fromkeys(range(3), 0.9)
    assert unsettled(ours, {"near": near, "far": far}) == ["near"]
    assert unsettled(ours, {"level": level, "far": far}) == ["level"], "the best of them gets all seeds"
    assert unsettled(ours, {"level": ours, "far": far}) == []
    assert unsettled(ours, {"short": {0: 0.1, 1: 0.1}, "level": ours}) == ["short"]


@given(st.lists(st.lists(st.integers(0, 100), min_size=5, max_size=5), min_size=1, max_size=4), st.data())
def test_the_best_peer_has_all_seeds_however_the_bench_was_interrupted(
    percents: list[list[int]], data: st.DataObject
) -> None:
    ours = dict.fromkeys(range(5), 0.8)

    def end(known: dict[int, dict[int, float]]) -> dict[int, dict[int, float]]:
        while wanted := peer_rounds(ours, known):
            for peer, seed in wanted:
                known[peer][seed] = percents[peer][seed] / 100
        return known

    whole = end({peer: {} for peer in range(len(percents))})
    kept = {peer: data.draw(st.integers(0, len(each))) for peer, each in whole.items()}
    assert end({peer: dict(list(each.items())[: kept[peer]]) for peer, each in whole.items()}) == whole
    ratios = {peer: ratio for peer, each in whole.items() if (ratio := ratio_of(ours, each)) is not None}
    if ratios:
        assert len(whole[min(ratios, key=lambda peer: ratios[peer].mean)]) == 5
    assert all(
        len(whole[peer]) == 5 or (len(whole[peer]) >= 3 and not ratio.low <= PEER_BAR <= ratio.high)
        for peer, ratio in ratios.items()
    )


def test_peers_run_at_unified_and_the_best_split_of_the_compared_cells_alone() -> None:
    options = Options(peers=("a", "b"))
    cell = next(iter(sorted(options.compared(), key=str)))
    best = options.splits(cell.workers)[2]
    results = played(options, cell, lambda run: 0.9 if run.prefills == best else 0.5)
    peers = {(run.contender, run.prefills) for run in results if run.contender in ("a", "b")}
    assert peers == {(name, split) for name in ("a", "b") for split in (0, best)}
    assert seeds(results, best) == [0, 1, 2, 3, 4], "ours is compared over all seeds"
    assert seeds(results, best, "a") == [0, 1, 2, 3, 4], "the best of the peers"
    assert seeds(results, 0, "a") == [0, 1, 2]
    ablated = {name: seeds(results, best, name) for name in goodput_runs.ABLATIONS}
    assert set(map(tuple, ablated.values())) == {(0, 1, 2)}
    other = next(each for each in options.cells() if each not in options.compared())
    assert {run.contender for run in played(options, other, lambda run: 0.9)} == {OURS, AUTO}


@given(st.integers(0, 40), st.integers(0, 5))
def test_an_interrupted_plan_goes_on_to_the_same_end(kept: int, salt: int) -> None:
    def drawn(run: Run) -> float:
        return 0.5 + 0.05 * ((run.seed * 7 + run.prefills * 3 + salt) % 8)

    options = Options(peers=("a",))
    cell = next(iter(sorted(options.compared(), key=str)))
    whole = played(options, cell, drawn)
    assert played(options, cell, drawn, dict(list(whole.items())[:kept])) == whole


def test_a_search_asks_for_every_seed_of_a_rung() -> None:
    key = ("bimodal", 8, 25)
    results: dict[Run, RunResult] = {}
    while runs := goodput_plan.probes_wanted(ALONE, key, results):
        assert len({run.scale for run in runs}) == 1
        results |= {run: result(run, 1.0 if run.scale < 0.7 else 0.5) for run in runs}
    points = goodput_plan.points_of(ALONE, key, results)
    assert len(results) == len(goodput_capacity.SEEDS) * len(points)
    assert 0.6 < capacity_of(points, ALONE.splits(8)).scale < 0.77
    assert {run.length for run in results} == {0.5}


@pytest.mark.parametrize("traffic", ["bursts", "shifting", "agents"])
def test_traffic_that_is_another_later_is_probed_over_the_whole_length(traffic: str) -> None:
    runs = goodput_plan.probes_wanted(replace(ALONE, length=0.3), (traffic, 8, 25), {})
    assert {run.length for run in runs} == {1.0}


# ---- verdict ----


def found(ours: dict[int, float], *theirs: dict[int, float], cell: Cell = CELL, per_s: float = 10.0) -> Found:
    """Peers `a`, `b`, … that meet so much; they answer `per_s` requests a second, ours 10."""
    contests = tuple(
        Contest(name, 0, each, {seed: per_s * share for seed, share in each.items()}, ratio_of(ours, each))
        for name, each in zip("abcdef", theirs, strict=False)
    )
    figures = {"ttft_p90_s": 1.0, "tpot_p90_s": 0.02, "itl_p99_s": 0.03, "tokens_per_s": 1000.0}
    splits = {0: {0: 0.5}, 4: ours}
    rates = {split: {seed: 10 * share for seed, share in each.items()} for split, each in splits.items()}
    one = Interval(1.5, -inf, inf, 1)
    return Found(cell, 10.0, splits, rates, 4, one, figures, {}, (), contests, ())


EVEN = dict.fromkeys(range(5), 0.9)


def test_a_cell_falls_short_only_where_its_whole_interval_does() -> None:
    unsure = found({0: 0.5, 1: 0.95, 2: 0.7, 3: 0.95, 4: 0.6}, dict.fromkeys(range(5), 0.1), EVEN)
    assert goodput_judge.best_peer(unsure) == unsure.peers[1]
    assert [check.met for check in goodput_judge.checks([unsure])] == [True, True]
    assert "geometric mean of the cells 0.822" in goodput_judge.checks([unsure])[1].name
    behind = found({seed: 0.8 + 0.001 * seed for seed in range(5)}, EVEN)
    assert [check.met for check in goodput_judge.checks([behind])] == [False, False]
    assert goodput_judge.unjudged([behind]) == goodput_judge.unjudged([unsure]) == []


def test_every_peer_is_judged_over_the_seeds_that_it_ran_with() -> None:
    """The first is surely ahead of ours on the hard seeds that it ran with, though its mean is the lower one."""
    ours = {0: 0.4, 1: 0.41, 2: 0.42, 3: 0.99, 4: 0.99}
    hard = {0: 0.5, 1: 0.51, 2: 0.52}
    cell = found(ours, hard, dict.fromkeys(range(5), 0.64))
    assert goodput_judge.best_peer(cell) == cell.peers[0]
    first = goodput_judge.checks([cell])[0]
    assert not first.met
    assert "over a" in first.name
    both = found(ours, dict.fromkeys(range(5), 0.3), hard, hard)
    assert not goodput_judge.checks([both])[0].met, "whoever is the best, each is judged"


def test_what_nobody_was_compared_with_is_not_met(capsys: pytest.CaptureFixture[str]) -> None:
    alone, one = found(EVEN), found({0: 0.9}, {0: 0.5})
    nothing = found(EVEN, dict.fromkeys(range(5), 0.0))
    two = found(EVEN, {0: 0.9, 1: 0.9})
    for cell, why in ((alone, "no peer"), (nothing, "no peer"), (one, "1 seeds"), (two, "2 seeds")):
        assert why in goodput_judge.unjudged([cell])[0]
        assert goodput_judge.checks([cell]) == []
        assert verdict([], "met", goodput_judge.unjudged([cell])) == 1
        assert capsys.readouterr().out.splitlines()[-1].startswith("NOT JUDGED: ")
    fine = found(EVEN, EVEN)
    checks = goodput_judge.checks([fine, one])
    assert len(checks) == 1, "over all cells there is one seed"
    assert verdict(checks, "met", goodput_judge.unjudged([fine, one])) == 1
    assert verdict(goodput_judge.checks([fine]), "met", goodput_judge.unjudged([fine])) == 0
    assert verdict([Check("a", 0.5, 0.9, True)], "met", ["why"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT MET: a is 0.5, not at least 0.9. NOT JUDGED: why"
    assert goodput_judge.unjudged([]) == ["there is no peer to compare with in any cell"]


def test_a_closed_loop_is_compared_by_requests_per_second() -> None:
    """A contender that answers slowly is asked less: its share is perfect, but it has done half the work."""
    agents = Cell("agents", 8, 0.95, 50)
    cell = found(EVEN, EVEN, cell=agents, per_s=20.0)
    assert goodput_judge.checks([cell])[0].value == pytest.approx(1.0), "judged by the ratio that was found"
    assert goodput_judge.checks([cell])[1].value == pytest.approx(0.5)

    def measured(run: Run) -> RunResult:
        return result(run, 0.9, per_s=5.0 if run.prefills == 4 else 4.0 if run.contender == OURS else 3.0)

    options = Options(traffics=("agents",), peers=("random",), auto=False, ablations=False)
    cell_of = next(each for each in sorted(options.compared(), key=str) if each.workers == 8)
    results: dict[Run, RunResult] = {}
    while runs := list(goodput_plan.wanted(options, cell_of, 0.6, results)):
        results |= {run: measured(run) for run in runs}
    key = (cell_of.traffic, cell_of.workers, cell_of.tpot_ms)
    (told,) = goodput_judge.found_in(options, [cell_of], {key: Capacity(0.6, 0)}, results)
    assert told.best == 4
    assert [peer.ratio and peer.ratio.mean for peer in told.peers] == pytest.approx([5 / 3, 1.0])
    assert told.attainment == pytest.approx(0.9)


def test_after_a_change_a_split_is_held_to_what_the_best_one_has_in_that_phase() -> None:
    """Changes at 40 and 70 s; the other split is the better one between them, this one afterwards."""
    this = [(10, met) for met in (10, 10, 2, 4, 9, 9, 8, 9, 10, 10)]
    other = [(10, met) for met in (10, 10, 9, 9, 9, 9, 9, 9, 5, 5)]
    run = Run("shifting", 8, 0, OURS, 0.5, 1.0, 25, 25.0, 0)
    one, two = (
        replace(result(run, 0.8), buckets={25: buckets}, changes_s=(10.0, 40.0, 70.0)) for buckets in (this, other)
    )
    assert goodput_judge.shifts_s(one, [one, two], 25) == (10.0, 0.0)
    assert goodput_judge.shifts_s(two, [one, two], 25) == (0.0, None)
    assert goodput_judge.shifts_s(result(run, 0.8), [one, two], 25) == ()


def test_the_report_tells_every_split_and_writes_no_infinity(tmp_path: Path) -> None:
    one = found(dict.fromkeys(range(5), 0.8), EVEN)
    text = goodput_report.splits([one])
    assert "4P4D" in text
    assert "1.500 [-inf, inf]" in text
    assert "0.889" in goodput_report.contests([one])
    goodput_report.write_json(tmp_path / "g.json", {}, {}, [one], goodput_judge.checks([one]))
    told = json.loads((tmp_path / "g.json").read_text())
    assert told["cells"][0]["over_unified"] == [1.5, None, None]
    assert told["cells"][0]["splits"]["4"]["3"] == 0.8


def test_results_are_found_again_but_not_those_of_other_code(tmp_path: Path) -> None:
    path = tmp_path / "build" / "results.jsonl"
    run = Run("agents", 8, 2, OURS, 0.5, 1.0, 25, 25.0, 3)
    kept = replace(result(run, 0.7), buckets={25: [(3, 2), (0, 0)], 50: []}, changes_s=(40.0,))
    file = ResultsFile(path, Codes("a", "a"))
    file.add(kept)
    file.add(result(replace(run, seed=4), 0.8))
    with path.open("a") as half:
        half.write('{"run": {"traf')
    again = ResultsFile(path, Codes("a", "a"))
    assert again.results == {**file.results}
    assert again.results[run].by_arrival(25)[0].met == 2
    again.add(result(replace(run, seed=5), 0.9))
    assert len(ResultsFile(path, Codes("a", "a")).results) == 3
    assert ResultsFile(path, Codes("b", "b")).results == {}
    assert len(path.with_name("results.jsonl.old1").read_text().splitlines()) == 4
    assert ResultsFile(path, Codes("c", "c")).results == {}
    assert len(path.with_name("results.jsonl.old1").read_text().splitlines()) == 4, "what was put aside stays"
    assert path.with_name("results.jsonl.old2").read_text() == '{"codes": {"fixed": "b", "auto": "b"}}\n'
    path.write_text('{"codes": {"fixed": "b", "auto": "b"}}\nnothing\n{}\n')
    with pytest.raises(TandemError, match="line 2"):
        ResultsFile(path, Codes("b", "b"))


def test_results_of_fixed_splits_outlive_a_change_of_the_planner(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    fixed = Run("agents", 8, 2, OURS, 0.5, 1.0, 25, 25.0, 3)
    following = replace(fixed, prefills=0, contender=AUTO)
    file = ResultsFile(path, Codes("a", "p"))
    file.add(result(fixed, 0.7))
    file.add(replace(result(following, 0.8), code="p"))
    assert ResultsFile(path, Codes("a", "q")).results == {fixed: result(fixed, 0.7)}
    assert len(path.with_name("results.jsonl.old1").read_text().splitlines()) == 3, "what it loses is put aside"
    assert ResultsFile(path, Codes("a", "q")).results == {fixed: result(fixed, 0.7)}
    assert not path.with_name("results.jsonl.old2").exists()
    assert ResultsFile(path, Codes("b", "q")).results == {}
    path.write_text('{"code": "of an older bench"}\n{}\n')
    assert ResultsFile(path, Codes("a", "q")).results == {}


def test_results_are_kept_by_all_code_that_a_run_imports() -> None:
    """A process of its own: this one has imported more."""
    listed = (
        "import sys, benchmarks.goodput_runs\nfor each in sys.modules.values(): print(vars(each).get('__file__'))"
    )
    root = Path(goodput.__file__).parent.parent
    told = subprocess.run([sys.executable, "-c", listed], cwd=root, capture_output=True, text=True, check=True).stdout
    imported = {Path(line).resolve() for line in told.splitlines() if line.startswith(f"{root}/")}
    mine = {path for path in imported if "site-packages" not in path.parts and path.name != "__init__.py"}
    assert root / "tandem" / "core" / "slo.py" in mine
    assert mine - {root / "benchmarks" / "goodput_code.py"} <= {path.resolve() for path in code_files()}


def test_prose_changes_no_hash_and_a_figure_does() -> None:
    code = 'def f(x):\n    """Doubles."""\n    return x in {"a", "b"} or 2 * x\n'
    assert without_prose(code) == without_prose("# why\n\n" + code.replace("Doubles", "Multiplies by two"))
    for before, after in (("2 *", "3 *"), ("(x)", "(*, x)"), ('"b"', '"c"'), ("return", "yield")):
        assert without_prose(code) != without_prose(code.replace(before, after))


def test_a_bench_begins_with_the_results_that_came_with_it(tmp_path: Path) -> None:
    kept, mine = tmp_path / "kept.jsonl.gz", tmp_path / "build" / "mine.jsonl"
    goodput._begin_with(kept, mine)
    assert not mine.exists()
    ResultsFile(tmp_path / "kept.jsonl", Codes("a", "a")).add(replace(result(SHORT, 0.7), code="a"))
    kept.write_bytes(gzip.compress((tmp_path / "kept.jsonl").read_bytes()))
    goodput._begin_with(kept, mine)
    assert set(ResultsFile(mine, Codes("a", "a")).results) == {SHORT}
    assert not ResultsFile(mine, Codes("b", "b")).results, "they are of other code"
    goodput._begin_with(kept, mine)
    assert not ResultsFile(mine, Codes("a", "a")).results, "there are some of one's own"
    kept.write_bytes(kept.read_bytes()[:-20])
    with pytest.raises(TandemError, match="cannot be unpacked"):
        goodput._begin_with(kept, tmp_path / "other.jsonl")


def test_a_run_of_code_that_has_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    file = ResultsFile(tmp_path / "results.jsonl", Codes("a", "a"))
    changed = replace(result(SHORT, 0.7), code="b")
    with pytest.raises(TandemError, match="the code has changed since the bench began"):
        file.add(changed)
    assert file.results == ResultsFile(file.path, Codes("a", "a")).results == {}
    assert goodput_runs.carry_out(SHORT).code == codes().fixed


# ---- runs ----

SHORT = Run("shifting", 8, 0, OURS, 0.4, 1.0, 50, 50.0, 1, length=0.1)


def first_requests(run: Run) -> list[tuple[float, tuple[int, ...], int]]:
    """When the first twenty come and what they ask for; of sessions their first turns."""
    workload = goodput_runs.traffic_of(run)[0]
    source = workload.stages[0].source or Listed(workload.requests)
    taken: list[tuple[float, tuple[int, ...], int]] = []
    while len(taken) < 20 and (at_s := source.next_s) is not None:
        request = source.take()
        taken.append((at_s, request.blocks, request.output_tokens))
    return taken


@pytest.mark.parametrize("traffic", Options().traffics)
def test_contenders_see_the_same_traffic_and_other_seeds_other(traffic: str) -> None:
    run = replace(SHORT, traffic=traffic)
    ours = first_requests(run)
    assert len(ours) > 5
    assert first_requests(replace(run, prefills=4, contender="random", itl_ms=25.0)) == ours
    assert first_requests(replace(run, seed=2)) != ours
    assert goodput_runs.unit_rate(traffic, 16, 50, 1) == pytest.approx(2 * goodput_runs.unit_rate(traffic, 8, 50, 1))
    assert goodput_runs.unit_rate(traffic, 8, 25, 1) < goodput_runs.unit_rate(traffic, 8, 50, 1)


@pytest.mark.parametrize("traffic", [name for name in Options().traffics if name not in CLOSED])
def test_seeds_of_different_mixes_load_a_fleet_alike(traffic: str) -> None:
    """Their work, in seconds of so many workers, is the share of time that was asked for."""
    time_of = generated.fleet(roles(unified=1)).worker.step_time
    for seed in (1, 2, 3):
        workload = goodput_runs.traffic_of(replace(SHORT, traffic=traffic, seed=seed, length=0.5))[0]
        busy = goodput_runs.work_s(workload.requests, time_of, 0.05) / 8 / workload.stages[0].duration_s
        assert busy == pytest.approx(SHORT.scale, rel=0.25)
    rates = [goodput_runs.unit_rate("prompt_heavy", 8, 50, seed) for seed in (1, 2, 3)]
    assert max(rates) > 2 * min(rates), "though they differ"


def test_an_overload_lasts_its_minute_and_recovery_is_counted_from_its_end() -> None:
    run = replace(SHORT, traffic="answer_heavy", scale=0.5, surge=1.375, length=0.2)
    over = goodput_runs.carry_out(run)
    assert over.changes_s == (18.0,)
    assert over.begin_s == 6.0
    buckets = over.by_arrival(50)
    inside = sum(each.offered for each in buckets if 6.0 <= each.begin_s < 16.0) / 10
    outside = [each.offered for each in buckets if each.begin_s >= 21.0]
    assert inside > 1.15 * sum(outside[:-1]) / (5 * (len(outside) - 1))
    assert recovery_s(buckets, 18.0, 1.0) is not None
    for tpot_ms in (25, 50):
        told, by_arrival = over.judged[tpot_ms], over.by_arrival(tpot_ms)
        assert sum(each.offered for each in by_arrival) == told["offered"] > 0
        assert sum(each.met for each in by_arrival) == told["met"] > 0


def test_a_run_is_deterministic_and_tells_what_it_measured() -> None:
    one, same = (goodput_runs.carry_out(replace(SHORT, scale=1.0)) for _ in range(2))
    assert replace(one, cpu_s=0.0) == replace(same, cpu_s=0.0)
    figures = one.judged[50]
    assert figures["ended"] == figures["offered"] > 0
    assert 0 < figures["itl_p50_s"] <= figures["itl_p99_s"]
    assert 0 < one.judged[25]["met"] < figures["met"], "steps of this load take longer than the tighter bound"
    assert one.attainment(50) == one.compared(50) == pytest.approx(figures["met"] / figures["offered"])
    agents = goodput_runs.carry_out(replace(SHORT, traffic="agents"))
    assert agents.compared(50) == agents.judged[50]["goodput_per_s"] > 1.0 >= agents.attainment(50)


@pytest.mark.timeout(600)  # half a minute of a processor, of which a busy machine gives a tenth
def test_four_short_cells_from_traffic_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--results", str(tmp_path / "r.jsonl"), "--json", str(tmp_path / "r.json"), "--jobs", "1"]
    handler = signal.getsignal(signal.SIGTERM)
    assert goodput.main(["--ci", *where]) == 0
    text = capsys.readouterr().out
    assert "recovery after an overload or a change" in text
    assert [cell["traffic"] for cell in json.loads((tmp_path / "r.json").read_text())["cells"]] == [
        *("bimodal", "answer_heavy", "agents", "shifting")
    ]
    assert signal.getsignal(signal.SIGTERM) is handler, "the bench gives it back"
    before = (tmp_path / "goodput-ci.jsonl").read_text()
    assert goodput.main(["--ci", *where]) == 0
    assert (tmp_path / "goodput-ci.jsonl").read_text() == before, "everything was known"


def test_a_bench_without_peers_judges_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capacities = tmp_path / "capacity.json"
    goodput_capacity.write(capacities, settings_hash(), {("bimodal", 8, 50): Capacity(0.4, 0)})
    where = ["--results", str(tmp_path / "r.jsonl"), "--capacities", str(capacities), "--jobs", "1"]
    small = ["--traffic", "bimodal", "--workers", "8", "--loads", "0.5", "--tpot", "50", "--splits", "0"]
    assert (
        goodput.main([*where, *small, "--length", "0.05", "--seeds", "1", "--without", "peers,ablations,auto"]) == 1
    )
    assert capsys.readouterr().out.splitlines()[-1] == "NOT JUDGED: there is no peer to compare with in any cell"
