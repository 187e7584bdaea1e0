"""Replays without faults: every request is answered in full, soon, and the same way again."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from router.settings import RouterSettings
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.command import main
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Shape, named_workers
from tandem.apps.simulation.replay import Arrival, Replayed, ReplaySettings, replay
from tandem.core.kv import pack_tokens
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel

MODEL = SimulatedModel(blocks=512, base_s=0.01, token_s=1e-4)
SHAPE = Shape(named_workers(2, 2), MODEL, SchedulerSettings(), RouterSettings(), NetworkProfile())
SETTINGS = ReplaySettings(SHAPE, check_every=1)


def prompts(count: int, shared: int = 0) -> list[Arrival]:
    """Requests every 20 ms, 40 tokens in and 6 out, of which the first `shared` are the same for all."""
    return [
        Arrival(
            number * 0.02,
            pack_tokens([300 + at for at in range(shared)] + [1000 + number * 50 + at for at in range(40 - shared)]),
            6,
        )
        for number in range(count)
    ]


def test_every_request_is_answered_in_full_and_in_the_time_that_steps_take() -> None:
    done = replay(SETTINGS, prompts(40))
    tally = done.tally
    assert tally.ends == {"done": 40}
    assert tally.output_tokens == 240
    assert len(tally.ttft_s) == 40
    assert len(tally.gaps_s) == 200
    assert min(tally.ttft_s) >= MODEL.base_s + 40 * MODEL.token_s
    assert min(gap for gap in tally.gaps_s if gap > 1e-9) > 0.005
    assert done.handed_off >= 10


def test_what_prompts_share_is_computed_once_per_worker() -> None:
    alone, together = replay(SETTINGS, prompts(40)), replay(SETTINGS, prompts(40, shared=32))
    assert alone.tally.cached_tokens == 0
    assert together.tally.cached_tokens > 30 * 32


def test_checking_changes_nothing() -> None:
    checked, unchecked = replay(SETTINGS, prompts(20)), replay(replace(SETTINGS, check_every=0), prompts(20))
    assert figures(checked) == figures(unchecked)


def test_with_invariants_on_a_leak_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseTable, "_unpin_all", lambda _leases, _lease: None)
    with pytest.raises((AssertionError, Violation)):
        replay(SETTINGS, prompts(10))


def test_progress_is_told_after_every_end() -> None:
    ended: list[int] = []
    replay(SETTINGS, prompts(10), progress=lambda tally, _now: ended.append(tally.ended))
    assert ended == list(range(1, 11))


def test_unified_workers_hand_nothing_off() -> None:
    shape = replace(SHAPE, workers=named_workers(0, 3))
    done = replay(ReplaySettings(shape, check_every=1), prompts(20))
    assert done.tally.ends == {"done": 20}
    assert done.handed_off == 0


def figures(done: Replayed) -> tuple[object, ...]:
    return (done.virtual_s, list(done.tally.ttft_s), list(done.tally.gaps_s))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations of three turns, the second turn of each with the first one's tokens."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": turn * 900, "input_length": 512 * (turn + 1), "output_length": 10,
         "hash_ids": [100 * talk + block for block in range(turn + 1)]}
        for turn in range(3) for talk in range(2)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_recorded_trace_is_replayed_and_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(trace), "--prefill", "1", "--decode", "1", "--check-every", "1"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    rows = dict(line.rsplit("  ", 1) for line in said.splitlines()[1:])
    rows = {name.strip(): figure.strip() for name, figure in rows.items()}
    assert rows["done"] == "6"
    assert rows["prompt tokens"] == "6,144"
    assert rows["not computed again"] == "50.0%"
    assert rows["output tokens"] == "60"
    assert {"TTFT p50", "ITL p99", "requests per CPU second"} <= rows.keys()


def test_lengths_and_times_can_be_scaled(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--scale", "1/8", "--speed", "10", "--requests", "4", "--prefill", "0"]) == 0
    said = capsys.readouterr().out
    assert "4 of 6 requests, lengths x 0.125, speed x 10, on 8 workers of h100-llama-3.1-8b" in said
    assert "invariants off" in said


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_replay_repeats_itself_in_another_process(hash_seed: str) -> None:
    program = (
        "from tests.sim.test_replay import SETTINGS, figures, prompts, replay\n"
        "print(figures(replay(SETTINGS, prompts(20))))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(figures(replay(SETTINGS, prompts(20))))
