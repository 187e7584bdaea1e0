"""The faults that `make mutants` plants are still about today's code. Whether tests notice them is for it to say."""

from pathlib import Path

import pytest

from tools.mutants import hand

ROOT = Path(__file__).resolve().parents[2]
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
