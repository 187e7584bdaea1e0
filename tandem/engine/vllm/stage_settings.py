"""Settings of a stage. How large it is follows from them in `stage_size`."""

from dataclasses import dataclass

from tandem.core.errors import TandemError


@dataclass(frozen=True)
class StageSettings:
    """Bounds of one stage. Raises `bad_setting` naming the field when a value cannot work.

    `memory_bytes`: what its slots may take; `blocks`, when given, is how many there are instead. `sharers`: over how
    many workers the memory of this machine or pod is dealt out where nobody gave a size. `export_share`: the
    part of the slots that exports may hold before prefills wait, and beyond which nothing is shared; what hand-offs
    have reserved and not received is kept to the rest, so that neither kind of work can keep the other out.
    `context_share`: the part of the slots in which a prompt of the engine's whole context has to find room, or the
    stage does not start; None does not ask.
    `watermark`: the part kept free of what is merely worth keeping. `queue_s`: how long a work waits for slots;
    workers take it from `Deadlines`. `itl_target_s`: of the time between two tokens of others a quarter may go to
    loads; workers take it from `SchedulerSettings`. `late_s`: after so long nothing is written any more for a work
    that is over. `directory`: where the ranks' socket is made; None is the system's default.
    """

    memory_bytes: int | None = None
    blocks: int | None = None
    sharers: int = 1
    export_share: float = 0.5
    context_share: float | None = None
    shared_leases_max: int = 16
    watermark: float = 0.01
    queue_s: float = 10.0
    max_waiting: int = 1024
    itl_target_s: float = 0.05
    late_s: float = 60.0
    directory: str | None = None

    def __post_init__(self) -> None:
        self._require("memory_bytes", self.memory_bytes is None or self.memory_bytes >= 1, "at least 1")
        for name in ("sharers", "max_waiting"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("blocks", self.blocks is None or self.blocks >= 2, "at least 2")
        self._require("shared_leases_max", self.shared_leases_max >= 0, "0 or more")
        for name in ("queue_s", "itl_target_s", "late_s"):
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require("export_share", 0 < self.export_share < 1, "above 0 and below 1")
        self._require(
            "context_share", self.context_share is None or 0 < self.context_share <= 1, "above 0, at most 1"
        )
        self._require("watermark", 0 <= self.watermark < 1, "in [0, 1)")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} must be {what}, got {getattr(self, name)}", param=name)
