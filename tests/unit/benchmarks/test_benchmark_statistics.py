"""Ratios by seed and their intervals, against values worked out by hand and from tables of Student's t."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import over_cells, paired, t_975
from tandem.core.errors import TandemError


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_students_t_is_that_of_the_tables() -> None:
    assert t_975(0) == inf
    assert [round(t_975(freedom), 3) for freedom in (1, 4, 14, 30)] == [12.706, 2.776, 2.145, 2.042]
    assert [t_975(freedom) for freedom in (31, 40, 60, 120)] == pytest.approx(
        [2.0395, 2.0211, 2.0003, 1.9799], abs=5e-4
    )


def test_a_ratio_to_a_constant_is_a_mean_with_its_t_interval() -> None:
    found = paired(by_seed(1.0, 2.0, 3.0, 4.0, 5.0), by_seed(2.0, 2.0, 2.0, 2.0, 2.0))
    # The values over 2 have a deviation of 0.7906; 2.7764 x 0.7906 / sqrt 5 = 0.9816.
    assert found.mean == pytest.approx(1.5)
    assert (found.low, found.high) == pytest.approx((0.5184, 2.4816), abs=1e-4)
    assert found.seeds == 5


def test_what_is_hard_for_both_cancels_out() -> None:
    theirs = by_seed(0.2, 0.9, 0.5, 0.7, 0.1)
    found = paired({seed: 1.1 * value for seed, value in theirs.items()}, theirs)
    assert (found.mean, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_only_seeds_that_both_have_count_and_one_seed_has_no_bounds() -> None:
    found = paired({1: 3.0, 2: 4.0, 7: 100.0}, {2: 2.0, 1: 1.5, 8: 1.0})
    assert (found.mean, found.seeds) == (2.0, 2)
    single = paired({1: 3.0}, {1: 2.0})
    assert (single.mean, single.low, single.high) == (1.5, -inf, inf)


def test_a_seed_in_which_the_other_met_nothing_does_no_harm() -> None:
    assert paired(by_seed(0.5, 0.5), by_seed(0.0, 1.0)).mean == 1.0


def test_nothing_met_in_any_seed_is_no_certainty() -> None:
    found = paired(by_seed(0.0, 0.0), by_seed(0.5, 0.5))
    assert (found.mean, found.low, found.high) == (0.0, 0.0, inf)
    nothing, something = by_seed(0.0, 0.0), by_seed(1.0, 1.0)
    cells = over_cells([(nothing, something), (something, something)])
    assert (cells.mean, cells.low, cells.high) == (0.0, 0.0, inf)
    assert over_cells([(by_seed(0.0), by_seed(1.0))]).high == inf, "one seed bounds nothing"


def test_figures_without_a_ratio_are_named() -> None:
    with pytest.raises(TandemError, match="no seed in common"):
        paired({1: 1.0}, {2: 1.0})
    with pytest.raises(TandemError, match="0 in all 2 seeds"):
        paired(by_seed(1.0, 1.0), by_seed(0.0, 0.0))
    with pytest.raises(TandemError, match="one cell at least"):
        over_cells([])


def test_cells_are_joined_by_the_geometric_mean() -> None:
    twice, half = (by_seed(2.0, 2.0, 2.0), by_seed(1.0, 1.0, 1.0)), (by_seed(1.0, 1.0, 1.0), by_seed(2.0, 2.0, 2.0))
    found = over_cells([twice, half])
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert over_cells([twice, twice]).mean == pytest.approx(2.0)
    assert over_cells([(by_seed(0.0, 0.0), by_seed(1.0, 1.0)), (by_seed(2.0, 2.0), by_seed(1.0, 1.0))]).mean == 0.0


def test_cells_that_err_alike_do_not_make_the_interval_narrower() -> None:
    """Equal cells under equal seeds are one observation each seed, however often they are counted."""
    ours, theirs = by_seed(1.0, 1.2, 0.9, 1.1, 1.0), by_seed(1.0, 1.0, 1.0, 1.0, 1.0)
    one, many = over_cells([(ours, theirs)]), over_cells([(ours, theirs)] * 12)
    assert (many.mean, many.low, many.high) == pytest.approx((one.mean, one.low, one.high))
    # Cells whose seeds err apart do: half of these pull up where the others pull down.
    mirrored = {seed: 2.08 - value for seed, value in ours.items()}
    apart = over_cells([(ours, theirs), (mirrored, theirs)])
    assert apart.high - apart.low < (one.high - one.low) / 5


VALUES = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@given(VALUES, st.floats(0.1, 10))
def test_an_interval_holds_its_mean_and_moves_with_ours(ours: list[float], times: float) -> None:
    theirs = by_seed(*(1.0 + place % 3 for place in range(len(ours))))
    found = paired(by_seed(*ours), theirs)
    scaled = paired(by_seed(*(times * value for value in ours)), theirs)
    assert found.low <= found.mean <= found.high
    assert (scaled.mean, scaled.low, scaled.high) == pytest.approx(
        (times * found.mean, times * found.low, times * found.high), rel=1e-6, abs=1e-9
    )
