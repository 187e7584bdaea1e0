"""How large a worker is and how it schedules; and whom it tells."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from benchmarks.fleet.onboarding import Holders
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.tiers import TierSettings
from benchmarks.fleet.worker_request import WorkerRequest
from tandem.engine.settings import SchedulerSettings

_TANDEM: Final = SchedulerSettings()
_ENGINE_BLOCK: Final = 16
_MARGIN: Final = 1.01
"""The mean of what schedulers learn where steps have no noise."""


@dataclass(frozen=True)
class WorkerSettings:
    """A worker's size and its scheduler's bounds.

    `itl_target_s`: as in a worker of Tandem, prompts are chunked so that steps with running sequences stay below it,
    but for `min_prefill_tokens` a step; None, as in engines whose chunks are fixed: `max_batched_tokens` alone
    bounds them. The target is divided by `margin`, which schedulers learn: how many times its prediction a step may
    last. Chunks end at edges of blocks of `engine_block_tokens` where possible. `look_s` bounds how far steps
    are advanced at once while the pool is full, so that what is evicted is told in time; `steps_max` how many steps
    (1: one by one). `step_noise` is the standard deviation of the logarithm of a step's time, whose mean stays what
    `step_time` says; 0 for exact times. With noise steps are advanced one by one. The other settings are those of
    `tandem.engine.settings.SchedulerSettings`, with its defaults.
    """

    kv_tokens: int
    block_tokens: int
    step_time: StepTime
    max_batched_tokens: int = 8192
    min_prefill_tokens: int = 32
    itl_target_s: float | None = None
    margin: float = 1.0
    engine_block_tokens: int = 1
    max_sequences: int = 256
    watermark: float = _TANDEM.watermark
    export_share: float = _TANDEM.export_share
    fetch_ahead: int = _TANDEM.fetch_ahead
    fetch_idle_s: float = _TANDEM.fetch_idle_s
    tiers: tuple[TierSettings, ...] = ()
    load_every_s: float = 0.05
    look_s: float = 0.2
    steps_max: int = 1 << 40
    step_noise: float = 0.0
    tells_fit: bool = True
    """Whether it tells what it has learned of its steps, as Tandem's engines do."""
    fit_every_s: float = 0.5
    """How often that is: with every heartbeat."""
    hardware: str = ""
    """What it computes on, as it tells; workers of equal hardware are taken to be as fast."""

    def as_in_production(self, itl_target_s: float = _TANDEM.itl_target_s) -> "WorkerSettings":
        """The same worker as Tandem runs it: prompts are held to the ITL target, in its chunks and blocks."""
        return replace(
            self,
            max_batched_tokens=_TANDEM.max_batched_tokens,
            min_prefill_tokens=_TANDEM.min_prefill_tokens,
            itl_target_s=itl_target_s,
            margin=_MARGIN,
            engine_block_tokens=_ENGINE_BLOCK,
        )


class Listener(Holders, Protocol):
    """What a worker tells, at the time it happens."""

    def first_token(self, job: WorkerRequest, now: float) -> None: ...

    def finished(self, job: WorkerRequest, now: float) -> None: ...

    def reserved(self, job: WorkerRequest, now: float) -> None:
        """A job that is handed over has its room: blocks may come."""
        ...

    def withdrawn(self, job: WorkerRequest, now: float) -> None:
        """It has given its room back, and waits for it again."""
        ...

    def blocks(
        self, worker: int, tier: str, stored: tuple[int, ...], removed: tuple[int, ...], now: float
    ) -> None: ...

    def wake_at(self, worker: int, at: float, action: Callable[[float], None]) -> None:
        """Call back then."""
        ...
