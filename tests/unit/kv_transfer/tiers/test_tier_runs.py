"""Small blocks are copied together where they lie one after the other on both sides, and nowhere else."""

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.tiers.runs import runs

pairs = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 6)).map(
        lambda drawn: [(drawn[0] + step, drawn[1] + step) for step in range(drawn[2])]
    ),
    max_size=8,
).map(lambda pieces: [pair for piece in pieces for pair in piece])


@given(pairs=pairs, most=st.integers(1, 5))
def test_runs_are_all_blocks_in_order_as_long_as_neighbours_go(pairs: list[tuple[int, int]], most: int) -> None:
    slots, places = [slot for slot, _ in pairs], [place for _, place in pairs]
    found = list(runs(slots, places, most))
    assert [number for start, end in found for number in range(start, end)] == list(range(len(pairs)))
    for start, end in found:
        assert 1 <= end - start <= most
        assert all(pairs[start + by] == (slots[start] + by, places[start] + by) for by in range(end - start))
    for first, end in found[:-1]:
        follows = pairs[end] == (slots[end - 1] + 1, places[end - 1] + 1)
        assert end - first == most or not follows
