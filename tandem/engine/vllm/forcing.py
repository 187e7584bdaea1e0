"""A logits processor of vLLM's first model runner: positions that are known are drawn as what they are."""

from typing import TYPE_CHECKING, Any

import torch

from tandem.engine.vllm.forced_tokens import Known, known_of
from tandem.engine.vllm.internals import (
    BatchUpdate,
    LogitsProcessor,
    SamplingParams,
    async_tensor_h2d,
    process_dict_updates,
)
from tandem.engine.vllm.requests import DRAW, ProcessorParams

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import VllmConfig


def draw_of(params: SamplingParams) -> ProcessorParams | None:
    """The parameters that vLLM's sampler was given for a request; None where it does everything by itself, as in its
    own warm-up."""
    packed: list[Any] | None = (params.extra_args or {}).get(DRAW)
    return None if packed is None else ProcessorParams.unpacked(packed)


def force(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Leave one token in each of these rows, in place."""
    logits.index_fill_(0, rows, float("-inf"))
    logits.index_put_((rows, tokens), logits.new_zeros(()))


class _Row:
    """`output` is vLLM's own list of what it has drawn; with asynchronous scheduling its values come late, its length
    does not."""

    def __init__(self, known: Known, output: list[int]) -> None:
        self.known = known
        self._output = output

    @property
    def at(self) -> int:
        """The index of the next output position."""
        return len(self._output)


class ForcedTokens(LogitsProcessor):
    """Leaves a single token where the next token is known, and does nothing in batches without such a request.

    A grammar, penalties and minimum lengths treat that token as ordinary output, since for vLLM it is. The processor
    works before penalties, on greedy requests too; a token that a grammar or a bias has ruled out becomes possible
    again.
    """

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _new)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [requests, vocabulary]; changed in place."""
        if not self._rows:
            return logits
        for row in [row for row, each in self._rows.items() if each.known.over(each.at)]:
            del self._rows[row]
        found = {row: token for row, each in self._rows.items() if (token := each.known.token(each.at)) is not None}
        if found:
            rows = async_tensor_h2d(list(found), logits.device, torch.int64)
            force(logits, rows, async_tensor_h2d(list(found.values()), logits.device, torch.int64))
        return logits


def _new(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> _Row | None:
    known = known_of(draw_of(params))
    return None if known is None or known.over(len(output)) else _Row(known, output)
