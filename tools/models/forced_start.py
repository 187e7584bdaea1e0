"""A logits processor for vLLM alone: answers begin with given tokens, which are computed as generated ones are."""

from collections.abc import Callable
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class ForcedStart(AdapterLogitsProcessor):  # type: ignore[misc]
    """Reads `forced` in a request's `extra_args`."""

    def is_argmax_invariant(self) -> bool:
        """It decides."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """None for a request that begins as it likes."""
        forced: Any = (params.extra_args or {}).get("forced")
        if not forced:
            return None

        def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output) >= len(forced):
                return logits
            only = torch.full_like(logits, float("-inf"))
            only[forced[len(output)]] = 0.0
            return only

        return force
