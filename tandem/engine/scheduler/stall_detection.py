"""Detection of engine processes that make no progress, and the consequences for their requests. Pure.

A process that runs or uses processor time is busy, and its step is judged by its age alone. A process that does
neither for `STALLED_S` during a step is stalled. A process that is stopped for `STALLED_S` is stalled between steps
too. A step older than 4 × its prediction is overdue.

An overdue engine gets no new requests until its step is over, and keeps those it has. A stalled engine gives up the
requests it has as well. Time counts as the worker has seen it pass: while the worker itself does not run, no time is
held against other processes.
"""

from dataclasses import dataclass
from typing import Final

LOOK_EVERY_S: Final = 0.25
GAP_MAX_S: Final = 2 * LOOK_EVERY_S
"""The most seconds that the gap between two looks at a process counts for."""
STALLED_S: Final = 1.5
STOPPED: Final = frozenset("TtXZ")
"""States of a process, in the words of /proc, in which it cannot run."""
_OVERDUE_MIN_S: Final = 3.0
_OVERDUE: Final = 4.0


def overdue_after_s(predicted_s: float) -> float:
    """The age from which a step takes too long that is predicted to take `predicted_s`."""
    return max(_OVERDUE_MIN_S, _OVERDUE * predicted_s)


@dataclass(frozen=True)
class Activity:
    """The activity of a process, its threads and those of its children. `state` is the state of the process itself in
    the terms of /proc, `running` is whether any thread computes or waits for a core or for a disk, and `ticks` is the
    processor time that all threads have used."""

    state: str
    running: bool
    ticks: int


@dataclass(frozen=True)
class ProcessSample:
    """A sample of what an engine process shows. `step_s` is the age of the step that runs, None between steps; for
    `still_s` the process has neither run nor used processor time. `ended` says in words why it was ended; it is empty
    while the process has not been ended."""

    step_s: float | None = None
    still_s: float = 0.0
    stopped: bool = False
    ended: str = ""


@dataclass(frozen=True)
class StallVerdict:
    """The verdict on an engine process. `overdue_s` is for how many seconds the engine has made no progress, zero
    while it makes progress. `stalled` is the reason why its requests are given up."""

    overdue_s: float = 0.0
    stalled: str | None = None


def judge(sight: ProcessSample, predicted_s: float) -> StallVerdict:
    """The verdict on a sample, where the step that runs is predicted to take `predicted_s`."""
    step_s = sight.step_s or 0.0
    if sight.still_s >= STALLED_S:
        how = "is stopped" if sight.stopped else "neither runs nor uses processor time"
        return StallVerdict(max(step_s, sight.still_s), f"the engine process {how}, for {sight.still_s:.1f} s by now")
    return StallVerdict(step_s) if step_s > overdue_after_s(predicted_s) else StallVerdict()


@dataclass
class StallDetector:
    """Looks at one process; one owner changes it in place. One that computes on a device may wait for that without
    using processor time: with `waits_for_device` it is still only when it is stopped."""

    waits_for_device: bool = False
    _looked: float | None = None
    _step: int | None = None
    _step_s: float = 0.0
    _still_s: float = 0.0
    _ticks: int = -1

    def look(self, step: int | None, activity: Activity | None, now: float) -> ProcessSample:
        """Take the sample at `now`. `step` is the number of the running step, None between steps. `activity` is None
        for a process that is gone, which is reported elsewhere."""
        gap_s = min(GAP_MAX_S, now - self._looked) if self._looked is not None else 0.0
        same = step is not None and step == self._step
        stopped = activity is not None and activity.state in STOPPED
        self._still_s = self._still_s + gap_s if stopped or (same and self._waits(activity)) else 0.0
        self._step_s = self._step_s + gap_s if same else 0.0
        self._looked, self._step = now, step
        self._ticks = activity.ticks if activity is not None else -1
        return ProcessSample(self._step_s if step is not None else None, self._still_s, stopped)

    def _waits(self, activity: Activity | None) -> bool:
        if activity is None or activity.running or self.waits_for_device:
            return False
        return activity.ticks == self._ticks
