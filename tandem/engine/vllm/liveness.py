"""Judges whether vLLM's processes live and how their steps get on, from their pulses. No vLLM.

    beats                                     alive
    beats no more, but runs or has children   busy: a long call holds Python's lock; its step is judged like any other
    beats no more, and nothing of it runs     lost: it is ended
    a step older than 4 × its prediction      overdue: no new work until it is over
    a step older than any may be              hung: it is ended

Time counts as the worker has seen it pass: while the worker itself does not run, nothing is held against others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandem.engine.scheduler.stall_detection import GAP_MAX_S, STOPPED, Activity, overdue_after_s
from tandem.engine.vllm.heartbeat import BEAT_EVERY_S, HeartbeatSample

_MISSED_S: Final = 5 * BEAT_EVERY_S
"""Seconds without a beat after which the worker checks whether a process runs at all."""
_HUNG: Final = 8.0


@dataclass(frozen=True)
class Bounds:
    """Bounds in seconds. A process is lost after `beat_lost_s` without a beat. A step is hung after eight times the
    predicted duration of the longest step, but not before `step_min_s` nor after `step_max_s`."""

    beat_lost_s: float
    step_min_s: float
    step_max_s: float

    def overdue_s(self, predicted_s: float) -> float:
        return overdue_after_s(predicted_s)

    def hung_s(self, longest_s: float) -> float:
        return min(self.step_max_s, max(self.step_min_s, _HUNG * longest_s))


@dataclass(frozen=True)
class LivenessVerdict:
    """`problem`: why the engine is to be ended. `overdue_s`: how old the step is that takes too long, or zero."""

    problem: str | None = None
    overdue_s: float = 0.0


@dataclass
class _Seen:
    """One process: its last beat, for how long it has not beaten, and for how long nothing of it has run."""

    beat: float = -1.0
    silent_s: float = 0.0
    still_s: float = 0.0
    ticks: int = -1
    step_since: float | None = None
    step_s: float = 0.0


@dataclass
class LivenessMonitor:
    """Watches the processes of one engine; a single owner changes it in place. `activity(pid)` is None for a process
    that is gone, and `predicted_s(sign)` is the predicted duration of the step that a process is in."""

    bounds: Bounds
    activity: Callable[[int], Activity | None]
    predicted_s: Callable[[HeartbeatSample], float]
    _looked: float | None = None
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def look(self, signs: Iterable[HeartbeatSample], longest_s: float, now: float) -> LivenessVerdict:
        """The verdict on the samples of all processes; `longest_s` is what the longest step is predicted to take."""
        gap_s = min(GAP_MAX_S, now - self._looked) if self._looked is not None else 0.0
        self._looked = now
        overdue_s = 0.0
        for sign in signs:
            seen = self._seen.setdefault(sign.pid, _Seen())
            if (problem := self._lost(sign, seen, gap_s)) is not None:
                return LivenessVerdict(problem)
            self._age(sign, seen, gap_s)
            predicted_s = self.predicted_s(sign)
            if seen.step_s > self.bounds.hung_s(max(longest_s, predicted_s)):
                return LivenessVerdict(
                    f"a step of vLLM has taken {seen.step_s:.1f} s, and {predicted_s:.2f} s were expected"
                )
            if seen.step_s > self.bounds.overdue_s(predicted_s):
                overdue_s = max(overdue_s, seen.step_s)
        return LivenessVerdict(None, overdue_s)

    def _age(self, sign: HeartbeatSample, seen: _Seen, gap_s: float) -> None:
        if sign.step_since is None or sign.step_since != seen.step_since:
            seen.step_since, seen.step_s = sign.step_since, 0.0
        else:
            seen.step_s += gap_s

    def _lost(self, sign: HeartbeatSample, seen: _Seen, gap_s: float) -> str | None:
        if sign.beat != seen.beat:
            seen.beat, seen.silent_s, seen.still_s, seen.ticks = sign.beat, 0.0, 0.0, -1
            return None
        seen.silent_s += gap_s
        if seen.silent_s < _MISSED_S:
            return None
        found = self.activity(sign.pid)
        if found is None:
            return None
        stopped = found.state in STOPPED
        if stopped or (found.ticks == seen.ticks and not found.running):
            seen.still_s += gap_s
        else:
            seen.ticks, seen.still_s = found.ticks, 0.0
        if seen.silent_s < self.bounds.beat_lost_s or (
            not stopped and seen.still_s < self.bounds.beat_lost_s - _MISSED_S
        ):
            return None
        how = "is stopped" if stopped else "shows no sign of life"
        return f"vLLM's process {sign.pid} {how}: no beat for {seen.silent_s:.1f} s"
