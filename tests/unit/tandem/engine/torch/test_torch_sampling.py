"""Sampling against a plain one-row reference, and its independence of the batch."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.entropy import position_unit
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling
from tandem.engine.scheduler.plan import Draw
from tandem.engine.torch.sampling import Cut, draw_tokens, sample

torch.set_num_threads(1)
VOCABULARY = 40


def draw(sampling: Sampling, position: int = 1, seed: int = 11, **fields: Any) -> Draw:
    return Draw(1, 0, seed, position, sampling, **fields)


def reference(logits: Sequence[float], item: Draw, prompt: Sequence[int], output: Sequence[int]) -> int:
    """One row, in the order of the contract, with Python floats."""
    sampling = item.sampling
    values = list(logits)
    for token, bias in sampling.logit_bias:
        values[token] += bias
    for token in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token in set(output):
        values[token] -= sampling.presence_penalty + sampling.frequency_penalty * list(output).count(token)
    for token in item.forbidden:
        values[token] = -math.inf
    if sampling.temperature == 0:
        return values.index(max(values))
    weights = [math.exp((value - max(values)) / sampling.temperature) for value in values]
    keep = [weight >= sampling.min_p for weight in weights]
    if sampling.top_k:
        kept = sorted((weight for weight, kept in zip(weights, keep, strict=True) if kept), reverse=True)
        bound = kept[min(sampling.top_k, len(kept)) - 1]
        keep = [kept and weight >= bound for weight, kept in zip(weights, keep, strict=True)]
    total = sum(weight for weight, kept in zip(weights, keep, strict=True) if kept)
    before, bound = 0.0, 0.0
    for weight in sorted((weight for weight, kept in zip(weights, keep, strict=True) if kept), reverse=True):
        if before < sampling.top_p * total:
            bound = weight
        before += weight
    shares = [weight if kept and weight >= bound else 0.0 for weight, kept in zip(weights, keep, strict=True)]
    target = position_unit(item.seed, item.sequence, item.position) * sum(shares)
    running = 0.0
    for token, share in enumerate(shares):
        running += share
        if running > target:
            return token
    raise AssertionError("the target lies below the total")


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 100]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (5, -100.0))]),
)
ROWS = st.lists(st.tuples(SAMPLINGS, st.integers(0, 2**64 - 1)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, logits_seed=st.integers(0, 1000))
def test_equals_reference_row_by_row(rows: list[tuple[Sampling, int]], logits_seed: int) -> None:
    generator = torch.Generator().manual_seed(logits_seed)
    logits = torch.randn(len(rows), VOCABULARY, generator=generator) * 2
    prompt, output = [1, 2, 2, 9], [3, 3, 7]
    draws = [
        draw(sampling, seed=seed, prompt=pack_tokens(prompt), output=pack_tokens(output), forbidden=(0, 8))
        for sampling, seed in rows
    ]
    expected = [
        reference(
            row, item, prompt if item.sampling.needs_history else (), output if item.sampling.needs_history else ()
        )
        for row, item in zip(logits.tolist(), draws, strict=True)
    ]
    together = sample(logits.clone(), draws)
    alone = [sample(logits[index : index + 1].clone(), [item])[0] for index, item in enumerate(draws)]
    assert [item.token for item in together] == expected
    assert list(together) == alone


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    draws = [draw(Sampling(), position=position) for position in range(4000)]
    tokens = torch.tensor([item.token for item in sample(logits.repeat(4000, 1), draws)])
    shares = torch.bincount(tokens, minlength=4) / 4000
    torch.testing.assert_close(shares, torch.softmax(logits[0], -1), atol=0.02, rtol=0.0)


def test_top_p_looks_beyond_its_first_guess() -> None:
    """A flat distribution over many tokens needs more of them than the quick path examines."""
    logits = torch.zeros(1, 5000)
    logits[0, :2500] += torch.linspace(0.001, 0.002, 2500)
    draws = [draw(Sampling(top_p=0.4), position=position) for position in range(200)]
    tokens = [item.token for item in sample(logits.repeat(200, 1), draws)]
    assert max(tokens) < 2500
    assert min(tokens) < 1300, "the likeliest are the upper half of 2500, but 0.4 of 5000 needs 2000 of them"


def test_logprobs_are_raw() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    item = draw(Sampling(temperature=0.0, logprobs=2, logit_bias=((3, 50.0),)))
    (drawn,) = sample(logits.clone(), [item])
    expected = torch.log_softmax(logits[0], -1).tolist()
    assert drawn.token == 3
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(expected[3])
    assert [top.token for top in drawn.logprob.top] == [1, 2]
    assert [top.logprob for top in drawn.logprob.top] == pytest.approx([expected[1], expected[2]])


def test_logprobs_of_the_chosen_only_and_of_none() -> None:
    logits = torch.randn(3, VOCABULARY)
    draws = [draw(Sampling(temperature=0.0, logprobs=count)) for count in (0, None, 3)]
    chosen, none, three = sample(logits.clone(), draws)
    assert chosen.logprob is not None
    assert chosen.logprob.top == ()
    assert none.logprob is None
    assert three.logprob is not None
    assert three.logprob.top[0].token == three.token
    assert three.logprob.logprob == pytest.approx(float(torch.log_softmax(logits[2], -1).max()))


@pytest.mark.parametrize("temperature", [1e-3, 1e-7, 1e-46])
def test_tiny_temperatures_take_the_likeliest(temperature: float) -> None:
    logits = torch.tensor([[90.0, 91.0, -80.0]])
    (drawn,) = sample(logits, [draw(Sampling(temperature=temperature, top_p=0.9, min_p=0.1))])
    assert drawn.token == 1


def test_bias_for_unknown_tokens_changes_nothing() -> None:
    (drawn,) = sample(torch.tensor([[0.0, 1.0]]), [draw(Sampling(temperature=0.0, logit_bias=((999, 9.0),)))])
    assert drawn.token == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_not_finite(temperature: float) -> None:
    with pytest.raises(TandemError, match="not finite"):
        sample(torch.tensor([[0.0, float("nan")]]), [draw(Sampling(temperature=temperature))])


CUTS = st.builds(Cut, st.sampled_from((0, 0, 1, 7, 1100)), st.sampled_from((1.0, 1.0, 0.05, 0.6, 0.999)))


@given(st.lists(st.tuples(CUTS, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=5), st.integers(0, 99))
@settings(deadline=None)
def test_a_large_vocabulary_is_drawn_from_row_by_row(rows: list[tuple[Cut, float]], seed: int) -> None:
    """A row's token does not depend on the others', however many tokens these look at; plain sums give the same."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), 2500, generator=generator).mul(1 + seed % 4).mul(4).round().div(4)
    cuts, units = [cut for cut, _ in rows], [unit for _, unit in rows]
    together = draw_tokens(logits, cuts, units).tolist()
    for row, (cut, unit) in enumerate(rows):
        assert draw_tokens(logits[row : row + 1], [cut], [unit]).tolist() == [together[row]]
        weights = _kept(logits[row].double(), cut).exp()
        cumulative = weights.cumsum(0) / weights.sum()
        token = together[row]
        assert weights[token] > 0
        # The sums differ in their last digits.
        assert (cumulative[token - 1] if token else 0.0) - 1e-6 <= unit <= cumulative[token] + 1e-6


def _kept(row: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Log-probabilities after the cuts, in which ties stay together."""
    if cut.top_k:
        row = row.masked_fill(row < row.topk(cut.top_k).values[-1], float("-inf"))
    row = row.log_softmax(0)
    if cut.top_p < 1:
        greatest = row.exp().sort(descending=True).values
        inside = max(1, int((greatest.cumsum(0) - greatest < cut.top_p - 1e-9).sum()))
        row = row.masked_fill(row.exp() < greatest[inside - 1] - 1e-12, float("-inf"))
    return row
