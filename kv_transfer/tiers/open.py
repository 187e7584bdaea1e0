"""Creates the tiers that settings ask for, and the pure in-memory ones."""

import re
from dataclasses import dataclass

from kv_transfer.tickets import Keyring
from kv_transfer.tiers.backend import HeldSpace, StorageBackend
from kv_transfer.tiers.disk import SystemDisk
from kv_transfer.tiers.dram import DramBackend, PageLock
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.nvme import NvmeBackend
from kv_transfer.tiers.record import shape_of
from kv_transfer.tiers.settings import TierSettings
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.metrics import Meter
from tandem.engine.digest import Digester


@dataclass(frozen=True)
class TierIdentity:
    """Whose tiers these are: the worker's name, under which it finds its files again, and what its blocks belong to.

    `root` is the engine's root name for the empty tenant salt (`RootIdentity.name`).
    """

    owner: str
    root: bytes


def open_tiers(
    settings: TierSettings,
    space: HeldSpace,
    clock: Clock,
    meter: Meter,
    keyring: Keyring,
    identity: TierIdentity,
    entropy: Entropy,
    page_lock: PageLock | None = None,
) -> LocalTiers:
    """The tiers of a worker, open. Call it on the event loop, once the engine's blocks are there, when
    `settings.wanted`.

    Raises `bad_setting`: the memory cannot be had, or a block does not fit into a segment.
    """
    backends: list[StorageBackend] = []
    layout, digester = space.layout, Digester(space.layout)
    if settings.dram_bytes >= layout.block_bytes:
        blocks = settings.dram_bytes // layout.block_bytes
        backends.append(DramBackend(blocks, layout, settings.copy_threads, settings.stall_s, page_lock))
    if settings.nvme_bytes and settings.nvme_dir is not None:
        disk = SystemDisk(settings.nvme_dir / _folder(identity.owner))
        shape, seals = shape_of(layout, identity.root), Seals(keyring)
        backends.append(NvmeBackend(disk, shape, digester, seals, settings, clock, entropy, meter))
    tiers = LocalTiers(space, backends, clock, meter, settings)
    tiers.open()
    return tiers


def _folder(owner: str) -> str:
    """A directory name for a worker: what is not plain in its name is written as its code."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: f".{ord(match[0]):x}.", owner)
