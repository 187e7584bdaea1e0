"""A property that fails tells its example before pytest ends the test for taking too long."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

NUMBERS = st.lists(st.integers(0, 2**60), min_size=40, max_size=40)


def test_what_fails_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example takes a second, on a clock that only this counts."""
    seen: list[bool] = []
    clock = SimpleNamespace(perf_counter=lambda: float(len(seen)), monotonic=lambda: float(len(seen)))
    monkeypatch.setattr(engine, "time", clock)

    @settings(database=None, derandomize=True)
    @given(NUMBERS)
    def prove(numbers: list[int]) -> None:
        seen.append(sum(numbers) % 7 != 3)
        assert seen[-1]

    with pytest.raises(AssertionError) as caught:
        prove()

    notes = "\n".join(caught.value.__notes__)
    assert "numbers=[" in notes
    assert "@reproduce_failure" in notes
    at_first, at_last = seen.index(False), len(seen)
    # 10 of looking for other failures and 20 of shrinking, and the runs that prove and tell the example.
    assert 20 < at_last - at_first < 40


def test_a_failing_property_is_not_traced_line_by_line(pytestconfig: pytest.Config) -> None:
    usual = settings()
    assert Phase.explain not in usual.phases
    assert {Phase.explicit, Phase.generate, Phase.shrink} <= set(usual.phases)
    assert float(pytestconfig.getini("timeout")) > 3 * engine.MAX_SHRINKING_SECONDS


def test_examples_are_drawn_anew_in_every_run_outside_ci() -> None:
    assert settings().derandomize is ("CI" in os.environ)
