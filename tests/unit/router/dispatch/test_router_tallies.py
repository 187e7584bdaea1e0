"""What a router counts of requests that have ended: whose fault it was, and whether it came in time."""

from typing import Any

import pytest

from router.dispatch.tallies import EndedRequest, ModelTally, Tallies, Tally
from router.fleet.services import ServiceFacts
from tandem.core.slo import Slo

FACTS = ServiceFacts("ns/s", "m", slo=Slo(ttft_s=2.0, tpot_s=0.1))


def counted(outcome: str = "done", revision: str = "r1", times: Any = (1.0, 0.05), facts: Any = FACTS) -> Tallies:
    tallies = Tallies()
    tallies.arrived("m")
    tallies.ended(EndedRequest("m", revision, outcome, times, 7), facts)
    return tallies


@pytest.mark.parametrize(
    ("outcome", "errors"),
    [
        ("done", 0),
        ("engine_failed", 1),
        ("worker_lost", 1),
        ("deadline_exceeded", 1),
        # Of the client, or of the router that stops.
        ("cancelled", 0),
        ("invalid_request", 0),
        ("slow_client", 0),
        ("draining", 0),
    ],
)
def test_a_rollout_is_judged_by_what_the_service_failed_alone(outcome: str, errors: int) -> None:
    """A revision is not taken back for what clients do, and not kept for what it fails."""
    tallies = counted(outcome)
    assert tallies.by_revision["m", "r1"] == Tally(1, errors, 0)
    assert tallies.by_model["m"] == ModelTally(requests=1, output_tokens=7)
    assert counted(outcome, revision="").by_model["m"].unplaced == errors
    assert not counted(outcome, revision="").by_revision


@pytest.mark.parametrize(
    ("outcome", "times", "facts", "misses"),
    [
        ("done", (2.1, 0.05), FACTS, 1),
        ("done", (1.9, 0.11), FACTS, 1),
        ("done", (2.0, 0.1), FACTS, 0),
        # What failed, what was taken over, and what nobody bounds is late for nobody.
        ("engine_failed", (2.1, 0.05), FACTS, 0),
        ("done", None, FACTS, 0),
        ("done", (2.1, 0.05), None, 0),
        # A router does not know how long the whole answer took its client.
        ("done", (1.9, 0.05), ServiceFacts("ns/s", "m", slo=Slo(ttft_s=2.0, e2e_s=0.5)), 0),
    ],
)
def test_an_answer_misses_its_objective_once(outcome: str, times: Any, facts: Any, misses: int) -> None:
    assert counted(outcome, times=times, facts=facts).by_revision["m", "r1"].slo_misses == misses


def test_a_request_that_had_to_leave_its_revision_is_an_error_of_that() -> None:
    tallies = Tallies()
    tallies.left("m", "r1")
    tallies.placed("m", 100)
    tallies.placed("m", 20)
    tallies.ended(EndedRequest("m", "r2", "done", None, 3), None)
    assert tallies.by_revision == {("m", "r1"): Tally(1, 1, 0), ("m", "r2"): Tally(1, 0, 0)}
    assert tallies.by_model["m"] == ModelTally(prompt_tokens=120, output_tokens=3)


def test_of_revisions_without_end_the_latest_are_remembered() -> None:
    tallies = Tallies()
    for number in range(1500):
        tallies.left("m", f"r{number}")
    assert len(tallies.by_revision) == 1024
    assert ("m", "r1499") in tallies.by_revision
    assert ("m", "r0") not in tallies.by_revision
