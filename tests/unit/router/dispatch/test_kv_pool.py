"""When a pool of KV blocks has room: golden values, and what holds for any of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.kv_pool import BlockDemand, forecast

CLAIMS = st.lists(
    st.builds(BlockDemand, st.integers(1, 50).map(float), st.floats(0.1, 20.0), st.floats(0.0, 20.0)), max_size=12
)


@pytest.mark.parametrize(
    ("free", "held", "queued", "blocks", "from_s", "waits_s"),
    [
        (10, [], [], 10, 0.0, 0.0),
        (10, [(30, 4.0), (20, 2.0)], [], 11, 0.0, 2.0),
        (10, [(30, 4.0), (20, 2.0)], [], 31, 0.0, 4.0),
        # It asks later than that.
        (10, [(30, 4.0), (20, 2.0)], [], 31, 3.0, 1.0),
        (10, [(30, 4.0), (20, 2.0)], [], 31, 5.0, 0.0),
        # Another one waits before it, and ends at 3.
        (10, [(30, 4.0), (20, 2.0)], [(25, 1.0)], 10, 0.0, 3.0),
        # One that asks in 10 seconds does not keep those waiting who ask after it.
        (10, [(30, 4.0), (20, 2.0)], [(25, 1.0, 10.0)], 30, 0.0, 0.0),
        (10, [(30, 4.0), (20, 2.0)], [(25, 1.0, 10.0)], 40, 0.0, 1.0),
        # What is held for longer than that keeps nobody waiting whom it does not hinder.
        (20, [(1, 10.0)], [(5, 1.0, 2.0)], 10, 0.0, 0.0),
        # More than there is: when the pool is empty.
        (10, [(30, 4.0)], [], 1000, 0.0, 4.0),
    ],
)
def test_a_request_waits_until_its_blocks_come_back(
    free: float,
    held: list[tuple[float, ...]],
    queued: list[tuple[float, ...]],
    blocks: int,
    from_s: float,
    waits_s: float,
) -> None:
    pool = forecast(free, [BlockDemand(*each) for each in held], [BlockDemand(*each) for each in queued])
    assert pool.wait_s(blocks, from_s) == pytest.approx(waits_s)


@given(st.integers(0, 50), CLAIMS, CLAIMS, st.integers(1, 60))
def test_more_memory_or_fewer_before_it_never_make_a_request_wait_longer(
    free: int, held: list[BlockDemand], queued: list[BlockDemand], blocks: int
) -> None:
    queued.sort(key=lambda claim: claim.from_s)
    pool = forecast(free, held, queued)
    total = free + sum(claim.blocks for claim in held)
    assert pool.free + sum(back for _, back in pool.ends) == pytest.approx(total), "no block is lost"
    assert pool.wait_s(blocks, 0.0) >= 0.0
    assert pool.wait_s(blocks + 1, 0.0) >= pool.wait_s(blocks, 0.0)
    assert forecast(free + 60 + total, held, queued).at_s <= pool.at_s + 1e-9
    assert forecast(free, held, queued).wait_s(blocks, 5.0) <= pool.wait_s(blocks, 0.0)
