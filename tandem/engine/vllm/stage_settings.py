"""Settings of a stage."""

from dataclasses import dataclass

from tandem.core.errors import TandemError


@dataclass(frozen=True)
class StageSettings:
    """Bounds of one stage. Raises `bad_setting` naming the field when a value cannot work.

    `memory_bytes`: what its slots may take; `blocks`, when given, is how many there are instead. `export_share`: the
    part of the slots that exports may hold before prefills wait, and beyond which nothing is shared; what hand-offs
    have reserved and not received is kept to the rest, so that neither kind of work can keep the other out.
    `watermark`: the part kept free of what is merely worth keeping. `queue_s`: how long a work waits for slots;
    workers take it from `Deadlines`. `late_s`: after so long nothing is written any more for a work that is over.
    `directory`: where the ranks' socket is made; None is the system's default.
    """

    memory_bytes: int = 1 << 30
    blocks: int | None = None
    export_share: float = 0.5
    shared_leases_max: int = 16
    watermark: float = 0.01
    queue_s: float = 10.0
    max_waiting: int = 1024
    late_s: float = 60.0
    directory: str | None = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "max_waiting"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("blocks", self.blocks is None or self.blocks >= 2, "at least 2")
        self._require("shared_leases_max", self.shared_leases_max >= 0, "0 or more")
        for name in ("queue_s", "late_s"):
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require("export_share", 0 < self.export_share < 1, "above 0 and below 1")
        self._require("watermark", 0 <= self.watermark < 1, "in [0, 1)")

    def slots(self, block_bytes: int) -> int:
        """How many blocks of this size fit. Raises `bad_setting` when that is not even two."""
        count = self.blocks if self.blocks is not None else self.memory_bytes // block_bytes
        if count < 2:
            raise TandemError(
                "bad_setting",
                f"the stage's {self.memory_bytes} bytes hold {count} KV blocks of {block_bytes} bytes: give it more",
                param="memory_bytes",
            )
        return count

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} must be {what}, got {getattr(self, name)}", param=name)
