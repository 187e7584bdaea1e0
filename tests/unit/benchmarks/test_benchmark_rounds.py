"""What measurements beside other work rest on: the interval of a median, and sides that weigh the same."""

from benchmarks.priority import level_of
from benchmarks.rounds import median_interval


def test_the_interval_of_a_median_holds_it_and_is_narrow_for_rounds_that_agree() -> None:
    low, high = median_interval([0.38, 0.9, 0.95, 1.0, 1.04, 1.1, 1.39])
    assert 0.38 <= low < 1.0 < high <= 1.39
    assert median_interval([0.99] * 5) == (0.99, 0.99)
    assert median_interval([0.38, 1.0, 1.39]) == median_interval([0.38, 1.0, 1.39]), "it always draws the same"


def test_sessions_of_one_side_weigh_together_as_one_does() -> None:
    assert level_of(1) == -19
    for sessions in range(1, 9):
        assert 0.85 < sessions * 1.25 ** -(level_of(sessions) + 19) < 1.15
