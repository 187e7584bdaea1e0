"""What follows from a worker's figures, and from what is learned of it, is worked out once per change, and is never
of what has changed."""

import copy
from dataclasses import fields

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from router.placement import CostModel, Objective, Placement, WorkerView
from router.placement.decision import Work
from router.settings import CostPriors, PlacementSettings
from tandem.core.messages import StepFit, StepSums
from tandem.core.spans import Attribute, Span
from tests.unit.router.placement.test_router_placement import ask, decide, load, view

WORK = Work(1, prompt_tokens=900, prompt_ms=70.0, context_tokens=900)
LEFT = Work(1, context_tokens=900)
changes = st.lists(
    st.tuples(
        st.sampled_from(["submitted", "computed", "released", "loaded", "slower", "turned"]),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=20,
)


def change(what: str, worker: WorkerView, amount: int, costs: CostModel) -> None:
    """One of the things that happen to a worker."""
    match what:
        case "submitted":
            worker.submitted(0.0, WORK)
        case "computed" if worker.prompts_in_flight:
            worker.computed(WORK)
        case "released" if worker.sequences_in_flight > worker.prompts_in_flight:
            worker.released(LEFT)
        case "loaded":
            worker.loaded(
                load(running=amount, queued_prompt_tokens=amount % 3 * 500, step_s=0.001 * amount), 1.0, 0.15
            )
            costs.observe_load(worker.worker_id, worker.load or load(), worker.attended_tokens)
        case "slower":
            computed: dict[str, Attribute] = {"tokens_computed": 800, "tokens_reused": 0}
            span = Span("", "", "", "prefill", "worker", 0.0, 0.01 * (1 + amount), computed)
            costs.observe_spans(worker.worker_id, [span], alone=True)
        case "turned":
            worker.takes_prompts = not worker.takes_prompts


@given(changes)
def test_a_decision_is_the_same_as_over_workers_that_were_never_looked_at(drawn: list[tuple[str, int, int]]) -> None:
    workers = [view(f"w{number}", "auto" if number else "unified") for number in range(4)]
    costs, request = CostModel(CostPriors()), ask(700, objective=Objective(ttft_ms=900.0, tpot_ms=30.0))
    for what, number, amount in drawn:
        change(what, workers[number], amount, costs)
        looked = decide(request, workers, costs, PlacementSettings())
        fresh = [copy.copy(worker) for worker in workers]
        for each in fresh:
            each.times = None
        assert isinstance(looked, Placement)
        assert looked == decide(request, fresh, costs, PlacementSettings())


learned = st.lists(
    st.tuples(st.sampled_from(["fit", "steps", "prompts", "rate", "forget"]), st.integers(0, 3), st.integers(1, 4)),
    max_size=12,
)


def teach(costs: CostModel, what: str, number: int, amount: int) -> None:
    """One of the things that are learned of a worker: 0 and 1 tell of their steps, 2 and 3 do not; 0 to 2 are alike,
    3 is of another engine."""
    name, kind = f"w{number}", ("gpu", "m", "r", "other" if number == 3 else "engine")
    match what:
        case "fit":
            plain = StepSums(40 * amount, 0.4 * amount, 400.0 * amount, 1e6 * amount)
            prompts = StepSums(9 * amount, 0.9 * amount, 90.0, 1e5, 9.0 * amount, 9e3 * amount, 9e6)
            fit = StepFit(0.004 + 0.001 * amount, 1e-4, 1e-9, 1e-3, 4e-5 * amount, 1e-9, plain, prompts)
            costs.observe_load(name, structs.replace(load(), fit=fit if number < 2 else None), 0, kind)
        case "steps":
            for _ in range(110):
                costs.observe_load(name, load(running=10 * amount, step_s=0.01 * amount), 5000 * amount, kind)
        case "prompts":
            computed: dict[str, Attribute] = {"tokens_computed": 700 * amount, "tokens_reused": 0, "chunks": amount}
            for _ in range(22):
                span = Span("", "", "", "prefill", "worker", 0.0, 0.05 * amount, computed)
                costs.observe_spans(name, [span], alone=True)
        case "rate":
            costs.observe_load(name, load(prefill_tokens_per_s=9000 * amount), 0, kind)
        case "forget":
            costs.forget(name)


@given(learned)
@example([("fit", 0, 1), ("rate", 2, 1), ("prompts", 2, 1)])
@example([("fit", 0, 1), ("prompts", 0, 2)])
@example([(what, number, number) for what in ("prompts", "steps") for number in (1, 2, 3, 1)])
def test_what_is_known_of_a_worker_is_the_same_for_whoever_asked_before(drawn: list[tuple[str, int, int]]) -> None:
    asked, silent = CostModel(CostPriors()), CostModel(CostPriors())
    names = [f"w{number}" for number in range(4)]
    for event in drawn:
        teach(asked, *event)
        teach(silent, *event)
        for name in names:
            asked.prefill.terms(name)
            asked.steps.terms(name)
    for name in names:
        assert asked.prefill.terms(name) == silent.prefill.terms(name)
        assert asked.steps.terms(name) == silent.steps.terms(name)


def test_attention_that_costs_more_on_one_worker_is_not_taken_for_the_same() -> None:
    costs = CostModel(CostPriors())
    costs.prefill.tell("w1", 0.1, 0.0, 0.0)
    costs.prefill.tell("w2", 0.1, 1e-3, 0.0)
    found = decide(ask(900), [view("w1", "unified"), view("w2", "unified")], costs)
    assert isinstance(found, Placement)
    told = {candidate.decode: cost.prefill_ms for candidate, cost in found.costs}
    assert told["w1"] < told["w2"] == costs.prefill_ms("w2", 900)


def test_what_follows_from_figures_is_not_for_others_to_say() -> None:
    """A worker for which it could be said would look idle, or slow, whatever it tells."""
    followed = (
        "kind block_tokens block_bytes capacity_tokens sequences queued_prompt_tokens blocks_free attended_tokens"
        " decoding steps_ms prompts_in_flight steps_held times"
    )
    assert {each.name for each in fields(WorkerView) if not each.init} == set(followed.split())
    new = view("w1", "unified")
    assert (new.steps_ms, new.sequences, new.decoding, new.queued_prompt_tokens) == (0.0, 0, 0, 0)
    assert (new.prompts_in_flight, new.attended_tokens, new.blocks_free) == (0, 0, new.blocks)


def test_a_view_counts_every_prompt_that_was_sent_and_is_left_as_it_was_when_they_end() -> None:
    """By the count it is seen whether a prompt had the worker to itself; what stayed would look like work."""
    worker = view("w1", "unified")
    for sent in (1, 2):
        worker.submitted(0.0, WORK)
        assert (worker.prompts, worker.prompts_in_flight) == (sent, sent)
    worker.submitted(0.0, LEFT)
    assert (worker.prompts, worker.sequences, worker.queued_prompt_tokens, worker.decoding) == (2, 3, 1800, 1)
    worker.released(LEFT)
    worker.released(worker.computed(WORK))
    worker.released(WORK)
    assert (worker.prompts, worker.prompts_in_flight, worker.prompt_tokens_computed) == (2, 0, 900)
    assert (worker.sequences, worker.streams_in_flight, worker.attended_in_flight) == (0, 0, 0)
    assert (worker.prompt_tokens_in_flight, worker.prompt_ms_in_flight) == (0, 0.0)


def test_a_worker_whose_clock_stands_still_ends_no_router_and_teaches_nothing_of_others() -> None:
    costs, kind = CostModel(CostPriors()), ("gpu", "m", "r", "engine")
    well = StepFit(
        0.004, 1e-4, 1e-9, 1e-3, 4e-5, 1e-9, StepSums(40, 0.4, 400.0, 1e6), StepSums(9, 0.9, 9.0, 1e5, 9.0)
    )
    costs.observe_load("w1", structs.replace(load(), fit=well), 0, kind)
    before = costs.step_ms("w1", 10, 1000)
    still = structs.replace(well, plain=StepSums(40, 0.0, 400.0, 1e6), prompts=StepSums(9, 0.0, 9.0, 1e5, 9.0))
    costs.observe_load("w2", structs.replace(load(), fit=still), 0, kind)
    assert 0.5 * before < costs.step_ms("w1", 10, 1000) < 2.0 * before
    assert costs.step_ms("w2", 10, 1000) > 0.0
