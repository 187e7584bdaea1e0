"""A logits processor of vLLM's first model runner: positions that are known are drawn as what they are."""

from typing import TYPE_CHECKING, Any

import torch

from tandem.engine.vllm.forced_tokens import provided
from tandem.engine.vllm.internals import BatchUpdate, LogitsProcessor, SamplingParams, process_dict_updates
from tandem.engine.vllm.requests import DRAW, Draw

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import VllmConfig


def draw_of(params: SamplingParams) -> Draw | None:
    """What we told vLLM's sampler of a request; None for requests that are not ours, such as its own warm-up."""
    packed: list[Any] | None = (params.extra_args or {}).get(DRAW)
    if packed is None:
        return None
    return Draw.unpacked(packed)


class _Known:
    """The known positions of one request. `output` is vLLM's own, growing list of what it has drawn."""

    def __init__(self, draw: Draw, output: list[int]) -> None:
        self._draw = draw
        self._output = output

    @property
    def over(self) -> bool:
        """Whether all that can be known has been drawn."""
        return len(self._output) >= len(self._draw.forced) + self._draw.awaits_first

    def next(self) -> int | None:
        """The next token, when it is known."""
        at, draw = len(self._output), self._draw
        if at < len(draw.forced):
            return draw.forced[at]
        return provided((draw.work, draw.sequence)) if draw.awaits_first and at == len(draw.forced) else None


class ForcedTokens(LogitsProcessor):
    """Leaves a single token where the next one is known.

    A grammar, penalties and minimum lengths see it as ordinary output, since for vLLM it is. It works before
    penalties, on greedy requests too; a token that a grammar or a bias has ruled out is possible again.
    """

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:
        self._known: dict[int, _Known] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._known, batch_update, _new)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [requests, vocabulary]; changed in place."""
        for row in [row for row, known in self._known.items() if known.over]:
            del self._known[row]
        found = {row: token for row, known in self._known.items() if (token := known.next()) is not None}
        if found:
            rows = torch.tensor(list(found), device=logits.device)
            logits[rows] = float("-inf")
            logits[rows, torch.tensor(list(found.values()), device=logits.device)] = 0.0
        return logits


def _new(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> _Known | None:
    draw = draw_of(params)
    if draw is None or not (draw.forced or draw.awaits_first):
        return None
    known = _Known(draw, output)
    return None if known.over else known
