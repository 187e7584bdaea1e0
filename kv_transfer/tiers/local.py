"""The tiers of one process, each with an index and a backend: offers into the fastest tier, demotion to lower tiers,
and restores from them."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Final

from kv_transfer.tiers.backend import HeldSpace, StorageBackend
from kv_transfer.tiers.index import TierIndex
from kv_transfer.tiers.pins import PinTable
from kv_transfer.tiers.pool_offload import PoolOffload
from kv_transfer.tiers.protocol import Changed, Lost, OffloadCandidate, Pinning, Restored
from kv_transfer.tiers.quotas import Quotas
from kv_transfer.tiers.restore import TierRestore
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.tiers.speed import Speed
from kv_transfer.tiers.tier import Tier, report
from kv_transfer.tiers.tier_offload import TierOffload
from tandem.core.clock import Clock
from tandem.core.messages import TierCost
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockMemory, FetchTarget

_PRIORS = {"dram": (8e9, 100e-6), "nvme": (1e9, 500e-6)}
"""(bytes/s, latency in s) to begin with, before anything was read."""


_CHECKING: Final = 2
"""Number of batches that are checked or sealed while the disk works on others (as many as an NVMe tier has threads
for)."""


class LocalTiers:
    """`kv_transfer.tiers.protocol.Tiers` over shelves, the fastest first. Made, used and closed on one event loop."""

    def __init__(
        self, space: HeldSpace, backends: Sequence[StorageBackend], clock: Clock, meter: Meter, settings: TierSettings
    ) -> None:
        assert backends, "tiers without a tier"
        self._clock = clock
        self._settings = settings
        self._block_bytes = space.layout.block_bytes
        self._watchers: list[Changed] = []
        top = backends[0].blocks
        pinnable = settings.pin_share * min(backend.blocks for backend in backends)
        own = max(1, int(pinnable * settings.tenant_share))
        self._pins = PinTable(Quotas(own), max(1, int(pinnable)))
        self._levels = tuple(self._level(backend, meter) for backend in backends)
        batch = max(1, settings.batch_bytes // self._block_bytes)
        writes = settings.write_threads + _CHECKING + 1
        at_once = settings.copy_threads if backends[0].tier == "dram" else writes
        # What is held for being copied is kept from whoever waits for blocks: an eighth of the pool is the bound.
        held = max(1, min(batch, space.memory.blocks // (8 * at_once)))
        self._offload = PoolOffload(space, self._levels[0], settings.offers_max, held, at_once)
        self._tier_offload: TierOffload | None = None
        if len(self._levels) > 1:
            spared = 0 if settings.write_through else int((1.0 - settings.clean_share) * top)
            upper, lower = self._levels
            self._tier_offload = TierOffload(upper, lower, spared, batch, writes)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def _level(self, backend: StorageBackend, meter: Meter) -> Tier:
        quotas = Quotas(max(1, int(self._settings.tenant_share * backend.blocks)))
        book = TierIndex(backend.blocks, quotas, self._pinned)
        speed = Speed(*_PRIORS[backend.tier], self._block_bytes)
        return Tier(backend, book, speed, self._block_bytes, meter, self._told)

    def _pinned(self, name: bytes) -> bool:
        return self._pins.pinned(name, self._clock.now())

    def open(self) -> None:
        """Start the tiers. Blocks that an earlier run left on NVMe are found in the background and reported as they
        are found."""
        for level in self._levels:
            level.backend.open(level)
        self._spawn(self._offload.run(), "tier-offload")
        if self._tier_offload is not None:
            self._spawn(self._tier_offload.run(), "tier-demotion")

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(_ended)
        self._tasks.append(task)

    # -- looking --

    @property
    def levels(self) -> tuple[Tier, ...]:
        """The tiers, fastest first, for components that lend from them and fill them."""
        return self._levels

    @property
    def usable(self) -> bool:
        """Whether every tier takes blocks now."""
        return all(level.open for level in self._levels)

    @property
    def shapes(self) -> tuple[TierCost, ...]:
        return tuple(level.cost for level in self._levels)

    def where(self, names: Sequence[bytes]) -> tuple[str, ...]:
        found = []
        for name in names:
            tier = next((level.tier for level in self._levels if name in level.book), None)
            if tier is None:
                break
            found.append(tier)
        return tuple(found)

    def expected_s(self, tiers: Sequence[str], block_bytes: int) -> float:
        """Tiers are read at the same time: the one that takes longest."""
        counts = {level.tier: tiers.count(level.tier) for level in self._levels}
        times = [level.expected_s(n * block_bytes) for level in self._levels if (n := counts[level.tier])]
        return max(times, default=0.0)

    def snapshot(self) -> dict[str, tuple[bytes, ...]]:
        return {level.tier: level.book.names() for level in self._levels}

    def watch(self, changed: Changed) -> None:
        self._watchers.append(changed)

    def _told(self, tier: str, stored: tuple[bytes, ...], removed: tuple[bytes, ...]) -> None:
        if self._tier_offload is not None:
            self._tier_offload.told(tier, stored, removed)
        if (stored or removed) and not self._closed:
            for changed in self._watchers:
                changed(tier, stored, removed)

    # -- keeping --

    def offer(self, offers: Sequence[OffloadCandidate]) -> None:
        for offer in offers:
            self._offload.offer(offer)

    def pin(self, names: Sequence[bytes], pinning: Pinning) -> int:
        return self._pins.pin(tuple(names), pinning, self._clock.now())

    def unpin(self, names: Sequence[bytes]) -> None:
        self._pins.unpin(tuple(names))

    def limit(self, tenant: str, kv_bytes: int | None) -> None:
        blocks = None if kv_bytes is None else kv_bytes // self._block_bytes
        pins = None if blocks is None else int(self._settings.pin_share * blocks)
        if self._pins.quotas.tell(tenant, pins):
            self._pins.trim(tenant)
        for level in self._levels:
            if level.book.quotas.tell(tenant, blocks):
                level.trim(tenant)

    def forget(self, names: Sequence[bytes], reason: str) -> None:
        for name in names:
            self._offload.withdraw(name)
        for level in self._levels:
            level.forget(names, reason)

    # -- bringing --

    async def restore(
        self, targets: Sequence[FetchTarget], memory: BlockMemory, deadline: float
    ) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        batches = TierRestore(self._levels, targets, memory, self._clock).batches(deadline)
        try:
            async for batch in batches:
                yield batch
        finally:
            await batches.aclose()

    # -- ending --

    async def settle(self) -> None:
        """Wait until everything offered is copied, and what is to be demoted is."""
        await self._offload.idle.wait()
        if self._tier_offload is not None:
            await self._tier_offload.idle.wait()

    def abandon(self) -> None:
        """Stop where everything stands, as when the process is killed."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Finish what is being written, for at most `stall_s`."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(self._settings.stall_s):
                await self.settle()
        except TimeoutError:
            pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for level in self._levels:
            await level.close(self._settings.stall_s)


def _ended(task: asyncio.Task[None]) -> None:
    """A task that ends by itself has failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        report(f"{task.get_name()} failed", error)
