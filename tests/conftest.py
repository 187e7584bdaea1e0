"""What holds for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine

# Examples are drawn anew in every run. Where CI is set they follow from the test instead: what is red there is red
# wherever CI is set, and because of the change. What fails must be told before pytest's own timeout of 120 s ends
# the test:
# - no phase of explaining: before Python 3.12 it traces every line of the test, some ten times its duration;
# - 20 s of shrinking, where Hypothesis takes 300. The example may stay longer than it could be;
# - the blob reproduces it exactly, however long it is.
# A machine that is busy makes every example slow: time is measured in benchmarks, never asserted by tests.
SHRINKING_S = 20
settings.register_profile(
    "tandem",
    derandomize="CI" in os.environ,
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    print_blob=True,
)
settings.load_profile("tandem")
engine.MAX_SHRINKING_SECONDS = SHRINKING_S

_HERE = Path(__file__).parent
_MARKS = {
    "cluster": ("cluster", "slow"),
    "contract": (),
    "e2e": ("slow",),
    "helm": (),
    "ray": ("ray", "slow"),
    "sim": ("slow",),
    "unit": (),
    "vllm": ("vllm", "slow"),
    "vllm_versions": ("vllm",),
}
"""What the tests of a folder are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test is marked by its folder; a folder that is not listed is a mistake."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            for mark in _MARKS[item.path.relative_to(_HERE).parts[0]]:
                item.add_marker(mark)
