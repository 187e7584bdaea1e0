"""The faults that `make mutants` plants are still about today's code. Whether tests notice them is for it to say."""

from pathlib import Path

import pytest

from tools.mutants import hand, sample

ROOT = Path(__file__).resolve().parents[3]
FAULTS = hand.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.harm for fault in FAULTS])
def test_a_fault_of_the_hand_set_can_be_planted(fault: hand.Fault) -> None:
    compile(fault.planted(), fault.file, "exec")
    for test in fault.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text, f"{test} is gone"


def test_a_fault_whose_code_has_moved_on_is_told() -> None:
    fault = hand.Fault("pyproject.toml", "no such line", "", ("x",), "none")
    with pytest.raises(ValueError, match="has 0 times, and should have once"):
        fault.planted()


@pytest.mark.parametrize(
    ("tally", "fails"),
    [
        # A few may be chance.
        (sample.MutantTally(22, 18, 0), False),
        (sample.MutantTally(0, 2, 0), False),
        (sample.MutantTally(12, 28, 0), True),
        (sample.MutantTally(0, 10, 0), True),
        # Lines that only larger tests run say nothing, nor does nothing.
        (sample.MutantTally(6, 1, 33), False),
        (sample.MutantTally(0, 0, 40), False),
    ],
)
def test_changed_lines_fail_where_it_is_sure_that_too_few_faults_were_noticed(
    tally: sample.MutantTally, fails: bool
) -> None:
    assert (tally.run_share_at_most < 0.6) is fails


def test_a_group_answers_for_lines_that_its_tests_do_not_run() -> None:
    assert sample.MutantTally(6, 2, 2).share == 0.6


def test_every_pattern_of_a_group_names_a_file() -> None:
    """A file that moves must not take its tests out of a sample without a word."""
    patterns = [(group.name, pattern) for group in sample.groups() for pattern in (*group.files, *group.tests)]
    assert len(patterns) > 50
    assert [each for each in patterns if not any(ROOT.glob(each[1]))] == []
