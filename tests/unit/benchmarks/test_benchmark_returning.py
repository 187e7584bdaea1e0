"""Where bringing meets computing, read from times that vary, and what a worker's sentence says of it."""

from collections.abc import Callable

import pytest

from benchmarks.returning_curves import CostEstimate, Crossing, PromptPair, apart, crossing, edge, leads_of, rising
from benchmarks.returning_platforms import read_saying
from tandem.worker.fetch_policy import FetchOption, choose_fetch

LENGTHS = (32, 64, 96, 128, 192, 256, 384)
HERE = 10 / 0.09
"""Where 12 + 0.1 n and 22 + 0.01 n meet."""


def pairs(
    compute: Callable[[int], float], bring: Callable[[int], float], extra: tuple[float, ...] = (0.0,)
) -> list[PromptPair]:
    return [PromptPair(n, compute(n) + more, bring(n) + more, n) for n in LENGTHS for more in extra]


def straight(more: Callable[[int], float] = lambda n: 0.0) -> list[PromptPair]:
    return pairs(lambda n: 12 + 0.1 * n + more(n), lambda n: 22 + 0.01 * n)


def test_the_crossing_lies_between_two_lengths() -> None:
    assert crossing(leads_of(straight())) == pytest.approx(HERE)
    curved = pairs(lambda n: 12 + 1e-3 * n * n, lambda n: 22.0)
    assert crossing(leads_of(curved)) == pytest.approx(100, rel=0.05)


def test_what_does_not_change_its_sign_among_the_lengths_has_no_crossing() -> None:
    always, never = pairs(lambda n: 20.0, lambda n: 10.0), pairs(lambda n: 10.0, lambda n: 20.0)
    assert (crossing(leads_of(always)), edge(leads_of(always))) == (None, 0.0)
    assert (crossing(leads_of(never)), edge(leads_of(never))) == (None, float("inf"))
    assert crossing({}) is None
    assert Crossing.of(leads_of(always)) == Crossing(None, 0.0, 0.0)


def test_a_length_out_of_line_makes_no_crossing_of_its_own() -> None:
    found = crossing(leads_of(straight(lambda n: 3.0 if n == 64 else 0.0)))
    assert found == pytest.approx(HERE, rel=0.1)


def test_what_falls_is_pooled_with_its_neighbours_by_weight() -> None:
    assert rising([1.0, 2.0, 3.0], [1, 1, 1]) == [1.0, 2.0, 3.0]
    assert rising([1.0, 5.0, 2.0, 9.0], [1, 1, 3, 1]) == pytest.approx([1.0, 2.75, 2.75, 9.0])
    assert rising([3.0, 2.0, 1.0], [1, 1, 1]) == pytest.approx([2.0, 2.0, 2.0])
    assert rising([], []) == []


def test_a_disturbance_that_strikes_both_of_a_pair_moves_nothing() -> None:
    """Times of a busy minute count for computing and for bringing alike."""
    busy = tuple(40.0 * (number % 3 == 0) for number in range(9))
    found = Crossing.of(leads_of(pairs(lambda n: 12 + 0.1 * n, lambda n: 22 + 0.01 * n, busy)))
    assert (found.tokens, found.low, found.high) == pytest.approx((HERE, HERE, HERE))


def test_the_interval_is_as_wide_as_the_pairs_are_apart() -> None:
    def interval(spread: float) -> tuple[float, float]:
        samples = [
            PromptPair(n, 12 + 0.1 * n + spread * apart_ms, 22 + 0.01 * n, n)
            for n in LENGTHS
            for apart_ms in (-3.0, -1.5, -0.5, 0.0, 0.5, 1.5, 3.0)
        ]
        found = Crossing.of(leads_of(samples))
        return found.low, found.high

    (low, high), (lower, higher) = interval(0.5), interval(1.5)
    assert lower < low < HERE < high < higher


def test_what_was_brought_only_in_part_did_not_come_from_where_it_should() -> None:
    assert PromptPair(100, 1.0, 1.0, 96).came
    assert not PromptPair(100, 1.0, 1.0, 80).came


def test_what_a_worker_says_of_both_ways_is_read_from_its_sentence() -> None:
    brought = choose_fetch((FetchOption(4, 0.0123, "nvme"),), 0, lambda start, end: 0.02)
    assert read_saying(brought.reason, 64) == CostEstimate(64, compute_ms=20.0, bring_ms=12.3)
    left = choose_fetch((FetchOption(4, 0.03, "nvme"),), 0, lambda start, end: 0.02)
    assert read_saying(left.reason, 64) == CostEstimate(64, compute_ms=20.0, bring_ms=30.0)
    unknown = choose_fetch((FetchOption(4, 0.03, "nvme"),), 0, lambda start, end: float("inf"))
    assert read_saying(unknown.reason, 64) is None


def test_the_difference_is_relative_to_what_was_measured_and_boundless_where_nothing_was() -> None:
    assert apart(120.0, 100.0) == pytest.approx(0.2)
    assert apart(80.0, 100.0) == pytest.approx(0.2)
    assert apart(None, 100.0) == apart(100.0, None) == float("inf")
