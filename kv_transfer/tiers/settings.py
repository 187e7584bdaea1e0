"""Settings of the tiers below the engine's pool: how much there is, who may have how much of it, how it is moved."""

from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import TandemError
from tandem.core.tiers import SEGMENT_BYTES

_SEGMENTS_MIN = 4


@dataclass(frozen=True)
class TierSettings:
    """All sizes are bytes. A tier whose size is 0 (or that has no directory) does not exist; by default none does."""

    dram_bytes: int = 0
    """Host memory for copies, shared with processes of this host the way the engine's pool is."""
    nvme_dir: Path | None = None
    """Below it each worker makes a directory of its own name. It should be on a disk that takes direct I/O."""
    nvme_bytes: int = 0
    segment_bytes: int = SEGMENT_BYTES
    """Of one file on NVMe. Room is made by whole files."""
    write_through: bool = False
    """Write every block to NVMe soon after DRAM has it, not only those DRAM is about to give up."""
    clean_share: float = 0.25
    """Share of DRAM that is free or copied to NVMe already, so that room can be made without losing anything."""
    tenant_share: float = 1.0
    """Share of each tier that the blocks of one tenant may take."""
    pin_share: float = 0.5
    """Share of its quota in the smallest tier that a tenant may pin, and all together of that tier."""
    offers_max: int = 4096
    """Blocks that wait to be copied; what is offered beyond that is not kept."""
    copy_threads: int = 2
    read_threads: int = 4
    """Of NVMe: how many reads the disk has in hand at a time, and of writes likewise."""
    write_threads: int = 2
    batch_bytes: int = 4 << 20
    """What one thread moves at a time."""
    stall_s: float = 5.0
    """A disk that has not finished a read or write within this time is done without for a while."""
    retry_s: float = 5.0
    """How long a tier that failed is done without at first; each failure that follows doubles it, up to
    `retry_max_s`."""
    retry_max_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("dram_bytes", "nvme_bytes"):
            self._require(name, getattr(self, name) >= 0, "0 or more bytes")
        for name in ("segment_bytes", "offers_max", "copy_threads", "read_threads", "write_threads", "batch_bytes"):
            self._require(name, getattr(self, name) > 0, "more than 0")
        for name in ("stall_s", "retry_s", "retry_max_s"):
            self._require(name, getattr(self, name) > 0, "more than 0 seconds")
        for name in ("clean_share", "tenant_share", "pin_share"):
            self._require(name, 0 < getattr(self, name) <= 1, "a share above 0 and at most 1")
        self._require("nvme_dir", not self.nvme_bytes or self.nvme_dir is not None, "a directory for nvme_bytes")
        if self.nvme_bytes:
            enough = self.nvme_bytes >= _SEGMENTS_MIN * self.segment_bytes
            self._require("nvme_bytes", enough, f"at least {_SEGMENTS_MIN} segments of {self.segment_bytes} bytes")

    @property
    def wanted(self) -> bool:
        """Whether there is any tier at all."""
        return bool(self.dram_bytes or self.nvme_bytes)

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            value = getattr(self, name)
            raise TandemError("bad_setting", f"{name} = {value!r}: expected {what}", param=name)
