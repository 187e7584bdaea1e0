"""Tiers without disk or threads, for tests and simulation: the decisions of `LocalTiers` over simulated shelves."""

from kv_transfer.tiers.backend import HeldSpace, StorageBackend
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryBackend, MemoryDisk, SimulatedSpeed
from kv_transfer.tiers.settings import TierSettings
from tandem.core.clock import Clock
from tandem.core.metrics import Meter
from tandem.engine.digest import Digester

DRAM_PACE = SimulatedSpeed(10e9, 100e-6)
NVME_PACE = SimulatedSpeed(3e9, 500e-6)


def memory_tiers(
    settings: TierSettings,
    space: HeldSpace,
    clock: Clock,
    meter: Meter,
    disk: MemoryDisk | None = None,
    dram: MemoryDisk | None = None,
    dram_pace: SimulatedSpeed = DRAM_PACE,
    nvme_pace: SimulatedSpeed = NVME_PACE,
) -> LocalTiers:
    """Open the tiers that `settings` ask for. With the same `disk` passed again, the blocks on NVMe are found again.
    Faults of DRAM are injected through `dram`."""
    size, digester = space.layout.block_bytes, Digester(space.layout)
    backends: list[StorageBackend] = []
    if settings.dram_bytes >= size:
        backends.append(
            MemoryBackend("dram", settings.dram_bytes // size, digester, size, dram_pace, dram or MemoryDisk())
        )
    if settings.nvme_bytes >= size:
        backends.append(
            MemoryBackend("nvme", settings.nvme_bytes // size, digester, size, nvme_pace, disk or MemoryDisk())
        )
    tiers = LocalTiers(space, backends, clock, meter, settings)
    tiers.open()
    return tiers
