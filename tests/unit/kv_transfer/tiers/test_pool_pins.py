"""Pins where the engine's pool is the only tier: what is pinned leaves the pool after everything else."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.tiers.pool_pins import PoolPins
from kv_transfer.tiers.protocol import Pinning
from kv_transfer.tiers.settings import TierSettings
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import BlockMemory
from tandem.engine.scheduler.blocks import BlockPool


class Clock:
    time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


class Pool:
    """A pool of 8 blocks of one byte, all of them cached, named by their number."""

    def __init__(self) -> None:
        self.pool = BlockPool(8)
        self.memory: BlockMemory = HostMemory(1, 8)
        for slot in self.pool.allocate(8):
            self.pool.publish(slot, bytes([slot]), b"")
            self.pool.release(slot)

    def keep_while(self, pinned: Callable[[bytes], bool]) -> None:
        self.pool.pinned = pinned

    def evict(self, count: int) -> None:
        self.pool.allocate(count)
        self.pool.check()

    @property
    def here(self) -> set[int]:
        return {name[0] for name in self.pool.snapshot()}


@given(pinned=st.sets(st.integers(0, 7), max_size=4), count=st.integers(0, 8))
def test_pinned_blocks_are_evicted_last(pinned: set[int], count: int) -> None:
    pool = Pool()
    pins = PoolPins(pool, Clock(), TierSettings(dram_bytes=8))
    assert pins.pin([bytes([name]) for name in sorted(pinned)], Pinning(0, 10.0)) == len(pinned)
    pool.evict(count)
    others = sorted(set(range(8)) - pinned)
    assert pool.here - pinned == set(others[count:]), "the oldest first"
    assert len(pool.here & pinned) == min(len(pinned), 8 - count), "and pinned ones after all others"


def test_a_pin_ends_by_itself_or_when_it_is_taken_back_or_is_above_the_tenants_quota() -> None:
    clock = Clock()
    for end in ("time", "unpin", "limit"):
        pool = Pool()
        pins = PoolPins(pool, clock, TierSettings(dram_bytes=8))
        assert pins.pin([b"\0", b"\1"], Pinning(0, 10.0, "t")) == 2
        if end == "time":
            clock.time += 11.0
        elif end == "unpin":
            pins.unpin([b"\0", b"\1"])
        else:
            pins.limit("t", 0)
        pool.evict(2)
        assert pool.here == set(range(2, 8))
        assert pins.pin([bytes([name]) for name in range(8)], Pinning(0, 1.0, "u")) == 4, "half of the pool at most"
