"""Our logits processors on tensors, in the batches that vLLM's two model runners would give them."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

from tandem.core.entropy import position_unit
from tandem.engine.torch.sampling import Cut, draw_tokens
from tandem.engine.vllm import forced_tokens, forcing, forcing_v2
from tandem.engine.vllm.drawing import PositionDraws
from tandem.engine.vllm.requests import DRAW, ProcessorParams

VOCABULARY = 50
KEY = (7, 0)
CONFIG: Any = SimpleNamespace(speculative_config=None)
SPECULATES: Any = SimpleNamespace(speculative_config=object())


@pytest.fixture(autouse=True)
def no_first_token() -> Iterator[None]:
    forced_tokens.forget(KEY)
    yield
    forced_tokens.forget(KEY)


def params(draw: ProcessorParams | None, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, extra_args={} if draw is None else {DRAW: draw.packed()}, detokenize=False
    )


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows))


def only(row: torch.Tensor) -> int | None:
    """The one token that is possible, or None where there is more than one."""
    possible = (row > float("-inf")).nonzero()[:, 0].tolist()
    return possible[0] if len(possible) == 1 else None


# -- the first model runner --


def added(size: int, *rows: tuple[int, ProcessorParams | None, list[int]]) -> BatchUpdate:
    return BatchUpdate(size, [], [(row, params(draw), [1, 2], output) for row, draw, output in rows], [])


def forced_v1() -> forcing.ForcedTokens:
    return forcing.ForcedTokens(CONFIG, torch.device("cpu"), False)


@pytest.mark.parametrize("seen", [True, False])
def test_v1_forces_in_order_and_counts_outputs_that_nobody_has_seen(seen: bool) -> None:
    """With asynchronous scheduling vLLM puts -1 for a token until it knows which."""
    processor, output = forced_v1(), list[int]()
    forced_tokens.provide(KEY, 9)
    processor.update_state(
        added(2, (0, None, []), (1, ProcessorParams(*KEY, 0, forced=(3, 4), awaits_first=True), output))
    )
    for token in (3, 4, 9, None, None):
        before = logits(2)
        after = processor.apply(before.clone())
        assert torch.equal(after[0], before[0])
        assert only(after[1]) == token
        assert token is not None or torch.equal(after, before)
        output.append((token or 5) if seen else -1)


def test_v1_draws_a_first_token_that_was_never_provided() -> None:
    processor = forced_v1()
    processor.update_state(added(1, (0, ProcessorParams(*KEY, 0, awaits_first=True), [])))
    assert torch.equal(processor.apply(logits(1)), logits(1))


def test_v1_follows_requests_that_move() -> None:
    processor = forced_v1()
    processor.update_state(
        added(3, (0, ProcessorParams(1, 0, 0, forced=(3,)), []), (2, ProcessorParams(2, 0, 0, forced=(4,)), []))
    )
    moved = BatchUpdate(3, [0], [], [(2, 0, MoveDirectionality.UNIDIRECTIONAL)])
    processor.update_state(moved)
    assert [only(row) for row in processor.apply(logits(2))] == [4, None]


def test_v1_draws_with_seeds_where_there_are_seeds() -> None:
    """Rows without one are left to vLLM; an answer does not depend on what else is in the batch."""
    processor, outputs = PositionDraws(CONFIG, torch.device("cpu"), False), [[8, -1], [-1]]
    cuts = (Cut(0, 1.0), Cut(5, 0.8))
    draws = [ProcessorParams(1, number, 4, 99 + number, *cut) for number, cut in enumerate(cuts)]
    processor.update_state(added(3, (2, draws[0], outputs[0]), (0, draws[1], outputs[1]), (1, None, [])))
    before = logits(3)
    after = processor.apply(before.clone())
    assert torch.equal(after[1], before[1])
    for row, draw, output, cut in ((2, draws[0], outputs[0], cuts[0]), (0, draws[1], outputs[1], cuts[1])):
        assert draw.seed is not None
        unit = position_unit(draw.seed, draw.sequence, 4 + len(output) + 1)
        assert only(after[row]) == int(draw_tokens(before[row : row + 1], [cut], [unit]))


def test_v1_leaves_a_batch_without_seeds_alone() -> None:
    processor = PositionDraws(CONFIG, torch.device("cpu"), False)
    processor.update_state(added(2, (0, ProcessorParams(*KEY, 0, awaits_first=True), []), (1, None, [])))
    given = logits(2)
    assert processor.apply(given) is given


# -- the second --


class Slots:
    """What the second runner shows of its requests, by slot."""

    def __init__(self, count: int = 8) -> None:
        self.prompt_len = SimpleNamespace(np=np.zeros(count, np.int32))
        self.prefill_len = SimpleNamespace(np=np.zeros(count, np.int32))

    def add(self, slot: int, prompt: int, output: int = 0) -> None:
        self.prompt_len.np[slot] = prompt
        self.prefill_len.np[slot] = prompt + output


def step(batch: Sequence[tuple[int, int]], rows: Sequence[int] | None = None) -> LogitsContext:
    """`batch`: (slot, upper bound of tokens seen) of each request; `rows` so many logits of each."""
    rows = rows or [1] * len(batch)
    slots = np.array([slot for slot, _ in batch], np.int32)
    expanded = torch.tensor(np.repeat(slots, rows))
    local = torch.tensor([at for count in rows for at in range(count)])
    return LogitsContext(
        expanded_idx_mapping=expanded, idx_mapping=torch.tensor(slots), idx_mapping_np=slots,
        expanded_local_pos=local, input_ids=torch.zeros_like(local), pos=torch.zeros_like(local),
        seq_lens_upper_bound_np=np.array([seen for _, seen in batch], np.int32),
    )  # fmt: skip


def test_v2_forces_one_row_in_one_step() -> None:
    slots = Slots()
    processor = forcing_v2.ForcedTokensV2(CONFIG, slots)
    slots.add(5, prompt=10)
    assert processor.add_request(5, params(ProcessorParams(*KEY, 0, awaits_first=True)))
    assert not processor.add_request(2, params(None))
    forced_tokens.provide(KEY, 9)
    before = logits(2)
    # A part of the prompt, then all of it.
    assert torch.equal(processor.apply(before.clone(), step([(2, 4), (5, 6)])), before)
    after = processor.apply(before.clone(), step([(5, 10), (2, 5)]))
    assert only(after[0]) == 9
    assert torch.equal(after[1], before[1])
    for seen in (11, 12):
        assert torch.equal(processor.apply(before.clone(), step([(5, seen), (2, 5)])), before)


def test_v2_forces_a_list_and_goes_on_where_it_was_after_preemption() -> None:
    slots = Slots()
    processor = forcing_v2.ForcedTokensV2(CONFIG, slots)
    draw = ProcessorParams(*KEY, 0, forced=(3, 4, 5), awaits_first=True)
    forced_tokens.provide(KEY, 9)
    slots.add(1, prompt=10)
    processor.add_request(1, params(draw))
    told = [only(processor.apply(logits(1), step([(1, seen)]))[0]) for seen in (10, 11)]
    slots.add(3, prompt=10, output=2)
    processor.add_request(3, params(draw))
    told += [only(processor.apply(logits(1), step([(3, seen)]))[0]) for seen in (7, 12, 13, 14)]
    assert told == [3, 4, None, 5, 9, None]


def test_v2_forgets_what_a_slot_held_before() -> None:
    slots = Slots()
    processor = forcing_v2.ForcedTokensV2(CONFIG, slots)
    slots.add(1, prompt=10)
    processor.add_request(1, params(ProcessorParams(*KEY, 0, forced=(3,))))
    processor.add_request(1, params(None))
    assert only(processor.apply(logits(1), step([(1, 10)]))[0]) is None


def test_v2_forces_the_first_of_a_requests_rows_beside_drafts() -> None:
    """The first step after a load has rows for drafts that are placeholders, and counts them as seen."""
    slots = Slots()
    processor = forcing_v2.ForcedTokensV2(SPECULATES, slots)
    slots.add(4, prompt=10)
    slots.add(6, prompt=10)
    processor.add_request(4, params(ProcessorParams(*KEY, 0, awaits_first=True)))
    forced_tokens.provide(KEY, 9)
    before = logits(7)
    after = processor.apply(before.clone(), step([(6, 23), (4, 12)], [4, 3]))
    assert only(after[4]) == 9
    assert torch.equal(after[[0, 1, 2, 3, 5, 6]], before[[0, 1, 2, 3, 5, 6]])
    assert torch.equal(processor.apply(before.clone(), step([(6, 23), (4, 14)], [4, 3])), before)
