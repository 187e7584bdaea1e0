"""Parts of the fleet simulator: step times in closed form, the pool, tiers, the figures that workers tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.pool import Pool
from benchmarks.fleet.rates import Rates
from benchmarks.fleet.step_time import StepTime, attended
from benchmarks.fleet.tiers import Tiers, TierSettings

TIME = StepTime(base_s=0.01, sequence_s=5e-5, read_s=5e-8, token_s=5e-5, context_s=2e-9)


@given(st.integers(1, 256), st.integers(0, 2_000_000), st.integers(1, 1500))
def test_many_decode_steps_take_as_long_as_one_after_the_other(sequences: int, context: int, steps: int) -> None:
    single = sum(TIME.decode(sequences, context + step * sequences, 1) for step in range(steps))
    assert TIME.decode(sequences, context, steps) == pytest.approx(single, rel=1e-9)


@given(st.integers(1, 256), st.integers(0, 2_000_000), st.floats(0, 60), st.booleans())
def test_steps_until_is_the_least_number_that_takes_so_long(
    sequences: int, context: int, seconds: float, flat: bool
) -> None:
    time = StepTime(0.01, 5e-5, 0.0, 0.0, 0.0) if flat else TIME
    steps = time.steps_until(sequences, context, seconds)
    assert time.decode(sequences, context, steps) >= seconds * (1 - 1e-12)
    assert steps == 1 or time.decode(sequences, context, steps - 1) < seconds


def test_a_prompt_in_chunks_attends_to_as_much_as_at_once() -> None:
    assert attended(0, 300) == attended(0, 100) + attended(100, 200)


def test_figures_in_the_middle_of_a_run_are_those_of_its_steps_so_far() -> None:
    rates, single = Rates(0.02, 9.0, 100.0), Rates(0.02, 9.0, 100.0)
    single.observe(3, 10, 0, TIME.decode(10, 1000, 3))
    during = rates.during(TIME, 3, 10, 1000)
    assert (during.step_s, during.prefill, during.decode) == (single.step_s, 9.0, single.decode)
    assert rates.step_s == 0.02


def test_the_least_recently_used_goes_first_and_of_one_request_the_tail() -> None:
    pool = Pool(100)
    pool.reserve(80)
    assert all(pool.publish(name, 20) for name in (1, 2, 3, 4))
    pool.unpin((1, 2))
    pool.unpin((3, 4))
    pool.reserve(60)
    assert pool.take_evicted() == [(2, 20), (1, 20)]
    assert pool.leading((3, 4)) == 2


def test_blocks_in_use_stay_and_answers_give_way_piece_by_piece() -> None:
    pool = Pool(100)
    pool.reserve(60)
    assert pool.publish(1, 40)
    pool.retire(20)
    pool.reserve(50)
    assert pool.cached == 10
    assert pool.take_evicted() == []
    assert pool.holds(1)
    assert not pool.publish(1, 40), "a second copy of a block stays private"
    pool.check()


class _PoolModel:
    """What a pool must hold, told in the simplest way: sizes of users' blocks and private tokens."""

    def __init__(self, capacity: int) -> None:
        self.pool = Pool(capacity)
        self.users: list[tuple[tuple[int, ...], int]] = []

    def take(self, names: tuple[int, ...], private: int) -> None:
        pool = self.pool
        here = names[: pool.leading(names)]
        needed = 10 * (len(names) - len(here)) + private + pool.unused_tokens(here)
        if needed > pool.free:
            return
        pool.pin(here)
        pool.reserve(10 * (len(names) - len(here)) + private)
        pinned = here
        for name in names[len(here) :]:
            if not pool.publish(name, 10):
                private += 10 * (len(names) - len(pinned))
                break
            pinned += (name,)
        self.users.append((pinned, private))

    def leave(self, which: int, keeps: bool) -> None:
        if self.users:
            pinned, private = self.users.pop(which % len(self.users))
            if keeps:
                self.pool.retire(private)
            else:
                self.pool.give_back(private)
            self.pool.unpin(pinned)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 30)),
            st.tuples(st.integers(0, 9), st.booleans()),
        ),
        max_size=60,
    )
)
def test_a_pool_never_holds_more_than_fits_and_forgets_nothing_that_is_used(steps: list[tuple[int, ...]]) -> None:
    model = _PoolModel(150)
    for step in steps:
        if len(step) == 3:
            family, length, private = step
            model.take(tuple(family << 8 | place for place in range(length)), private)
        else:
            model.leave(step[0], bool(step[1]))
        model.pool.check()
        assert all(model.pool.holds(name) for pinned, _ in model.users for name in pinned)
        used = sum(private for _, private in model.users)
        used += 10 * len({name for pinned, _ in model.users for name in pinned})
        assert model.pool.used == used


def test_blocks_fall_through_tiers_and_are_told_of_each() -> None:
    told: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    settings = (TierSettings("dram", 20, 1000.0, 0.0), TierSettings("nvme", 20, 100.0, 0.0))
    tiers = Tiers(settings, lambda tier, stored, removed: told.append((tier, stored, removed)))
    tiers.fall([(1, 10), (2, 10), (3, 10)])
    assert told == [("dram", (1, 2, 3), (1,)), ("nvme", (1,), ())]
    assert [tier.settings.name for tier in tiers.where((3, 1, 9, 2))] == ["dram", "nvme"]
    tiers.raise_up([1, 3])
    assert told[2:] == [("dram", (), (3,)), ("nvme", (), (1,))]
    assert not tiers.holds(1)
    tiers.fall([(name, 10) for name in range(10, 16)])
    tiers.check()
    assert sum(tier.held for tier in tiers.tiers) == 40


def test_reads_of_a_tier_queue_on_its_channel() -> None:
    (tier,) = Tiers((TierSettings("dram", 20, 1000.0, 0.5),), lambda tier, stored, removed: None).tiers
    assert tier.reading_s(0.0, 100) == pytest.approx(0.6)
    assert tier.read(0.0, 100) == pytest.approx(0.6)
    assert tier.reading_s(0.1, 100) == pytest.approx(1.1)
    assert tier.read(2.0, 100) == pytest.approx(2.6)


def test_quantiles_lie_between_their_neighbours() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([1.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0], 1.0) == 3.0
