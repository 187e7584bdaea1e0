"""What the signs of an engine process come to: busy, overdue or stalled."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tandem.engine.scheduler.activity import activity_of, own_activity_of
from tandem.engine.scheduler.stall_detection import (
    LOOK_EVERY_S,
    STALLED_S,
    Activity,
    ProcessSample,
    StallDetector,
    StallVerdict,
    judge,
)


@pytest.mark.parametrize(
    ("sight", "predicted_s", "overdue_s", "how"),
    [
        (ProcessSample(), 0.0, 0.0, None),
        (ProcessSample(step_s=2.9), 0.01, 0.0, None),
        (ProcessSample(step_s=3.1), 0.01, 3.1, None),
        (ProcessSample(step_s=15.0), 4.0, 0.0, None),
        (ProcessSample(step_s=16.1), 4.0, 16.1, None),
        (ProcessSample(step_s=1.4, still_s=1.4), 0.01, 0.0, None),
        (ProcessSample(step_s=1.6, still_s=1.5), 60.0, 1.6, "neither runs nor uses processor time, for 1.5 s by now"),
        (ProcessSample(step_s=9.0, still_s=2.0, stopped=True), 60.0, 9.0, "is stopped, for 2.0 s by now"),
        (ProcessSample(still_s=1.75, stopped=True), 0.0, 1.75, "is stopped, for 1.8 s by now"),
        (ProcessSample(still_s=1.25, stopped=True), 0.0, 0.0, None),
    ],
)
def test_a_sight_is_judged_by_stillness_first_and_by_age_then(
    sight: ProcessSample, predicted_s: float, overdue_s: float, how: str | None
) -> None:
    assert judge(sight, predicted_s) == StallVerdict(overdue_s, f"the engine process {how}" if how else None)


class Watched:
    """One process, looked at as often as a worker does."""

    def __init__(self, *, waits_for_device: bool = False) -> None:
        self.now = 100.0
        self.step: int | None = None
        self.activity: Activity | None = Activity("S", False, 5)
        self.lookout = StallDetector(waits_for_device)
        self.look(1.0)

    def look(self, seconds: float, *, works: bool = False, steps: bool = False) -> StallVerdict:
        """The first verdict of a stalled process within so many seconds, or the last verdict."""
        verdict, end = StallVerdict(), self.now + seconds
        while self.now < end and verdict.stalled is None:
            self.now += LOOK_EVERY_S
            if works and self.activity is not None:
                self.activity = Activity(self.activity.state, self.activity.running, self.activity.ticks + 1)
            if steps:
                self.step = (self.step or 0) + 1
            verdict = judge(self.lookout.look(self.step, self.activity, self.now), 0.1)
        return verdict


def test_a_process_that_waits_for_work_is_well() -> None:
    assert Watched().look(600.0) == StallVerdict()


@pytest.mark.parametrize("step", [None, 1])
def test_a_stopped_process_is_stalled_with_and_without_a_step_within_two_seconds(step: int | None) -> None:
    watched = Watched()
    watched.step, watched.activity = step, Activity("T", False, 5)
    begin = watched.now
    assert watched.look(10.0).stalled is not None
    assert STALLED_S <= watched.now - begin <= STALLED_S + 2 * LOOK_EVERY_S
    watched.activity = Activity("S", True, 6)
    assert watched.look(LOOK_EVERY_S) == StallVerdict()


def test_a_step_that_begins_is_no_progress_of_a_stopped_process() -> None:
    watched = Watched()
    watched.activity = Activity("T", False, 5)
    assert watched.look(10.0).stalled is not None
    watched.step = 1
    assert watched.look(LOOK_EVERY_S).stalled is not None


def test_a_process_that_a_debugger_stops_for_a_moment_is_well() -> None:
    watched = Watched()
    watched.step = 1
    for _ in range(10):
        watched.activity = Activity("t", False, 5)
        assert watched.look(LOOK_EVERY_S).stalled is None
        watched.activity = Activity("R", True, 5)
        assert watched.look(LOOK_EVERY_S).stalled is None


def test_a_step_in_which_nothing_runs_is_stalled() -> None:
    watched = Watched()
    watched.step = 1
    assert "neither runs" in str(watched.look(10.0).stalled)


def test_what_waits_for_its_device_is_overdue_and_never_stalled_for_that() -> None:
    watched = Watched(waits_for_device=True)
    watched.step = 1
    verdict = watched.look(60.0)
    assert verdict.stalled is None
    assert verdict.overdue_s > 3.0
    watched.activity = Activity("T", False, 5)
    assert watched.look(60.0).stalled is not None


@pytest.mark.parametrize("running", [True, False])
def test_a_long_step_is_overdue_while_it_lasts_and_never_stalled(running: bool) -> None:
    """It uses processor time, or waits for a core or a disk."""
    watched = Watched()
    watched.step, watched.activity = 1, Activity("R", running, 5)
    verdict = watched.look(100.0, works=not running)
    assert verdict.stalled is None
    assert verdict.overdue_s > 90.0
    watched.step = 2
    assert watched.look(LOOK_EVERY_S) == StallVerdict()


def test_steps_that_follow_each_other_are_progress_whatever_the_clock_of_the_processor_says() -> None:
    assert Watched().look(60.0, steps=True) == StallVerdict()


def test_nothing_is_held_against_the_process_while_the_worker_itself_did_not_run() -> None:
    watched = Watched()
    watched.step = 1
    watched.look(LOOK_EVERY_S)
    watched.now += 3600.0
    assert watched.look(LOOK_EVERY_S) == StallVerdict()


def test_a_process_that_is_gone_is_told_of_by_others() -> None:
    watched = Watched()
    watched.activity = None
    assert watched.look(60.0).stalled is None


def test_the_first_thread_of_a_process_shows_that_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            os.kill(child.pid, signal.SIGSTOP)
            end = time.monotonic() + 60.0
            while (found := own_activity_of(child.pid)) is not None and found.state != "T":
                assert time.monotonic() < end
                time.sleep(0.01)
            assert found is not None
            assert not found.running
            assert activity_of(child.pid) == found
        finally:
            child.kill()
    assert own_activity_of(child.pid) is None
