"""The scheduler's settings: how much runs at once, and how long it may wait."""

from dataclasses import dataclass

from tandem.core.errors import TandemError


@dataclass(frozen=True)
class SchedulerSettings:
    """Bounds of one engine. Raises `bad_setting` naming the field when a value cannot work.

    `itl_target_s`: prompts are chunked so that steps with running sequences stay below it. `export_share`: the
    part of the pool that blocks under export leases may hold before new prefills wait, and beyond which nothing is
    shared with other workers; `shared_leases_max` bounds with how many of them at a time. `watermark`: the part of
    the pool kept free when admitting next to running sequences, so that their growth does not preempt at once.
    `queue_s`: how long a work waits for its place while no prompt before it gets on; `kv_wait_s`: how long it waits
    for its KV blocks while nobody brings any. Workers take both from `Deadlines`. `fetch_idle_s`: a fetch that has
    brought nothing for so long gives its blocks back when others wait for blocks. `fetch_ahead`: while steps have no
    budget for more prompts, the blocks that so many of those that wait want brought are fetched all the same.
    """

    max_sequences: int = 256
    max_batched_tokens: int = 2048
    min_prefill_tokens: int = 32
    itl_target_s: float = 0.05
    max_waiting: int = 1024
    queue_s: float = 10.0
    kv_wait_s: float = 30.0
    fetch_idle_s: float = 2.0
    fetch_ahead: int = 4
    export_share: float = 0.5
    shared_leases_max: int = 16
    watermark: float = 0.01
    prefix_cache: bool = True
    load_every_s: float = 0.05
    idle_load_every_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("max_sequences", "max_batched_tokens", "min_prefill_tokens", "max_waiting", "fetch_ahead"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("shared_leases_max", self.shared_leases_max >= 0, "0 or more")
        for name in ("itl_target_s", "queue_s", "kv_wait_s", "fetch_idle_s", "load_every_s", "idle_load_every_s"):
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require("export_share", 0 < self.export_share <= 1, "above 0 and at most 1")
        self._require("watermark", 0 <= self.watermark < 1, "in [0, 1)")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} must be {what}, got {getattr(self, name)}", param=name)
