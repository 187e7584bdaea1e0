"""Clients that come back to a restarted router get the rest, and what nobody comes back for is freed."""

from dataclasses import replace
from functools import cache

import pytest

from router.dispatch.answer_log import AnswerLog
from router.generation import Sink
from router.settings import RouterSettings
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.loop import Deadlock
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import Report, WorldSettings, simulate
from tandem.core.deadlines import Deadlines
from tandem.worker.attempt_manager import AttemptManager
from tandem.worker.attempts import Attempt
from tandem.worker.output_log import OutputLog
from tandem.worker.resumable_attempts import ResumableAttempts

SEEDS = range(6)
BUG_SEEDS = 12
WORLD = WorldSettings(
    traffic=TrafficProfile(requests=30, resumable_share=1.0),
    faults=FaultProfile(kills=0, corrupt_share=0.0, others=3, kinds=("router",)),
)

LONG = replace(
    WORLD,
    router=RouterSettings(deadlines=Deadlines(resumable_lease_s=2.0, router_restart_s=0.0)),
    model=replace(WORLD.model, blocks=600),
    traffic=TrafficProfile(requests=12, resumable_share=1.0, output_tokens=(1, 500)),
)
"""Answers that take longer than a lease."""


@cache
def report(seed: int) -> Report:
    return simulate(WORLD, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_client_that_returns_gets_a_whole_right_answer(seed: int) -> None:
    ends = {outcome.error or outcome.end for outcome in report(seed).outcomes}
    assert ends <= {"done", "cancelled", "disconnected"}


def test_the_seeds_did_cut_clients_off() -> None:
    outcomes = [outcome for seed in SEEDS for outcome in report(seed).outcomes]
    assert sum(outcome.away_s > 0 and outcome.end == "done" for outcome in outcomes) >= 15
    assert sum(outcome.end == "disconnected" for outcome in outcomes) >= 4


def test_leases_that_are_shorter_than_answers_end_in_time() -> None:
    for seed in range(3):
        simulate(LONG, seed)


def test_workers_die_too_and_no_promise_is_broken() -> None:
    faults = FaultProfile(kills=2, others=5, kinds=("router", "kill", "cut", "freeze", "break"))
    for seed in range(4):
        simulate(replace(WORLD, faults=faults), seed)


def forgetting(log: OutputLog, output: object) -> None:
    """Keeps nothing of what was said."""


def repeating(log: AnswerLog, sink: Sink, after: tuple[int, ...]) -> None:
    """Says everything to everybody."""
    log._listener = log._sink = sink
    for outputs in log._outputs:
        for one in outputs:
            sink.output(one)


def endless(holding: ResumableAttempts, now: float) -> tuple[()]:
    """Leases never end."""
    return ()


def keeping(desk: AttemptManager, attempt: Attempt) -> None:
    """Leases end, and what was held stays."""


@pytest.mark.parametrize(
    ("owner", "method", "bug"),
    [
        (OutputLog, "add", forgetting),
        (AnswerLog, "listen", repeating),
        (ResumableAttempts, "expired", endless),
        (AttemptManager, "_abandon", keeping),
    ],
    ids=["the log is empty", "everything is said again", "leases never end", "nothing is freed"],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, bug: object) -> None:
    monkeypatch.setattr(owner, method, bug)
    assert any(map(fails, range(BUG_SEEDS))), f"{BUG_SEEDS} seeds did not notice"


def fails(seed: int) -> bool:
    try:
        simulate(LONG, seed)
    except (AssertionError, Deadlock):
        return True
    return False
