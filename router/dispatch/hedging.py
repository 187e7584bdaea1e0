"""Hedging: when prefill is late, a second attempt elsewhere races it to the first token. Off by default.

Both attempts draw from (seed, sequence, position), so either brings the same token, and a position is accepted once,
from whichever attempt brings it. The first attempt to bring one goes on alone; the other is cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass

from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.sequences import Sequences
from router.settings import RetrySettings

Incarnation = tuple[str, int]
"""A worker's id and epoch."""


@dataclass(frozen=True)
class HedgeDecision:
    """Whether a second attempt is due, and why; `look_at` is when to decide again, None for never."""

    hedge: bool
    reason: str
    look_at: float | None = None


def decide_hedge(attempt: Attempt, moved: bool, settings: RetrySettings, now: float) -> HedgeDecision:
    """Decide whether a running attempt is hedged; `moved` says whether it has delivered a position. Pure.

    An attempt is late when it takes `hedge_after` times as long as placement expected queue and prefill to take, and
    at least `hedge_after_s`. When neither is set, no attempt is ever late.
    """
    if settings.hedge_after is None and settings.hedge_after_s is None:
        return HedgeDecision(False, "hedging is off")
    if attempt.prefill is None or moved:
        return HedgeDecision(False, "the first token is here, or nobody else computes it")
    if attempt.number >= settings.attempts_max:
        return HedgeDecision(False, "it has had all its attempts")
    cost = attempt.placement.costs[0][1]
    expected_s = (cost.queue_ms + cost.fetch_ms + cost.prefill_ms) / 1e3
    patience_s = max((settings.hedge_after or 0.0) * expected_s, settings.hedge_after_s or 0.0)
    if now < attempt.started + patience_s:
        return HedgeDecision(False, "it is not late yet", attempt.started + patience_s)
    waited_s = now - attempt.started
    return HedgeDecision(True, f"no first token after {waited_s:.3f} s, {expected_s:.3f} s were expected")


class Hedging:
    """The second attempt of one request, while there is one. The first stays with its owner, whose `close` ends an
    attempt with an outcome."""

    def __init__(self, settings: RetrySettings, sequences: Sequences, close: Callable[[Attempt, str], None]) -> None:
        self._settings = settings
        self._sequences = sequences
        self._close = close
        self._looked: Attempt | None = None
        self.second: Attempt | None = None

    def next_look(self, attempt: Attempt, otherwise: float, now: float) -> float:
        """When to look at the attempt again, given that a look for other reasons is due at `otherwise`."""
        if self._settings.hedge_after is None and self._settings.hedge_after_s is None:
            return otherwise
        look_at = self._late(attempt, now).look_at
        return otherwise if look_at is None else min(otherwise, look_at)

    def look(self, attempt: Attempt, now: float, begin: Callable[[Incarnation], bool]) -> None:
        """Have a second attempt begun, once, if the first is late. `begin` avoids the late worker, and returns
        whether another worker could take the attempt."""
        found = self._late(attempt, now)
        if found.hedge and attempt.prefill is not None:
            self._looked = attempt
            begun = begin((attempt.prefill.peer.worker_id, attempt.prefill.peer.epoch))
            attempt.notes.append(f"{found.reason}; {'raced by another attempt' if begun else 'nobody may race it'}")

    def runs(self, leg: WorkerStream) -> bool:
        """Whether the leg belongs to the second attempt."""
        return self.second is not None and leg in self.second.worker_streams()

    def take(self) -> Attempt | None:
        """The second attempt, which from now on is the caller's."""
        second, self.second = self.second, None
        return second

    def decide(self, first: Attempt, leg: WorkerStream) -> Attempt:
        """The attempt that goes on after `leg` has delivered a position; ends the attempt that lost to it."""
        if self.second is None:
            return first
        won, second = self.runs(leg), self.second
        self.second = None
        winner, loser = (second, first) if won else (first, second)
        winner.notes.append(f"brought the first token before attempt {loser.number}")
        self._close(loser, "outrun")
        return winner

    def fall_back(self, first: Attempt, leg: WorkerStream, code: str, message: str) -> Attempt | None:
        """End the failed attempt of `leg` and return the other attempt. Returns None, and ends nothing, when there is
        no other."""
        lost, second = self.runs(leg), self.take()
        if second is None:
            return None
        loser, left = (second, first) if lost else (first, second)
        loser.notes.append(message)
        self._close(loser, code)
        return left

    def retire(self) -> None:
        """Release the callback that ends attempts, once the request is over."""
        self._close = _nobody

    def _late(self, attempt: Attempt, now: float) -> HedgeDecision:
        if self._looked is attempt:
            return HedgeDecision(False, "it has been raced already")
        return decide_hedge(attempt, not self._sequences.lacks_all_first(attempt), self._settings, now)


def _nobody(attempt: Attempt, outcome: str) -> None:
    raise AssertionError(f"attempt {attempt.number} ended ({outcome}) after its request")
