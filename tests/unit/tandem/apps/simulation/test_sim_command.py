"""`tandem sim`'s seeds, sums and table."""

import datetime
from collections import Counter
from pathlib import Path

import pytest

from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.command import _again, _parser, _seeds, _settings, main
from tandem.apps.simulation.faults.cut import Cut
from tandem.apps.simulation.faults.engine_error import EngineError
from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.seeds import Seed
from tandem.apps.simulation.summary import Summary, kind_of, summary_of, table
from tandem.apps.simulation.world import Report, WorldSettings
from tandem.core.errors import TandemError

REPORT = Report(
    seed=3,
    outcomes=(
        Outcome("a", "done", longest_pause_s=0.5),
        Outcome("b", "failed", "deadline_exceeded"),
        Outcome("c", "done", longest_pause_s=2.25),
    ),
    faults=(Kill(1.0, "p0", 1.0), Cut(1.0, "p0"), Kill(2.0, "d0", 1.0)),
    corrupted=4,
    handed_off=5,
    refused=6,
    brought={"dram": 9},
    virtual_s=7.0,
    rounds=8,
    trace="",
    features=("store", "Redis"),
    looked_up={"found": 3},
)


def seeds(*arguments: str) -> tuple[Seed, ...]:
    return _seeds(_parser().parse_args(arguments))


def test_fixed_seeds_kept_seeds_and_todays_are_run_once_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("# why\n2  failed once\n\n700 failed, too\nplain:3 failed in a plain world\n")
    found = seeds("--seeds", "4", "--fresh", "3", "--kept", str(kept))
    today = datetime.date.today().toordinal() * 100_000
    assert [seed.number for seed in found] == [0, 1, 2, 3, 700, 3, today, today + 1, today + 2]
    assert [seed.number for seed in found if seed.plain] == [3]
    assert f"{today} to {today + 2}" in capsys.readouterr().out


def test_a_range_begins_where_it_is_told_to() -> None:
    assert seeds("--seeds", "2", "--first-seed", "40") == (Seed(40), Seed(41))
    assert seeds("--seeds", "1", "--plain") == (Seed(0, plain=True),)


def test_a_file_of_kept_seeds_that_is_none_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "kept.txt"
    bad.write_text("one failed\n")
    with pytest.raises(TandemError, match="one"):
        seeds("--kept", str(bad))
    with pytest.raises(TandemError, match="cannot be read"):
        seeds("--kept", str(tmp_path / "missing"))


def test_nothing_to_run_is_a_mistake() -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])


def test_defaults_are_the_worlds_own_and_more_requests_take_longer() -> None:
    usual = _settings(_parser().parse_args(["--requests", "60"]))
    assert usual.traffic.span_s == WorldSettings().traffic.span_s
    more = _settings(_parser().parse_args(["--requests", "240"]))
    assert more.traffic.span_s == more.faults.span_s == 4 * usual.traffic.span_s
    wider = _settings(_parser().parse_args(["--requests", "240", "--prefill", "8", "--decode", "8"]))
    assert wider.traffic.span_s == usual.traffic.span_s


def test_a_seed_is_brought_back_with_what_shaped_it() -> None:
    again = _again(_parser().parse_args(["--requests", "9", "--prefill", "0", "--seeds", "5", "--fresh", "5"]))
    assert again == "tandem sim --requests 9 --kills 1 --prefill 0"


def test_seeds_add_up() -> None:
    total = Summary()
    total.add(summary_of(REPORT))
    total.add(summary_of(REPORT))
    assert total == Summary(
        seeds=2,
        ends=Counter(done=4, deadline_exceeded=2),
        faults=Counter(kill=4, cut=2),
        handed_off=10,
        corrupted=8,
        refused=12,
        brought=Counter(dram=18),
        features=Counter({"store": 2, "Redis": 2}),
        looked_up=Counter(found=6),
        longest_pause_s=2.25,
        virtual_s=14.0,
    )


def test_kinds_are_words() -> None:
    assert kind_of(EngineError(1.0, "p0", 1.0)) == "engine error"


def test_the_table_has_a_line_for_every_sum_and_for_every_kind() -> None:
    lines = [line.rsplit("  ", 1) for line in table(summary_of(REPORT), 2.0).splitlines()]
    rows = {name.rstrip(): figure.strip() for name, figure in lines}
    assert rows["requests"] == "3"
    assert rows["  deadline_exceeded"] == "1"
    assert rows["faults"] == "3"
    assert rows["  kill"] == "2"
    assert rows["hand-offs"] == "5"
    assert rows["blocks corrupted"] == "4"
    assert rows["longest pause in a stream"] == "2.25 s"
    assert rows["requests per second"] == "2"
    assert len({len(line) for line in table(summary_of(REPORT), 2.0).splitlines()}) == 1
