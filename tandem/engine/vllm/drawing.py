"""A logits processor of vLLM's first model runner: with a seed, every position has a random number of its own.

vLLM would draw from one generator per request, whose state depends on every step before. Ours is a function of seed,
sequence and position, so another worker draws the same, wherever it takes a request up.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem.core.entropy import position_unit
from tandem.engine.torch.sampling import Cut, draw_tokens
from tandem.engine.vllm.forcing import draw_of, force
from tandem.engine.vllm.internals import (
    BatchUpdate,
    LogitsProcessor,
    SamplingParams,
    async_tensor_h2d,
    process_dict_updates,
)
from tandem.engine.vllm.requests import ProcessorParams

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import VllmConfig


@dataclass(frozen=True)
class _Row:
    """A request with a seed. `output` is vLLM's own list of what it has drawn; with asynchronous scheduling its
    values come late, its length does not."""

    draw: ProcessorParams
    seed: int
    cut: Cut
    output: list[int]

    def unit(self) -> float:
        """The random number of the next position, in [0, 1)."""
        draw = self.draw
        return position_unit(self.seed, draw.sequence, draw.base + len(self.output) + 1)


class PositionDraws(LogitsProcessor):
    """Applies top-k and top-p to requests with a seed, draws, and leaves vLLM's sampler only the drawn token.

    It works after bias, penalties, temperature and min-p, which vLLM applies; vLLM is given neither top-k nor top-p
    nor seed of such requests. Other requests are not touched, and a batch without such a request is skipped at once.
    """

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """True, so that vLLM calls this processor where it draws at random, and only there."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _new)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [requests, vocabulary], over temperature; changed in place."""
        if not self._rows:
            return logits
        rows = sorted(self._rows)
        drawing = [self._rows[row] for row in rows]
        index = async_tensor_h2d(rows, logits.device, torch.int64)
        chosen = logits if len(rows) == len(logits) else logits[index]
        force(logits, index, draw_tokens(chosen, [each.cut for each in drawing], [each.unit() for each in drawing]))
        return logits


def _new(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> _Row | None:
    draw = draw_of(params)
    if draw is None or draw.seed is None:
        return None
    return _Row(draw, draw.seed, Cut(draw.top_k, draw.top_p), output)
