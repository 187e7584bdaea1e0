"""Pins for an engine whose own pool is its only tier: nothing is copied, pinned blocks are evicted last."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from kv_transfer.tiers.pins import PinTable
from kv_transfer.tiers.protocol import Changed, Lost, OffloadCandidate, Pinning, Restored
from kv_transfer.tiers.quotas import Quotas
from kv_transfer.tiers.settings import TierSettings
from tandem.core.clock import Clock
from tandem.core.messages import TierCost
from tandem.engine.protocol import BlockMemory, FetchTarget


class PinningPool(Protocol):
    """The part of a pool that pinning needs (`tandem.engine.vllm.stage_space.StageSpace` has it)."""

    @property
    def memory(self) -> BlockMemory: ...

    def keep_while(self, pinned: Callable[[bytes], bool]) -> None:
        """Evict blocks for whose names this holds after all others."""
        ...


class PoolPins:
    """`kv_transfer.tiers.protocol.Tiers` of a worker whose stage for vLLM is its DRAM tier: pinned prefixes stay in
    it.

    A pinned block is evicted after all blocks that are not pinned. Pins take at most `pin_share` of the stage's
    blocks, and the pins of one tenant at most `tenant_share` of that. Each pin ends by itself after its time to live.
    No tier lies below: `offer` stores nothing, `where` finds nothing, and `restore` reports every block as lost.
    """

    shapes: tuple[TierCost, ...] = ()

    def __init__(self, pool: PinningPool, clock: Clock, settings: TierSettings) -> None:
        pinnable = settings.pin_share * pool.memory.blocks
        self._settings = settings
        self._clock = clock
        self._block_bytes = pool.memory.block_bytes
        self._pins = PinTable(Quotas(max(1, int(pinnable * settings.tenant_share))), max(1, int(pinnable)))
        pool.keep_while(lambda name: self._pins.pinned(name, clock.now()))

    def where(self, names: Sequence[bytes]) -> tuple[str, ...]:
        return ()

    def expected_s(self, tiers: Sequence[str], block_bytes: int) -> float:
        return 0.0

    def offer(self, offers: Sequence[OffloadCandidate]) -> None:
        """The pool has them already."""

    async def restore(
        self, targets: Sequence[FetchTarget], memory: BlockMemory, deadline: float
    ) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        yield tuple(Lost(index, "gone") for index in range(len(targets)))

    def pin(self, names: Sequence[bytes], pinning: Pinning) -> int:
        return self._pins.pin(tuple(names), pinning, self._clock.now())

    def unpin(self, names: Sequence[bytes]) -> None:
        self._pins.unpin(tuple(names))

    def limit(self, tenant: str, kv_bytes: int | None) -> None:
        pins = None if kv_bytes is None else int(self._settings.pin_share * (kv_bytes // self._block_bytes))
        if self._pins.quotas.tell(tenant, pins):
            self._pins.trim(tenant)

    def forget(self, names: Sequence[bytes], reason: str) -> None:
        """Nothing is kept here."""

    def snapshot(self) -> dict[str, tuple[bytes, ...]]:
        return {}

    def watch(self, changed: Changed) -> None:
        """Nothing ever changes."""

    async def close(self) -> None:
        """Nothing is open."""
