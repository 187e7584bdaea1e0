"""What placement makes of how far answers are, and of lulls: a batch about to end has room, an idle hour ends."""

from math import log

import pytest
from msgspec import structs

from kv_transfer.index.protocol import Held
from router.placement import CostModel, Placement, PlacementRequest, WorkerView, make_policy
from router.placement.decision import Work
from router.placement.learning.answer_lengths import AnswerLengths, Lengths
from router.placement.policies.progress import Progress
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tests.unit.router.placement.test_router_placement import ask, placed, view

ANSWER = 1000
STEP_MS = 10.0
"""Answers take 10 s."""


def attempt(worker_id: str) -> Placement:
    found = placed(ask(max_tokens=ANSWER), view(worker_id, "unified"))
    return structs.replace(found, answer_tokens=float(ANSWER))


def lengths(*tokens: float) -> Lengths:
    """What is known after many answers that were as long as these, in turn."""
    answers = AnswerLengths()
    for number in range(600):
        answers.observe(ANSWER, tokens[number % len(tokens)])
    known = answers.of(ANSWER)
    assert known is not None
    return known


EQUAL = lengths(ANSWER)
MEMORYLESS = lengths(*(-ANSWER * log((each * 41 % 64 + 0.5) / 64) for each in range(64)))


def lasting(progress: Progress, worker_id: str, now: float, known: Lengths = EQUAL) -> float:
    return progress.lasting([view(worker_id, "unified")], STEP_MS, known, now).get(worker_id, 1.0)


def test_sequences_last_twice_the_usual_when_they_begin_and_not_at_all_at_their_end() -> None:
    progress = Progress()
    progress.placed(attempt("w"), 1, 100.0)
    assert lasting(progress, "w", 100.0) == pytest.approx(2.0)
    assert lasting(progress, "w", 105.0) == pytest.approx(1.0)
    assert lasting(progress, "w", 110.0) == pytest.approx(0.0)
    assert lasting(progress, "w", 200.0) == 0.0
    progress.placed(attempt("w"), 1, 110.0)
    assert lasting(progress, "w", 110.0) == pytest.approx(1.0), "one has begun, the other is about to end"
    assert lasting(progress, "other", 110.0) == 1.0
    fast = progress.lasting([view("w", "unified")], 0.5, EQUAL, 110.0)
    assert fast["w"] < 0.2, "steps of half a millisecond would have ended both"


def test_answers_of_all_lengths_tell_nothing_by_having_lasted() -> None:
    progress = Progress()
    progress.placed(attempt("w"), 1, 0.0)
    for now in (0.0, 5.0, 10.0, 15.0):
        assert lasting(progress, "w", now, MEMORYLESS) == pytest.approx(1.0, rel=0.25)


def test_where_some_think_what_has_outlasted_the_others_lasts_longest() -> None:
    progress, thinking = Progress(), lengths(*([100.0] * 9), 10_000.0)
    progress.placed(attempt("w"), 1, 0.0)
    young, old = lasting(progress, "w", 0.0, thinking), lasting(progress, "w", 5.0, thinking)
    assert old > 5 * young


def test_what_has_ended_or_was_lost_leaves_nothing() -> None:
    progress, first, second = Progress(), attempt("w"), attempt("w")
    progress.placed(first, 1, 0.0)
    progress.placed(second, 1, 9.0)
    progress.ended(first)
    progress.ended(first)
    assert lasting(progress, "w", 10.0) == pytest.approx(1.8)
    progress.forget("w")
    assert lasting(progress, "w", 10.0) == 1.0
    progress.placed(attempt("w"), 1, 10.0)
    progress.ended(second)
    assert lasting(progress, "w", 10.0) == pytest.approx(2.0), "an attempt of the worker's life before"


def choice(costs: CostModel, workers: list[WorkerView], old: int, young: int) -> str:
    """Of two workers: `old` has the more sequences, which began 15 s before those of `young`."""
    settings = PlacementSettings(expected_output_tokens=ANSWER)
    policy = make_policy(settings, SeededEntropy(0))
    for worker, count, began in ((workers[0], old, 0.0), (workers[1], young, 15.0)):
        for _ in range(count):
            found = policy.choose(_request(), [worker], costs, settings, None, began)
            assert isinstance(found, Placement)
            policy.placed(_request(), found, began)
            worker.submitted(began, Work(1, context_tokens=500))
    found = policy.choose(_request(), workers, costs, settings, None, 16.0)
    assert isinstance(found, Placement)
    return found.decode


def _request() -> PlacementRequest:
    return ask(16, max_tokens=ANSWER)


def test_a_batch_about_to_end_is_preferred_to_a_smaller_one_that_has_just_begun() -> None:
    regular, irregular = CostModel(CostPriors(step_ms=15.0)), CostModel(CostPriors(step_ms=15.0))
    for number in range(200):
        regular.observe_answer(ANSWER, ANSWER)
        irregular.observe_answer(ANSWER, 10 * ANSWER if number % 10 == 0 else 1)
    for costs, expected in ((regular, "old"), (irregular, "young")):
        assert choice(costs, [view("old", "unified"), view("young", "unified")], 24, 20) == expected


def test_what_blocks_push_out_costs_in_a_lull_what_it_will_beside_the_usual_sequences() -> None:
    settings, costs = PlacementSettings(), CostModel(CostPriors(step_ms=50.0))
    lost = {}
    for sequences in (0, 40):
        policy = make_policy(settings, SeededEntropy(0))
        for number in range(100):
            busy = view("w", "unified", sequences_in_flight=sequences)
            request = ask(500, held={"w": Held(20, 20)}, request_id=str(number))
            found = policy.choose(request, [busy], costs, settings, None, number * 10.0)
            assert isinstance(found, Placement)
            policy.placed(request, found, number * 10.0)
        idle = policy.choose(ask(500), [view("w", "unified")], costs, settings, None, 2000.0)
        assert isinstance(idle, Placement)
        lost[sequences] = idle.costs[0][1].interference_ms
    assert lost[40] > 2 * lost[0]
