"""What placement learns of costs: from loads, spans and answers to expected milliseconds."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import CostModel
from router.placement.decision import Breakdown
from router.placement.learning.answer_lengths import AnswerLengths
from router.placement.learning.fit import Fit
from router.placement.learning.pace import Paces
from router.settings import CostPriors
from tandem.core.messages import TierCost
from tandem.core.spans import Attribute, Span
from tests.unit.router.placement.test_router_placement import load

TRUE_TOKEN_MS, TRUE_POSITION_MS = 0.05, 2e-6


def span(name: str, ms: float, **attributes: Attribute) -> Span:
    return Span("0" * 32, "1" * 16, "2" * 16, name, "worker", 100.0, 100.0 + ms / 1e3, attributes)


def prefill_span(computed: int, reused: int, ms: float | None = None) -> Span:
    true_ms = computed * (TRUE_TOKEN_MS + TRUE_POSITION_MS * (reused + computed / 2))
    return span("prefill", true_ms if ms is None else ms, tokens_computed=computed, tokens_reused=reused)


def test_a_fit_finds_what_made_the_measurements() -> None:
    fit = Fit((1.0, 1.0, 1.0), (0.001, 0.001, 0.001), 0.99)
    for first in range(1, 40):
        second = first * 7 % 11
        fit.observe((1.0, first, second), 2.0 + 0.5 * first + 3.0 * second)
    assert fit.coefficients == pytest.approx((2.0, 0.5, 3.0), rel=0.02)


def test_a_fit_keeps_to_its_priors_until_the_inputs_have_varied() -> None:
    fit = Fit((0.0, 0.1, 0.0), (0.05, 0.001, 0.05), 0.99)
    for _ in range(50):
        fit.observe((1.0, 1000.0, 500_000.0), 200.0)
    constant, token, position = fit.coefficients
    assert 1000 * token == pytest.approx(200.0, rel=0.1)
    assert constant + 500_000 * position < 20.0
    assert constant + 1000 * token + 500_000 * position == pytest.approx(200.0, rel=0.01)


def test_a_part_that_measurements_deny_is_nothing_and_one_that_they_never_had_is_what_was_assumed() -> None:
    """What was assumed of the first would be added to every expectation for good."""
    fit = Fit((1.0, 1.0, 0.3), (0.001, 0.001, 0.001), 0.99)
    for amount in range(1, 40):
        fit.observe((1.0, amount, 0.0), 10.0 * amount - 5.0)
    fixed, each, unseen = fit.coefficients
    assert (fixed, unseen) == (0.0, 0.3)
    assert each == pytest.approx(10.0, rel=0.1)


@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.01, 1e6)), max_size=40))
def test_no_coefficient_is_ever_negative_or_no_number(measured: list[tuple[float, float, float]]) -> None:
    fit = Fit((1.0, 0.1, 0.1), (0.001, 0.02, 0.02), 0.99)
    for first, second, value in measured:
        fit.observe((1.0, first, second), value)
        assert all(0.0 <= coefficient < 1e12 for coefficient in fit.coefficients)


def test_long_prompts_are_learned_to_take_more_per_token() -> None:
    costs = CostModel(CostPriors())
    for computed, reused in [(500, 0), (8000, 0), (2000, 30_000), (60_000, 0), (1000, 100_000), (20_000, 5000)] * 8:
        costs.observe_spans("w", (prefill_span(computed, reused),), alone=True)
    for computed, reused in [(100_000, 0), (4000, 0), (10_000, 90_000)]:
        true_ms = computed * (TRUE_TOKEN_MS + TRUE_POSITION_MS * (reused + computed / 2))
        assert costs.prefill_ms("w", computed, reused) == pytest.approx(true_ms, rel=0.05)
        assert costs.prefill_ms("new", computed, reused) == pytest.approx(true_ms, rel=0.05)


def test_what_prompts_take_is_learned_anew_when_it_changes_however_many_there_have_been() -> None:
    """A router runs for months, and an update makes attention four times as dear."""
    costs = CostModel(CostPriors())
    lengths = [(500, 0), (8000, 0), (2000, 30_000), (60_000, 0), (1000, 100_000), (20_000, 5000)]
    for position_ms, rounds in ((TRUE_POSITION_MS, 250), (4 * TRUE_POSITION_MS, 100)):

        def true_ms(computed: int, reused: int, position_ms: float = position_ms) -> float:
            return computed * (TRUE_TOKEN_MS + position_ms * (reused + computed / 2))

        for computed, reused in lengths * rounds:
            costs.observe_spans("w", (prefill_span(computed, reused, true_ms(computed, reused)),), alone=True)
        for computed, reused in [(1000, 0), (100_000, 0), (4000, 90_000)]:
            assert costs.prefill_ms("w", computed, reused) == pytest.approx(true_ms(computed, reused), rel=0.15)


def test_who_has_the_long_prompts_does_not_look_slow() -> None:
    """Attention makes them dearer per token on whatever worker computes them."""
    costs = CostModel(CostPriors())
    for turn in range(40):
        for worker in ("a", "b", "long"):
            own = (40_000, 50_000, 60_000) if worker == "long" else (500, 1_000, 2_000)
            for computed in (500, 8_000, 60_000) if turn < 20 else own:
                costs.observe_spans(worker, (prefill_span(computed, 0),), alone=True)
    for tokens in (500, 50_000):
        assert costs.prefill_ms("long", tokens) == pytest.approx(costs.prefill_ms("a", tokens), rel=0.05)


@pytest.mark.parametrize(("tokens", "learned"), [(63, False), (64, True)])
def test_prompts_teach_what_a_token_takes_from_a_few_dozen_tokens_on(tokens: int, learned: bool) -> None:
    """A service whose prompts are all short would be priced by what was assumed for as long as it runs; shorter ones
    tell of the step alone."""
    costs = CostModel(CostPriors())
    for _ in range(40):
        costs.observe_spans("w", (prefill_span(tokens, 0, 10.0 + tokens * 1.0),), alone=True)
    assert costs.prefill_ms("w", tokens) == pytest.approx(tokens * (1.0 if learned else 0.1), rel=0.1)


def test_the_first_prompt_of_a_worker_that_has_told_no_figures_had_no_batch_beside_it() -> None:
    """Where these are dear, one too many would leave nothing of its time for the prompt itself."""
    costs = CostModel(CostPriors(step_ms_per_sequence=50.0, step_ms_per_1k_context=50_000.0))
    costs.observe_spans("w", (prefill_span(1000, 0, 110.0),), alone=True)
    assert costs.prefill_ms("w", 1000) == pytest.approx(100.0)


def test_short_prompts_beside_steps_that_prompts_make_longer_teach_their_whole_time() -> None:
    """Steps that compute a prompt take thrice what they do without: what a prompt waits for them is not cut off as if
    it were a stall."""
    costs = CostModel(CostPriors())
    for turn in range(80):
        for computed in (100 + turn % 50, 1_500 + 40 * (turn % 9)):
            costs.observe_spans("w", (prefill_span(computed, 0, 3 * 10.0 + computed * TRUE_TOKEN_MS),), alone=True)
    assert costs.prefill.terms("w").steps == pytest.approx(3.0, rel=0.1)


def test_prompts_that_take_no_time_for_their_steps_are_learned_from_as_well() -> None:
    """Of an engine that computes pieces beside each other: nothing is left of what a step was assumed to take."""
    costs = CostModel(CostPriors())
    for turn in range(60):
        pieces = 1 + turn % 6
        took = span("prefill", 150.0 - 10.0 * pieces, tokens_computed=1_000, tokens_reused=0, chunks=pieces)
        costs.observe_spans("w", (took,), alone=True)
    assert costs.prefill.terms("w").steps == 0.0
    assert 80.0 <= costs.prefill_ms("w", 1_000) <= 150.0


def test_prompts_that_shared_a_worker_or_waited_for_blocks_do_not_teach() -> None:
    costs = CostModel(CostPriors())
    before = costs.prefill_ms("w", 1000)
    costs.observe_spans("w", (prefill_span(1000, 0, 9e5),), alone=False)
    costs.observe_spans("w", (prefill_span(1000, 0, 9e5), span("kv.pull", 1.0, bytes=0, gb_per_s=0.0)), alone=True)
    assert costs.prefill_ms("w", 1000) == before


def test_the_steps_beside_a_prompt_are_not_its_own_cost() -> None:
    costs = CostModel(CostPriors())
    for running in (0, 40, 10, 80, 0, 20) * 20:
        step_ms = 10.0 + 0.5 * running
        for _ in range(4):
            costs.observe_load("w", load(running=running, step_s=step_ms / 1e3), running * 1000)
        ms = 1000 * TRUE_TOKEN_MS + step_ms
        costs.observe_spans("w", (prefill_span(1000, 0, ms),), alone=True)
    assert costs.prefill_ms("w", 1000) == pytest.approx(1000 * TRUE_TOKEN_MS, rel=0.15)


@given(st.integers(1, 16), st.floats(2.0, 40.0), st.booleans())
def test_the_fixed_time_of_steps_is_not_the_pace_of_whoever_has_short_prompts(
    pieces: int, base_ms: float, told: bool
) -> None:
    """Two workers alike, one with short prompts only: in steps of 2,048 tokens, or in one that they do not tell."""
    costs = CostModel(CostPriors())
    for _ in range(100):
        costs.observe_load("decode", load(running=1, step_s=base_ms / 1e3), 0)
    for turn in range(80):
        for worker, tokens in (("short", 100 + 10 * (turn % 20)), ("long", 2048 * pieces - 40 * (turn % 7))):
            steps = -(-tokens // 2048) if told else 1
            ms = steps * base_ms + tokens * TRUE_TOKEN_MS
            attributes: dict[str, Attribute] = {"tokens_computed": tokens, "tokens_reused": 0}
            if told:
                attributes["chunks"] = steps
            costs.observe_spans(worker, (span("prefill", ms, **attributes),), alone=True)
    assert costs.prefill_ms("short", 1000) <= 1.1 * costs.prefill_ms("long", 1000)
    assert costs.prefill_ms("long", 1000) <= 1.1 * costs.prefill_ms("short", 1000)


def test_a_slower_machine_is_told_from_noise() -> None:
    costs = CostModel(CostPriors())
    for turn in range(120):
        for worker, factor in (("a", 1.0), ("b", 0.97), ("c", 1.04), ("slow", 3.0)):
            computed = 500 + 400 * (turn % 7)
            costs.observe_spans(worker, (prefill_span(computed, 0, factor * computed * TRUE_TOKEN_MS),), alone=True)
    assert costs.prefill_ms("a", 1000) == costs.prefill_ms("b", 1000) or costs.prefill_ms("slow", 1000) > 0
    assert costs.prefill_ms("slow", 1000) > 2.0 * costs.prefill_ms("a", 1000)
    costs.forget("slow")
    assert costs.prefill_ms("slow", 1000) < 2.0 * costs.prefill_ms("a", 1000)


def test_before_a_worker_had_a_prompt_alone_its_best_rate_counts() -> None:
    costs = CostModel(CostPriors())
    for rate in (3000.0, 8000.0, 4000.0, 5000.0):
        costs.observe_load("w", load(prefill_tokens_per_s=rate))
    assert costs.prefill_ms("w", 8000) == pytest.approx(1000, rel=0.05)


def test_steps_are_learned_by_sequences_and_by_what_they_attend_to() -> None:
    costs = CostModel(CostPriors())
    batches = [(4, 9000), (60, 50_000), (20, 400_000), (100, 700_000), (8, 300_000), (50, 20_000)]
    for running, attended in batches * 60:
        step_ms = 14.0 + 0.06 * running + 5e-5 * attended
        costs.observe_load("w", load(running=running, step_s=step_ms / 1e3), attended)
    assert costs.step_ms("w", 80, 500_000) == pytest.approx(14.0 + 4.8 + 25.0, rel=0.05)


def test_steps_with_prompts_in_them_do_not_count() -> None:
    costs = CostModel(CostPriors())
    for turn in range(400):
        running = 5 + turn % 40
        step_ms = 10.0 + 0.2 * running
        costs.observe_load("w", load(running=running, step_s=0.5, queued_prompt_tokens=9000))
        costs.observe_load("w", load(running=running, step_s=(8.0 if turn % 10 == 0 else 1.0) * step_ms / 1e3))
    assert costs.step_ms("w", 20) == pytest.approx(14.0, rel=0.1)


def test_steps_that_took_a_little_longer_count_for_less() -> None:
    """A mean may still have steps with prompts in it, even every second one."""
    costs = CostModel(CostPriors())
    for turn in range(800):
        running = 5 + turn // 2 % 40
        step_ms = (10.0 + 0.2 * running) * (1.2 if turn % 2 and turn > 40 else 1.0)
        costs.observe_load("w", load(running=running, step_s=step_ms / 1e3))
    for running in (8, 40):
        assert costs.step_ms("w", running) == pytest.approx(10.0 + 0.2 * running, rel=0.05)


def test_a_worker_that_stood_still_for_one_step_does_not_look_slow() -> None:
    costs = CostModel(CostPriors())
    for turn in range(240):
        running = 5 + turn % 40
        for worker in "abcd":
            stall = 100.0 if (worker, turn) == ("a", 200) else 1.0
            step_s = stall * (0.010 + 2e-4 * running)
            costs.observe_load(worker, load(running=running, step_s=step_s))
    assert costs.step_ms("a", 20) == pytest.approx(costs.step_ms("b", 20), rel=0.03)


def test_transfers_are_learned_by_kind_and_reads_by_worker_and_tier() -> None:
    costs = CostModel(CostPriors(transfer_bytes_per_s=1e9))
    for _ in range(40):
        pulls = (
            span("kv.pull", 1.0, bytes=1 << 20, gb_per_s=4.0),
            span("kv.pull", 1.0, bytes=1 << 20, gb_per_s=0.5, kind="store"),
            span("kv.pull", 1.0, bytes=1 << 20, gb_per_s=8.0, kind="dram"),
            span("kv.pull", 1.0, bytes=100, gb_per_s=99.0),
        )
        costs.observe_spans("w", pulls)
    assert costs.transfer_ms(4_000_000) == pytest.approx(1.0, rel=0.01)
    assert costs.transfer_ms(500_000, "store") == pytest.approx(1.0, rel=0.01)
    tier = TierCost("dram", 100, 1e9, 0.001)
    assert costs.transfers.read_ms("w", tier, 8_000_000) == pytest.approx(2.0, rel=0.01)
    assert costs.transfers.read_ms("other", tier, 8_000_000) == pytest.approx(9.0)


def test_pulls_that_moved_nothing_for_long_say_nothing_of_a_rate() -> None:
    """One that was stuck must neither end the router nor make others look as if they took forever."""
    costs = CostModel(CostPriors())
    tier = TierCost("dram", 100, 1e9, 0.001)
    before = [costs.transfer_ms(1 << 20), costs.transfers.carried(), costs.transfers.read_ms("w", tier, 1 << 20)]
    stuck = (
        span("kv.pull", 1.0, bytes=1 << 20, gb_per_s=0.0),
        span("kv.pull", 1.0, bytes=1 << 20, gb_per_s=0.0, kind="dram"),
    )
    costs.observe_spans("w", stuck)
    after = [costs.transfer_ms(1 << 20), costs.transfers.carried(), costs.transfers.read_ms("w", tier, 1 << 20)]
    assert after == before


def test_how_long_pieces_of_prompts_are_follows_what_workers_tell() -> None:
    """A long prompt waits for the batch's step as often as it has pieces, and not once."""
    costs = CostModel(CostPriors())
    assert costs.prefill.terms("w").pieces_token == 0.0
    for tokens, pieces in ((8_192, 4), (4_096, 8)):
        took = span("prefill", 900.0, tokens_computed=tokens, tokens_reused=0, chunks=pieces)
        for _ in range(80):
            costs.observe_spans("w", (took,), alone=False)
        assert 0.99 * (pieces - 1) <= tokens * costs.prefill.terms("w").pieces_token <= pieces


def test_answers_are_expected_as_long_as_those_of_like_bounds_were() -> None:
    lengths = AnswerLengths()
    assert lengths.expected(4096, 128) == 128
    assert lengths.expected(16, 128) == 16
    for _ in range(100):
        lengths.observe(4096, 700.0)
    assert lengths.expected(5000, 128) == pytest.approx(700)
    assert lengths.expected(600, 128) == 128


@given(st.dictionaries(st.sampled_from("abcde"), st.tuples(st.floats(0.01, 100), st.floats(0.5, 100)), min_size=1))
def test_a_pace_lies_between_what_was_measured_and_the_median(told: dict[str, tuple[float, float]]) -> None:
    paces = Paces(2.0)
    for worker, (ratio, evidence) in told.items():
        paces.tell(worker, ratio, evidence)
    middle = median(ratio for ratio, _ in told.values())
    for worker, (ratio, _) in told.items():
        low, high = sorted((ratio, paces.median))
        assert low - 1 / 64 <= paces.of(worker) <= high + 1 / 64
    assert paces.of("somebody else") == paces.median
    for worker, (ratio, evidence) in 8 * tuple(told.items()):
        paces.tell(worker, ratio, evidence)
    assert paces.median == pytest.approx(middle)


def test_who_has_done_nothing_for_long_has_no_say() -> None:
    paces = Paces(2.0)
    paces.tell("a", 1.0, 16.0)
    paces.tell("b", 1.3, 16.0)
    assert paces.median == pytest.approx(1.15)
    paces.tell("b", 1.3, 0.4)
    assert (paces.median, paces.of("b")) == (1.0, 1.0)


def test_a_pace_is_believed_as_far_as_there_is_evidence() -> None:
    paces = Paces(2.0)
    for worker in "abc":
        paces.tell(worker, 1.0, 16.0)
    told = []
    for evidence in (0.5, 2.0, 16.0, 1e6):
        paces.tell("slow", 1.3, evidence)
        told.append(paces.of("slow"))
    assert told == sorted(told)
    assert told[0] < 1.1 < 1.2 < told[2]
    assert told[3] == pytest.approx(1.3, abs=1 / 64)
    paces.forget("slow")
    assert paces.of("slow") == 1.0


def test_of_a_worker_that_is_gone_nothing_is_kept() -> None:
    """Its id may come back as another machine, which would be judged by what the old one was."""
    costs = CostModel(CostPriors())
    for turn in range(400):
        running = 5 + turn % 40
        costs.observe_load("other", load(running=running, step_s=(0.010 + 2e-4 * running)))
        costs.observe_load("slow", load(running=running, step_s=10 * (0.010 + 2e-4 * running)))
    assert costs.step_ms("slow", 20) > 1.5 * costs.step_ms("other", 20)
    costs.forget("slow")
    assert costs.step_ms("slow", 20) == pytest.approx(costs.step_ms("nobody", 20))


def test_what_a_request_takes_is_all_that_it_waits_for() -> None:
    """A worker that would have to fetch for long does not look free."""
    cost = Breakdown(1.0, 2.0, 4.0, 8.0, interference_ms=100.0, fetch_ms=16.0, misses_ms=1000.0)
    assert cost.completion_ms == 31.0
    assert cost.total_ms == 1131.0
