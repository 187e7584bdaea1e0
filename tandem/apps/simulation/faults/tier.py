"""Failures of the tiers of a worker or store: copies that rot, disks that refuse or crawl."""

import asyncio
from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below, unit

_WHATS: Final = ("damage", "damage", "unreadable", "full", "slow")
_SLOWNESS: Final = 2000.0
"""Factor by which a slow tier is slower than usual: at this factor a restore stalls for about as long as a transfer
may."""


@dataclass(frozen=True)
class TierFault:
    """`what` befalls the `tier` of the worker: all copies are changed (`damage`), or for `for_s` reads fail
    (`unreadable`), writes fail (`full`), or everything takes very long (`slow`)."""

    at_s: float
    worker: str
    tier: str
    what: str
    for_s: float

    async def apply(self, injector: FaultInjector) -> None:
        """Do it, and undo what does not stay."""
        disk = injector.machines[self.worker].disks[self.tier]
        match self.what:
            case "damage":
                injector.rotten += disk.damage(len(disk.records))
                return
            case "unreadable":
                disk.read_fails = "io_error"
            case "full":
                disk.write_fails = "disk_full"
            case _:
                disk.slowness = _SLOWNESS
        await asyncio.sleep(self.for_s)
        disk.read_fails, disk.write_fails, disk.slowness = None, None, 1.0


def draw(at_s: float, workers: tuple[str, ...], entropy: Entropy) -> TierFault:
    """Any worker, either tier. A worker without it notices nothing."""
    worker = workers[below(entropy, len(workers))]
    tier = ("dram", "nvme")[below(entropy, 2)]
    return TierFault(at_s, worker, tier, _WHATS[below(entropy, len(_WHATS))], 0.2 + unit(entropy) * 4.0)
