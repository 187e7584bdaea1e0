"""Placement: input to decision, with the costs and reasons it gives."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kv_transfer.index.protocol import Held
from router.placement import Candidate, CostModel, Placement, PlacementRequest, Unplaced, WorkerView, make_policy
from router.placement.decision import Work
from router.placement.pairs import Pairs
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Layout
from tandem.core.messages import Load

LAYOUT = Layout("torch", "block", "float32", 4, 2, 16, 2, 8)
SETTINGS = PlacementSettings()


def load(**figures: float) -> Load:
    zeros = {**dict.fromkeys(Load.__struct_fields__, 0), "fit": None}
    return Load(**{**zeros, "blocks_free": 1000, **figures})  # type: ignore[arg-type]


def view(worker_id: str, role: str, **more: object) -> WorkerView:
    base = WorkerView(worker_id, 1, role, "demo", "r1", 0, b"r" * 16, LAYOUT, 1000, 8192)
    return replace(base, **more)  # type: ignore[arg-type]


def ask(prompt_tokens: int = 500, **more: object) -> PlacementRequest:
    return structs.replace(PlacementRequest("demo", prompt_tokens, 1, 64), **more)  # type: ignore[arg-type]


def decide(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    costs: CostModel | None = None,
    settings: PlacementSettings = SETTINGS,
    pairs: Pairs | None = None,
) -> Placement | Unplaced:
    """What a policy without a past answers."""
    policy = make_policy(settings, SeededEntropy(0))
    return policy.choose(request, workers, costs or CostModel(CostPriors()), settings, pairs, 0.0)


def placed(request: PlacementRequest, *workers: WorkerView, settings: PlacementSettings = SETTINGS) -> Placement:
    found = decide(request, workers, settings=settings)
    assert isinstance(found, Placement), found
    return found


def test_a_long_prompt_goes_to_prefill_and_decode_with_all_costs_told() -> None:
    found = placed(ask(), view("p1", "prefill"), view("d1", "decode"))
    assert (found.mode, found.prefill, found.decode) == ("disaggregated", "p1", "d1")
    assert [candidate for candidate, _ in found.costs] == [Candidate("d1", "p1"), Candidate("d1")]
    assert found.costs[0][1].total_ms < found.costs[1][1].total_ms
    assert "prefill on p1, decode on d1" in found.reasons[0]
    assert "p1→d1: " in found.cost_table()


def test_a_short_uncached_part_is_not_worth_a_transfer() -> None:
    short = placed(ask(12), view("p1", "prefill"), view("d1", "decode"))
    assert short.mode == "local"
    assert "12 uncached tokens are not worth a transfer" in short.reasons[0]
    cached = placed(ask(500, held={"d1": Held(31, 31)}), view("p1", "prefill"), view("d1", "decode"))
    assert cached.mode == "local"
    assert (cached.prefill_tokens, cached.cached_tokens) == (4, 496)


def test_an_overloaded_prefill_worker_makes_decode_compute_itself() -> None:
    busy = load(queued_prompt_tokens=100_000)
    found = placed(ask(), view("p1", "prefill", load=busy), view("d1", "decode"))
    assert found.mode == "local"
    assert "for the next best" in found.reasons[0]


def test_a_busy_decode_worker_is_protected_from_prompts() -> None:
    workers = (view("p1", "prefill", load=load(queued_prompt_tokens=1500)), view("d1", "decode"))
    assert placed(ask(), *workers).mode == "local"
    busy = replace(workers[1], load=load(running=60, step_s=0.01))
    assert placed(ask(), workers[0], busy).mode == "disaggregated"


def test_the_least_loaded_decode_worker_wins_and_ties_go_to_flight_then_name() -> None:
    p1 = view("p1", "prefill")
    idle, busy = view("d2", "decode"), view("d1", "decode", load=load(running=100))
    assert placed(ask(), p1, busy, idle).decode == "d2"
    assert placed(ask(), p1, view("d2", "decode"), view("d1", "decode")).decode == "d1"
    p2 = view("p0", "prefill", sequences_in_flight=1, load=load())
    assert placed(ask(), p1, p2, idle).prefill == "p1"


def test_requests_on_their_way_count_before_the_load_figures_show_them() -> None:
    d1, d2 = view("d1", "decode", load=load()), view("d2", "decode", load=load())
    d1.submitted(0.0, Work(3))
    assert placed(ask(), view("p1", "prefill"), d1, d2).decode == "d2"
    p1, p2 = view("p1", "prefill", load=load()), view("p2", "prefill", load=load())
    p1.submitted(0.0, Work(1, 5000))
    assert placed(ask(), p1, p2, d2).prefill == "p2"


def test_a_cached_prefix_draws_the_request() -> None:
    workers = (view("p1", "prefill"), view("p2", "prefill"), view("d1", "decode"))
    found = placed(ask(held={"p2": Held(30, 30)}), *workers)
    assert found.prefill == "p2"
    assert found.prefill_tokens == 20


def test_workers_that_cannot_exchange_blocks_are_never_paired_and_it_says_why() -> None:
    d1 = view("d1", "decode")
    for other, why in (
        (view("p1", "prefill", pairing=1, revision="r2"), "revision r1 here, r2 there"),
        (view("p1", "prefill", pairing=1, root=b"x" * 16), "different roots"),
        (view("p1", "prefill", pairing=1, layout=replace(LAYOUT, kv_heads=1)), "kv_heads differs"),
    ):
        found = placed(ask(), other, d1, settings=PlacementSettings(prefer="disaggregated"))
        assert found.mode == "local"
        assert why in found.reasons[0]


def test_without_prefill_workers_and_on_unified_workers_everything_is_local() -> None:
    assert placed(ask(), view("d1", "decode")).mode == "local"
    assert "no prefill worker" in placed(ask(), view("u1", "unified")).reasons[0]


def test_the_setting_decides_when_it_is_not_auto() -> None:
    workers = (view("p1", "prefill"), view("d1", "decode"), view("u1", "unified", pairing=3))
    assert placed(ask(5), *workers, settings=PlacementSettings(prefer="disaggregated")).mode == "disaggregated"
    assert placed(ask(5000), *workers, settings=PlacementSettings(prefer="local")).mode == "local"


def test_draining_workers_other_models_and_full_ones_are_left_out() -> None:
    found = placed(
        ask(), view("d1", "decode", draining=True), view("d2", "decode", model="other"), view("d3", "decode")
    )
    assert found.decode == "d3"
    assert any("d1 left out: draining" in reason for reason in found.reasons)


def test_workers_that_failed_the_request_are_the_last_resort() -> None:
    failed = ask(excluded=(("d1", 1), ("p1", 1)))
    workers = (view("p1", "prefill"), view("d1", "decode"), view("d2", "decode"))
    found = placed(failed, *workers)
    assert (found.mode, found.decode) == ("local", "d2")
    assert "p1 left out: it failed this request before" in found.reasons
    last = placed(failed, workers[1])
    assert last.decode == "d1"
    assert "only workers that already failed this request are left" in last.reasons
    assert placed(failed, view("d1", "decode", epoch=2), view("p1", "prefill", epoch=2)).prefill == "p1"


def test_a_worker_whose_step_is_overdue_decodes_only_where_nobody_else_could() -> None:
    late, fine, full = view("u1", "unified"), view("u2", "unified"), view("u3", "unified", load=load(running=256))
    late.overdue = True
    found = placed(ask(), late, fine)
    assert found.decode == "u2"
    assert "u1 left out: its engine's step is overdue" in found.reasons
    found = placed(ask(), late)
    assert found.decode == "u1"
    assert "only workers whose engine's step is overdue are left" in found.reasons
    assert placed(ask(excluded=(("u2", 1),)), late, fine).decode == "u2"
    crowded = decide(ask(), (late, full))
    assert isinstance(crowded, Unplaced)
    assert crowded.code == "queue_full"
    assert isinstance(decide(ask(excluded=(("u1", 1),)), (late,)), Unplaced)


def test_the_only_prefill_worker_gets_nothing_while_its_step_is_overdue() -> None:
    late = view("p1", "prefill")
    late.overdue = True
    found = placed(ask(), late, view("d1", "decode"))
    assert (found.mode, found.decode) == ("local", "d1")


@pytest.mark.parametrize(
    ("workers", "code"),
    [
        ((), "no_workers"),
        ((view("p1", "prefill"),), "no_workers"),
        ((view("d1", "decode", draining=True),), "no_workers"),
        ((view("d1", "decode", blocks=10),), "out_of_blocks"),
        ((view("d1", "decode", load=load(running=256)),), "queue_full"),
    ],
)
def test_when_there_is_nobody_it_says_why(workers: tuple[WorkerView, ...], code: str) -> None:
    found = decide(ask(), workers)
    assert isinstance(found, Unplaced)
    assert found.code == code
    assert found.reasons


def test_resumed_branches_are_not_handed_off() -> None:
    found = placed(ask(local_only=True), view("p1", "prefill"), view("d1", "decode"))
    assert found.mode == "local"


def test_the_cost_model_learns_rates_steps_and_transfers() -> None:
    model = CostModel(CostPriors())
    for running in (1, 5, 9, 20, 3, 14) * 10:
        model.observe_load("d1", load(running=running, step_s=(4.0 + 0.5 * running) / 1e3, prefill_tokens_per_s=2000))
        model.transfers.observe("peer", 10_000_000, 1e10)
    assert model.prefill_ms("d1", 2000) == pytest.approx(1000)
    assert model.step_ms("d1", 10) == pytest.approx(9.0, rel=0.1)
    assert model.transfer_ms(10_000_000) == pytest.approx(1.0, rel=0.05)
    model.forget("d1")
    assert model.prefill_ms("d1", 2000) == pytest.approx(200)


workers = st.builds(
    lambda number, role, pairing, running, queued, free, draining: view(
        f"w{number}",
        role,
        pairing=pairing,
        load=load(running=running, queued_prompt_tokens=queued, blocks_free=free),
        draining=draining,
    ),
    st.integers(0, 30),
    st.sampled_from(["prefill", "decode", "unified"]),
    st.integers(0, 1),
    st.integers(0, 300),
    st.integers(0, 20_000),
    st.integers(0, 1000),
    st.booleans(),
)


@given(st.lists(workers, max_size=20, unique_by=lambda each: each.worker_id), st.integers(1, 9000))
def test_every_answer_is_sound_and_does_not_depend_on_order(found: list[WorkerView], prompt_tokens: int) -> None:
    model = CostModel(CostPriors())
    answer = decide(ask(prompt_tokens), found, model)
    assert answer.reasons
    other = decide(ask(prompt_tokens), found[::-1], model)
    if isinstance(answer, Unplaced):
        assert isinstance(other, Unplaced)
        return
    assert isinstance(other, Placement)
    assert (answer.decode, answer.prefill, answer.costs) == (other.decode, other.prefill, other.costs)
    by_id = {each.worker_id: each for each in found}
    decode = by_id[answer.decode]
    assert decode.role != "prefill"
    assert not decode.draining
    totals = [cost.total_ms for _, cost in answer.costs]
    assert totals[0] == pytest.approx(min(totals))
    if answer.prefill is not None:
        prefill = by_id[answer.prefill]
        assert (prefill.role, prefill.pairing, prefill.draining) == ("prefill", decode.pairing, False)


def test_a_first_token_waits_for_the_step_of_the_batch_that_is_there() -> None:
    """Otherwise the busier a worker the sooner it would seem to answer."""
    busy, costs = view("w1", "unified", load=load(running=50, blocks_free=600)), CostModel(CostPriors())
    found = decide(ask(), [busy], costs)
    assert isinstance(found, Placement)
    assert busy.attended_tokens == 400 * LAYOUT.block_tokens
    assert found.costs[0][1].queue_ms == pytest.approx(costs.step_ms("w1", 50, busy.attended_tokens))


def test_an_answer_takes_steps_that_attend_to_its_own_prompt() -> None:
    """Steps of long prompts are dearer, and the answer itself makes them so."""
    costs = CostModel(CostPriors(step_ms_per_1k_context=10.0))
    for prompt_tokens in (500, 5_000):
        found = decide(ask(prompt_tokens), [view("w1", "unified")], costs)
        assert isinstance(found, Placement)
        assert found.costs[0][1].decode_ms == pytest.approx(64 * costs.step_ms("w1", 1, prompt_tokens + 32))


def test_a_prompt_that_leaves_no_token_of_the_context_for_an_answer_is_not_sent_to_that_worker() -> None:
    """The worker would refuse it, and the client would wait for a second attempt."""
    small, large = view("a", "unified", context_tokens=500), view("b", "unified", context_tokens=501)
    assert placed(ask(499), small).decode == "a"
    assert placed(ask(500), small, large).decode == "b"
    refused = decide(ask(500), (small,))
    assert isinstance(refused, Unplaced)
    assert refused.code == "out_of_blocks"
