"""What peers are given that no request here has computed for them: blocks of the pool, and room for more from
tiers."""

from collections.abc import Sequence

from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.peer_reads import PeerReads
from tandem.engine.scheduler.step_rules import spare_blocks
from tandem.engine.settings import SchedulerSettings


class SharedExports:
    """Within the exports' share of the pool, and only where no work waits for blocks."""

    def __init__(self, kv_cache: KvCacheManager, outbox: EngineEvents, settings: SchedulerSettings) -> None:
        self._pool = kv_cache.pool
        self._leases = kv_cache.leases
        self._spare = spare_blocks(settings.watermark, kv_cache.pool.blocks, busy=True)
        self._blocks_max = int(settings.export_share * kv_cache.pool.blocks)
        self._leases_max = settings.shared_leases_max
        self.peer_reads = PeerReads(kv_cache, outbox)

    def open(self, lease_id: str, names: Sequence[bytes], length_s: float, now: float) -> bool:
        """Open a lease over those of `names` that are here; whether that can be. An open one stays as it is."""
        leases = self._leases
        if leases.exists(lease_id):
            return True
        full = leases.exported >= self._blocks_max or leases.shared >= self._leases_max
        if full or leases.tombstoned(lease_id):
            return False
        leases.share(lease_id, length_s, names, self._blocks_max, now)
        return True

    def admit(self, *, requests_wait: bool) -> None:
        """Reserve slots for the blocks that peers have asked for, unless requests wait for slots."""
        self.peer_reads.admit(lambda: 0 if requests_wait else self._room())

    def _room(self) -> int:
        return min(self._pool.available - self._spare, self._blocks_max - self._leases.exported)
