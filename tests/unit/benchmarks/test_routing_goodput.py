"""What the routing bench tells over rates, where peers have fewer seeds than ours or met nothing in some."""

from benchmarks.routing_judge import AgainstBest, goodput_over_rates, rates_compared
from benchmarks.statistics import paired

OURS = dict.fromkeys(range(6), 0.8)


def against(rate: float, theirs: dict[int, float]) -> AgainstBest:
    mine = {seed: OURS[seed] for seed in theirs}
    return AgainstBest(rate, mine, "a peer", theirs, paired(mine, theirs) if any(theirs.values()) else None)


def test_a_peer_that_met_nothing_in_the_common_seeds_is_left_out() -> None:
    late = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5}
    found = [against(1.0, {0: 0.4, 1: 0.4, 2: 0.4}), against(2.0, late), against(3.0, {0: 0.0, 1: 0.0, 2: 0.0})]
    assert found[1].ratio is not None
    assert [each.rate for each in rates_compared(found)] == [1.0]
    over = goodput_over_rates(found)
    assert over is not None
    assert (round(over.mean, 6), over.seeds) == (2.0, 3)


def test_nothing_to_compare_with_is_none() -> None:
    assert goodput_over_rates([]) is None
    assert goodput_over_rates([against(1.0, {0: 0.0})]) is None
