"""What becomes of drafts, which rank has which experts and how evenly these are used: figures and their metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.counts import ExpertBalance, Speculation, mean_balance, speculation_of
from tandem.engine.protocol import StepReport
from tandem.engine.vllm.experts import balance_of, experts_of, imbalance
from tandem.process.metrics import PrometheusMeter
from tandem.worker.metrics import WorkerMetrics


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)).map(lambda pair: (max(pair), min(pair))), max_size=30)
)
def test_drafts_are_told_apart_by_how_much_of_them_was_accepted(drafts: list[tuple[int, int]]) -> None:
    at_least = [sum(accepted > place for _, accepted in drafts) for place in range(5)]
    drafted = sum(tokens for tokens, _ in drafts)
    came = speculation_of(len(drafts), drafted, at_least)
    assert [came.accepted[count] for count in range(6)] == [
        sum(accepted == count for _, accepted in drafts) for count in range(6)
    ]
    assert came.accepted_tokens == sum(accepted for _, accepted in drafts)
    assert came.accepted_tokens + came.wasted_tokens == drafted
    assert (came + came).wasted_tokens == 2 * came.wasted_tokens
    assert Speculation(0, ()) + came == came


def test_speculation_and_experts_become_metrics() -> None:
    meter = PrometheusMeter()
    figures = WorkerMetrics(meter, "decode", 8)
    figures.step(StepReport(speculation=Speculation(6, (1, 0, 1)), experts=ExpertBalance(1.5, None)))
    figures.step(StepReport(speculation=Speculation(2, (0, 0, 1)), experts=ExpertBalance(1.25, 1.125)))
    page = meter.render().decode()
    assert 'tandem_speculation_tokens_total{outcome="accepted"} 4.0' in page
    assert 'tandem_speculation_tokens_total{outcome="wasted"} 4.0' in page
    assert "tandem_speculation_accepted_tokens_count 3.0" in page
    assert "tandem_speculation_accepted_tokens_sum 4.0" in page
    assert 'tandem_speculation_accepted_tokens_bucket{le="0.0"} 1.0' in page
    assert "tandem_speculation_acceptance_ratio 0.5" in page
    assert 'tandem_expert_imbalance_ratio{over="experts"} 1.25' in page
    assert 'tandem_expert_imbalance_ratio{over="ranks"} 1.125' in page


@given(st.integers(1, 16), st.integers(0, 64))
def test_every_expert_is_on_one_rank_and_ranks_are_even(ranks: int, more: int) -> None:
    experts = ranks + more
    owned = [experts_of(rank, ranks, experts) for rank in range(ranks)]
    assert [expert for each in owned for expert in each] == list(range(experts))
    sizes = [len(each) for each in owned]
    assert max(sizes) - min(sizes) <= 1


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    assert imbalance((3, 3, 3, 3)) == 1.0
    assert imbalance((12, 0, 0, 0)) == 4.0
    assert imbalance((0, 0)) == 1.0


def test_balance_is_a_mean_over_layers_that_had_tokens() -> None:
    layers = ((4, 4, 0, 0), (2, 2, 2, 2), (0, 0, 0, 0))
    assert balance_of(layers, 1) == ExpertBalance(1.5, None)
    # Two ranks have two experts each: all tokens of the first layer go to the first rank.
    assert balance_of(layers, 2) == ExpertBalance(1.5, 1.5)
    assert balance_of(((4, 0, 4, 0),), 2) == ExpertBalance(2.0, 1.0)
    assert balance_of(((0, 0),), 2) is None


def test_pipeline_stages_tell_of_their_own_layers() -> None:
    assert mean_balance(()) is None
    assert mean_balance((ExpertBalance(1.0, None), ExpertBalance(2.0, None))) == ExpertBalance(1.5, None)
    both = mean_balance((ExpertBalance(1.0, 1.0), ExpertBalance(2.0, 1.5)))
    assert both is not None
    assert both.over_ranks == pytest.approx(1.25)
