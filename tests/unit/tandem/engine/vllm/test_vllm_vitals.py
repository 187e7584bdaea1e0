"""When a process of vLLM is lost, overdue or hung, and when it is merely busy."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.scheduler.activity import activity_of, family_of
from tandem.engine.scheduler.stall_detection import LOOK_EVERY_S, Activity
from tandem.engine.vllm.heartbeat import Heartbeat, HeartbeatSample, read_heartbeat
from tandem.engine.vllm.liveness import Bounds, LivenessMonitor, LivenessVerdict

BOUNDS = Bounds(beat_lost_s=2.0, step_min_s=30.0, step_max_s=600.0)
PID = 7


class Watched:
    """One process, looked at as often as a worker does."""

    def __init__(self, predicted_s: float = 0.1) -> None:
        self.now = 100.0
        self.sign = HeartbeatSample(PID, 100.0, None, 0, 0)
        self.activity: Activity | None = Activity("S", False, 5)
        self.longest_s = predicted_s
        self.liveness = LivenessMonitor(BOUNDS, lambda pid: self.activity, lambda sign: predicted_s)

    def until(self, seconds: float, *, beats: bool, works: bool = False) -> LivenessVerdict:
        """The first problem within so many seconds, or the last verdict."""
        verdict, end = LivenessVerdict(), self.now + seconds
        while self.now < end and verdict.problem is None:
            self.now += LOOK_EVERY_S
            if beats:
                self.sign = replace(self.sign, beat=self.now)
            if works and self.activity is not None:
                self.activity = replace(self.activity, ticks=self.activity.ticks + 1)
            verdict = self.liveness.look([self.sign], self.longest_s, self.now)
        return verdict


def test_what_beats_lives() -> None:
    assert Watched().until(60.0, beats=True) == LivenessVerdict()


@pytest.mark.parametrize("state", ["T", "S", "Z"])
def test_what_neither_beats_nor_runs_is_lost_within_three_seconds(state: str) -> None:
    watched = Watched()
    watched.until(5.0, beats=True)
    watched.activity = Activity(state, False, 5)
    begin = watched.now
    verdict = watched.until(10.0, beats=False)
    assert verdict.problem is not None
    assert str(PID) in verdict.problem
    assert BOUNDS.beat_lost_s <= watched.now - begin <= 3.0


def test_a_long_call_that_holds_pythons_lock_is_not_lost() -> None:
    watched = Watched()
    watched.until(5.0, beats=True)
    assert watched.until(15.0, beats=False, works=True).problem is None


@pytest.mark.parametrize("running", [True, False])
def test_a_process_that_waits_for_a_core_or_a_disk_is_not_lost(running: bool) -> None:
    watched = Watched()
    watched.until(5.0, beats=True)
    watched.activity = Activity("S", running, 5)
    assert (watched.until(15.0, beats=False).problem is None) == running


@pytest.mark.parametrize("predicted_s", [0.01, 4.0])
def test_a_step_of_fifteen_seconds_is_never_ended(predicted_s: float) -> None:
    watched = Watched(predicted_s)
    watched.sign = replace(watched.sign, step_since=100.0)
    verdict = watched.until(15.0, beats=True)
    assert verdict.problem is None
    assert (verdict.overdue_s > 0) == (predicted_s < 1)
    watched.sign = replace(watched.sign, step_since=None)
    assert watched.until(1.0, beats=True) == LivenessVerdict()


@pytest.mark.parametrize(("predicted_s", "hung_s"), [(0.01, 30.0), (10.0, 80.0), (31_318.0, 600.0)])
def test_a_step_hangs_by_its_prediction_within_bounds(predicted_s: float, hung_s: float) -> None:
    watched = Watched(predicted_s)
    watched.sign = replace(watched.sign, step_since=100.0)
    begin = watched.now
    verdict = watched.until(700.0, beats=True)
    assert verdict.problem is not None
    assert watched.now - begin == pytest.approx(hung_s, abs=1.0)


@given(st.floats(0.001, 10_000), st.floats(0.001, 10_000))
def test_what_is_hung_was_overdue_before_unless_a_setting_ends_it(predicted_s: float, longer_s: float) -> None:
    longest = max(predicted_s, longer_s)
    assert BOUNDS.hung_s(longest) >= min(BOUNDS.overdue_s(predicted_s), BOUNDS.step_max_s)


def test_nothing_is_held_against_others_while_the_worker_itself_did_not_run() -> None:
    watched = Watched()
    watched.sign = replace(watched.sign, step_since=100.0)
    watched.until(1.0, beats=True)
    watched.activity = Activity("S", False, 5)
    watched.now += 3600.0
    assert watched.until(LOOK_EVERY_S, beats=False) == LivenessVerdict()


def test_a_process_that_is_gone_is_told_of_by_others() -> None:
    watched = Watched()
    watched.activity = None
    assert watched.until(30.0, beats=False).problem is None


def seen_in(state: str, pid: int) -> Activity:
    """What a process does once it is in this state. The system tells that one has stopped, or goes on, apart from
    what it shows of it, and one that is short of memory waits for the disk (D) in between."""
    end = time.monotonic() + 60.0
    while (found := activity_of(pid)) is not None and found.state != state and time.monotonic() < end:
        time.sleep(0.01)
    assert found is not None, f"process {pid} is gone"
    assert found.state == state
    return found


def test_a_stopped_process_is_seen_as_such_and_a_busy_one_as_running() -> None:
    script = "print('begun', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as loop:
        try:
            assert loop.stdout is not None
            assert loop.stdout.readline() == b"begun\n"
            os.kill(loop.pid, signal.SIGSTOP)
            assert not seen_in("T", loop.pid).running
            os.kill(loop.pid, signal.SIGCONT)
            assert seen_in("R", loop.pid).running
            assert activity_of(os.getpid()) is not None
        finally:
            loop.kill()
    assert activity_of(loop.pid) is None


def test_a_pulse_shows_its_process_its_step_and_the_heavier_of_two_loads(tmp_path: Path) -> None:
    heartbeat, path = Heartbeat(tmp_path), tmp_path / str(os.getpid())
    first = read_heartbeat(path)
    assert first is not None
    assert (first.pid, first.step_since) == (os.getpid(), None)
    heartbeat.scheduled(3, 64)
    heartbeat.scheduled(4, 0)
    heartbeat.step_begins()
    heartbeat.says()
    sign = read_heartbeat(path)
    assert sign is not None
    assert (first.said, sign.said) == (0, 1)
    assert sign.step_since is not None
    assert sign.step_since >= first.beat
    assert (sign.rows, sign.prompt_tokens) == (3, 64)
    heartbeat.step_ends()
    ended = read_heartbeat(path)
    assert ended is not None
    assert ended.step_since is None
    assert read_heartbeat(tmp_path / "1") is None


def test_messages_are_counted_beyond_what_32_bits_hold(tmp_path: Path) -> None:
    """They come to that within months, in the engine's own loop."""
    heartbeat, path = Heartbeat(tmp_path), tmp_path / str(os.getpid())
    heartbeat._said = (1 << 32) - 1
    heartbeat.says()
    heartbeat.scheduled(3, 64)
    sign = read_heartbeat(path)
    assert sign is not None
    assert (sign.said, sign.rows, sign.prompt_tokens) == (1 << 32, 3, 64)


def test_a_thread_that_ends_while_a_family_is_looked_for_hides_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    listed = os.listdir
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", lambda path: ["0", *listed(path)])
            assert child.pid in family_of(os.getpid())
            found = activity_of(child.pid)
        assert found is not None
    finally:
        child.communicate(b"\n")
    assert family_of(child.pid) == [child.pid]
