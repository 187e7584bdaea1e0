"""Whole platforms with kills and corrupted blocks: promises hold, seeds repeat themselves, planted bugs are found."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from kv_transfer import pull_verification as verifying
from kv_transfer.verify import Refusal
from router.dispatch.positions import Mismatch, Positions
from router.dispatch.sequences import Sequences
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.faults.corrupt import Corrupt
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.loop import Deadlock
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import Report, WorldSettings, simulate
from tandem.core.kv import Handle
from tandem.core.messages import SequenceOutput
from tandem.core.request import ChildRequest
from tandem.engine.scheduler.leases import LeaseTable

SEEDS = range(10)
WORLD = WorldSettings(faults=FaultProfile(kills=2, corrupt_share=1.0))
SMALL = replace(WORLD, traffic=TrafficProfile(requests=15))
LOUD = 12
"""A seed in which routers and workers have something to warn of."""


@cache
def report(seed: int) -> Report:
    return simulate(WORLD, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    found = report(seed)
    assert sum(isinstance(fault, Kill) for fault in found.faults) == 2
    assert any(isinstance(fault, Corrupt) for fault in found.faults)
    assert {outcome.end for outcome in found.outcomes} <= {"done", "cancelled"}
    assert sum(outcome.end == "done" for outcome in found.outcomes) >= 30


def test_the_seeds_did_break_what_they_were_to_break() -> None:
    assert sum(report(seed).corrupted for seed in SEEDS) >= 5
    assert len({report(seed).trace for seed in SEEDS}) == len(SEEDS)


def test_nothing_is_logged_while_a_world_is_simulated(caplog: pytest.LogCaptureFixture) -> None:
    simulate(varied(SMALL, LOUD), LOUD)
    assert not caplog.records
    logging.getLogger("tandem").warning("afterwards")
    assert [record.message for record in caplog.records] == ["afterwards"]


def test_no_workers_but_unified_ones() -> None:
    for seed in range(3):
        simulate(replace(SMALL, prefill=0, decode=3), seed)


def test_a_seed_repeats_itself() -> None:
    assert simulate(WORLD, 3) == report(3)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_repeats_itself_in_another_process(hash_seed: str) -> None:
    program = (
        "from tandem.apps.simulation.faults.drawing import FaultProfile\n"
        "from tandem.apps.simulation.world import WorldSettings, simulate\n"
        "report = simulate(WorldSettings(faults=FaultProfile(kills=2, corrupt_share=1.0)), 4)\n"
        "print(report.trace, report.rounds, report.virtual_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    here = report(4)
    assert done.stdout.split() == [here.trace, str(here.rounds), str(here.virtual_s)]


def trusting(
    words: Sequence[bytes], handles: Sequence[Handle], *, epoch: int, names: Sequence[bytes]
) -> list[bytes | Refusal]:
    """Takes whatever arrives."""
    return [handle.digests for handle in handles]


def repeating(positions: Positions, output: SequenceOutput) -> SequenceOutput | Mismatch | None:
    """Delivers whatever arrives."""
    positions.tokens.extend(output.tokens)
    positions.text_chars += len(output.text)
    positions.finish = output.finish
    return output


def reseeded(sequences: Sequences) -> tuple[ChildRequest, ...]:
    """Goes on with other random numbers than it began with."""
    return tuple(
        ChildRequest(
            each.sequence, sequences._generation.seed + len(each.tokens), tuple(each.tokens), each.text_chars
        )
        for each in sequences.unfinished()
    )


def keeping(leases: LeaseTable, lease: object) -> None:
    """Ends leases and keeps their blocks."""


@pytest.mark.parametrize(
    ("owner", "method", "bug"),
    [
        (verifying, "judge", trusting),
        (Positions, "accept", repeating),
        (Sequences, "branches", reseeded),
        (LeaseTable, "_unpin_all", keeping),
    ],
    ids=["digests are not checked", "repeats are delivered", "resumed with another seed", "blocks stay pinned"],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, method, bug)
    assert any(fails(SMALL, seed) for seed in SEEDS), f"{len(SEEDS)} seeds did not notice"


def fails(settings: WorldSettings, seed: int) -> bool:
    try:
        simulate(settings, seed)
    except (Violation, AssertionError, Deadlock):
        return True
    return False
