"""The part of a fetch that own tiers serve: blocks onboarded from DRAM and NVMe into the engine's slots."""

import asyncio
from collections.abc import AsyncGenerator

from kv_transfer.fetch_origin import OriginFetch
from kv_transfer.fetch_progress import FetchProgress
from kv_transfer.tiers.protocol import Lost, Restored, Tiers
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockSpace

Batch = tuple[Restored | Lost, ...]


class RunningRestore:
    """A restore that is running. A disk may take its time to release a slot, so a caller waits for a batch beside the
    restore and can leave it alone."""

    def __init__(self, batches: AsyncGenerator[Batch, None]) -> None:
        self._batches = batches
        self._next: asyncio.Task[Batch | None] | None = None

    async def next(self, within_s: float) -> Batch | None:
        """The next batch, None when there is none any more. Raises `TimeoutError`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._advance(), name="kv-restore")
        done, _ = await asyncio.wait((self._next,), timeout=max(0.0, within_s))
        if not done:
            raise TimeoutError
        batch, self._next = self._next.result(), None
        return batch

    async def _advance(self) -> Batch | None:
        return await anext(self._batches, None)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait((self._next,))
        await self._batches.aclose()


class TierFetch(OriginFetch[RunningRestore]):
    """Restores the targets of `progress`. What tiers give is verified already."""

    def __init__(self, space: BlockSpace, tiers: Tiers, clock: Clock, meter: Meter, progress: FetchProgress) -> None:
        super().__init__(progress)
        self.bytes_by_tier: dict[str, int] = {}
        self._space = space
        self._tiers = tiers
        self._clock = clock
        self._meter = meter

    async def run(self) -> TandemError | None:
        """Restore the blocks that can be restored, and return the error that ended it early. A lost copy does not end
        it."""
        targets = self.progress.job.targets
        self.opened = RunningRestore(self._tiers.restore(targets, self._space.memory, self.progress.until))
        try:
            await self._take(self.opened)
        except TimeoutError:
            return TandemError("transfer_failed", "the own tiers made no progress")
        finally:
            for tier, size in self.bytes_by_tier.items():
                self._meter.add("tandem_kv_transfer_bytes_total", size, tier)
        return None

    async def _take(self, restoring: RunningRestore) -> None:
        while (batch := await restoring.next(self.progress.deadline() - self._clock.now())) is not None:
            now = self._clock.now()
            self.progress.moved(now)
            for one in batch:
                self._accept(one, now)

    def _accept(self, one: Restored | Lost, now: float) -> None:
        if isinstance(one, Lost):
            self.progress.missed(one.index, one.reason)
            return
        self.progress.landed(one.index, now, one.tier)
        size = self._space.layout.block_bytes
        self.bytes_by_tier[one.tier] = self.bytes_by_tier.get(one.tier, 0) + size
        self._space.landed(self.progress.job.work_id, one.index, one.words)
