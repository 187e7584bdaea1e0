"""The rules of a step hold for whatever is drawn; the scheduler's own tests say that it follows them."""

import itertools
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.scheduler.step_model import PromptCost
from tandem.engine.scheduler.step_rules import (
    Allowance,
    Way,
    blocks_for,
    chunk_end,
    may_enter,
    may_export,
    open_allowance,
    order_of,
    spare_blocks,
    turn,
    urgency,
)
from tandem.engine.settings import SchedulerSettings

COSTS = st.builds(
    PromptCost,
    piece=st.sampled_from([0.0, 1e-4]),
    token=st.floats(1e-6, 1e-3),
    position=st.sampled_from([0.0, 2e-9, 1e-7]),
)
BOUNDS = st.builds(
    SchedulerSettings,
    max_batched_tokens=st.integers(1, 8192),
    min_prefill_tokens=st.integers(1, 256),
    itl_target_s=st.floats(1e-3, 0.2),
)
WAYS: tuple[Way, ...] = ("compute", "fetch", "bring")


class NoTarget(msgspec.Struct, frozen=True):
    """Bounds of a worker whose running sequences have no target."""

    max_batched_tokens: int
    min_prefill_tokens: int = 32
    itl_target_s: float | None = None


@given(BOUNDS, st.integers(1, 512), st.floats(0, 0.3), st.floats(1, 2), COSTS, st.integers(0, 32_768))
def test_a_chunk_beside_others_is_the_largest_that_the_target_leaves_room_for(
    bounds: SchedulerSettings, rows: int, running_s: float, margin: float, cost: PromptCost, start: int
) -> None:
    allowance = open_allowance(bounds, rows, running_s, margin, cost)
    most = max(1, bounds.max_batched_tokens - rows)
    floor = min(bounds.min_prefill_tokens, most)
    room = bounds.itl_target_s / margin - running_s
    tokens = allowance.offer(start).tokens
    assert floor <= tokens <= most
    if tokens > floor:
        assert cost.seconds(start, tokens) <= room * (1 + 1e-6)
    if tokens < most:
        assert cost.seconds(start, tokens + 1) >= room * (1 - 1e-6)


@given(
    st.one_of(BOUNDS, st.builds(NoTarget, max_batched_tokens=st.integers(1, 8192))), st.integers(0, 512),
    st.floats(0, 0.3), COSTS,
    st.lists(st.tuples(st.integers(0, 32_768), st.integers(1, 3000)), min_size=1, max_size=5),
)  # fmt: skip
def test_tokens_are_those_of_the_offer_and_where_it_is_exhausted_nobody_gets_one(
    bounds: SchedulerSettings | NoTarget,
    rows: int,
    running_s: float,
    cost: PromptCost,
    prompts: list[tuple[int, int]],
) -> None:
    allowance = open_allowance(bounds, rows, running_s, 1.0, cost)
    for start, length in prompts:
        tokens = allowance.tokens_for(start)
        assert tokens == allowance.offer(start).tokens
        if allowance.exhausted:
            assert tokens <= 0
        if taken := min(length, tokens):
            allowance.take(start, taken)


@given(st.integers(1, 8192), st.integers(0, 512), COSTS, st.integers(0, 32_768))
def test_without_a_target_the_batch_alone_bounds_the_prompts(
    most: int, rows: int, cost: PromptCost, start: int
) -> None:
    allowance = open_allowance(NoTarget(most), rows, 1.0, 1.0, cost)
    assert allowance.offer(start).tokens == max(1, most - rows)


@given(BOUNDS, COSTS, st.integers(0, 32_768))
def test_alone_a_prompt_has_the_whole_batch_whatever_the_target(
    bounds: SchedulerSettings, cost: PromptCost, start: int
) -> None:
    budget = open_allowance(bounds, 0, 0.0, 1.0, cost).offer(start)
    assert budget.tokens == bounds.max_batched_tokens
    assert budget.reason == "prefill alone: max_batched_tokens"


def shared(allowance: Allowance, prompts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What prompts of (computed, left) take, one after the other, as (computed, taken)."""
    taken = []
    for start, left in prompts:
        count = min(allowance.offer(start).tokens, left)
        if count and not allowance.spent:
            allowance.take(start, count)
            taken.append((start, count))
    return taken


@given(
    BOUNDS,
    st.integers(0, 64),
    st.floats(0, 0.1),
    COSTS,
    st.lists(st.tuples(st.integers(0, 32_768), st.integers(1, 4096)), min_size=1, max_size=8),
)
def test_prompts_of_one_step_share_its_tokens_its_floor_and_its_seconds(
    bounds: SchedulerSettings, rows: int, running_s: float, cost: PromptCost, prompts: list[tuple[int, int]]
) -> None:
    taken = shared(open_allowance(bounds, rows, running_s, 1.0, cost), prompts)
    tokens = sum(count for _, count in taken)
    assert 1 <= tokens <= max(1, bounds.max_batched_tokens - rows)
    if rows:
        # Only the floor may take a step beyond its target, and it is there once for all.
        floor, furthest = bounds.min_prefill_tokens, max(start for start, _ in taken)
        floor_s = len(taken) * cost.piece + floor * (cost.token + cost.position * (furthest + floor))
        seconds = sum(cost.seconds(start, count) for start, count in taken)
        assert seconds <= (max(0.0, bounds.itl_target_s - running_s) + floor_s) * (1 + 1e-6)


@given(
    st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 64), st.sets(st.integers(0, 100))
)
def test_a_chunk_ends_at_an_edge_and_before_what_is_filled(
    start: int, more: int, tokens: int, size: int, filled: set[int]
) -> None:
    length = start + more
    end = chunk_end(start, length, tokens, size, filled)
    assert start < end <= min(length, start + tokens)
    assert not any(block in filled for block in range(start // size + 1, -(-end // size)))
    furthest = min(length, start + tokens)
    if end < furthest:
        assert end % size == 0
        assert furthest - end < size or end // size in filled


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 64))
def test_chunks_of_a_prompt_reach_its_end_and_split_no_block_that_fits(
    start: int, more: int, tokens: int, size: int
) -> None:
    length, ends = start + more, [start]
    while ends[-1] < length:
        ends.append(chunk_end(ends[-1], length, tokens, size))
    if tokens >= size:
        assert all(end % size == 0 for end in ends[1:-1])


@given(st.integers(0, 100_000), st.integers(1, 512))
def test_blocks_hold_their_tokens_and_one_fewer_would_not(tokens: int, size: int) -> None:
    blocks = blocks_for(tokens, size)
    assert blocks * size >= tokens > (blocks - 1) * size or tokens == blocks == 0


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 100_000))
def test_room_is_spared_only_beside_others(watermark: float, blocks: int) -> None:
    assert spare_blocks(watermark, blocks, busy=False) == 0
    assert 0 <= spare_blocks(watermark, blocks, busy=True) <= watermark * blocks


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 1000), st.floats(0.01, 1))
def test_exports_keep_to_their_share_and_a_large_prompt_gets_its_turn(
    exported: int, blocks: int, pool: int, share: float
) -> None:
    entered = may_export(exported, blocks, pool, share)
    if exported == 0:
        assert entered, "with nothing exported everybody would wait for nothing"
    elif blocks <= share * pool:
        assert entered == (exported + blocks <= share * pool)
    else:
        assert entered == (exported + blocks <= pool)
    if entered and exported:
        assert may_export(exported - 1, blocks, pool, share), "less exported is never a reason to wait"


@given(st.sampled_from(WAYS), st.integers(0, 20), st.integers(1, 8))
def test_who_needs_none_of_the_budget_enters_without_it(way: Way, ahead: int, fetch_ahead: int) -> None:
    assert may_enter(way, True, ahead, fetch_ahead)
    assert (
        may_enter(way, False, ahead, fetch_ahead)
        == {
            "compute": False,
            "fetch": True,
            "bring": ahead < fetch_ahead,
        }[way]
    )


WAITING = st.tuples(st.booleans(), st.integers(-3, 3), st.integers(0, 10), st.integers(0, 3))


@given(st.lists(WAITING, max_size=20))
def test_the_ready_come_first_then_the_urgent_then_the_earlier(waiting: list[tuple[bool, int, int, int]]) -> None:
    first = sorted(waiting, key=lambda one: turn(one[0], order_of(one[1], one[2]), one[3]))
    for one, other in itertools.pairwise(first):
        assert one[0] >= other[0]
        if one[0] == other[0]:
            assert one[1] >= other[1]
            if one[1] == other[1]:
                assert one[2:] <= other[2:]
    batch = sorted(waiting, key=lambda one: urgency(order_of(one[1], one[2]), one[3]))
    assert [one[1:] for one in batch] == [one[1:] for one in sorted(first, key=lambda one: (-one[1], one[2], one[3]))]


def test_golden_offers_of_a_known_machine() -> None:
    """50 ms, 20 of them used by what decodes, 50 µs a token and 2 ns a position: worked out by hand."""
    bounds, cost = SchedulerSettings(max_batched_tokens=2048), PromptCost(0.0, 5e-5, 0.0)
    allowance = open_allowance(bounds, 40, 0.02, 1.0, cost)
    assert allowance.offer(0) == allowance.offer(9000)
    assert math.isclose(allowance.offer(0).tokens, 600, abs_tol=1)
    allowance.take(0, 500)
    assert math.isclose(allowance.offer(0).tokens, 100, abs_tol=1)
    halved = open_allowance(bounds, 40, 0.02, 1.25, cost)
    assert math.isclose(halved.offer(0).tokens, 400, abs_tol=1)
    attending = open_allowance(bounds, 40, 0.02, 1.0, PromptCost(0.0, 5e-5, 2e-9))
    # 600 tokens at 16,384 would cost 5e-5 + 2e-9 * 16,684 each = 83.4 µs: some 361 fit.
    assert math.isclose(attending.offer(16_384).tokens, 361, abs_tol=2)
