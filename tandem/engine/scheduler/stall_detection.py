"""Whether an engine process gets on, and what that means for its works. Pure.

    runs, or uses processor time             busy: its step is judged by its age alone
    neither for `STALLED_S`, in a step       stalled
    stopped for `STALLED_S`                  stalled, between steps too
    a step older than 4 × its prediction     overdue

An engine that is overdue gets no new work until its step is over, and keeps what it has. One that is stalled gives up
what it has as well. Time counts as the worker has seen it pass: while the worker itself does not run, nothing is held
against others.
"""

from dataclasses import dataclass
from typing import Final

LOOK_EVERY_S: Final = 0.25
GAP_MAX_S: Final = 2 * LOOK_EVERY_S
"""No look counts for more."""
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
    """Of a process, its threads and those of its children: `state` is its own in the words of /proc, `running`
    whether any thread computes, waits for a core or for a disk, `ticks` the processor time all have used."""

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
    """`overdue_s`: for how long the engine has not got on, zero while it does. `stalled`: why its works are given
    up."""

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
        """The sight of `now`. `step` is the number of the step that runs, None between steps; `activity` is None for
        a process that is gone, of which others tell."""
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
