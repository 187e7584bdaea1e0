"""The drain of a worker: its deadline, and what became of the attempts that the worker still held."""

import asyncio
from dataclasses import dataclass

from tandem.core.clock import Clock
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class DrainResult:
    """The outcome of the attempts that ran when the worker began to drain: they finished here, were taken back by
    their router (moved to another worker, or cancelled by their client), or were cut off at the bound."""

    finished: int = 0
    taken: int = 0
    cut: int = 0


class DrainState:
    """The drain of one worker, owned by its host. A worker that has been asked to leave never stays longer than it
    first announced."""

    def __init__(self, worker_id: str, clock: Clock) -> None:
        self._worker_id = worker_id
        self._clock = clock
        self._leaves_at: float | None = None
        self._counting = False
        self._finished = 0
        self._taken = 0
        self._cut = 0
        self.asked = asyncio.Event()

    @property
    def left_s(self) -> float | None:
        """Seconds until the worker has left; None while it stays."""
        return None if self._leaves_at is None else max(0.0, self._leaves_at - self._clock.now())

    @property
    def farewell(self) -> DrainResult:
        return DrainResult(self._finished, self._taken, self._cut)

    def begin(self, within_s: float) -> bool:
        """Leave within the bound, or the one that was given before when that is earlier; whether this is news."""
        leaves_at = self._clock.now() + within_s
        if self._leaves_at is not None and self._leaves_at <= leaves_at:
            return False
        self._leaves_at = leaves_at
        self._counting = True
        self.asked.set()
        return True

    def refusal(self, *, hands_over: bool = False) -> TandemError | None:
        """The error that refuses new work, or None while work is welcome. Work that `hands_over` this worker's own
        blocks is always welcome."""
        if self._leaves_at is None or hands_over:
            return None
        return TandemError("draining", f"worker {self._worker_id} is leaving")

    def attempt_ended(self, *, taken: bool) -> None:
        """An attempt has ended; `taken` when its router or a failure ended it."""
        if self._counting:
            self._taken += taken
            self._finished += not taken

    def cut_off(self, attempts: int) -> None:
        """The waiting is over, with so many attempts left. What ends from now on was ended by that."""
        self._counting = False
        self._cut += attempts
