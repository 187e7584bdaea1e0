"""`forcing` for vLLM's second model runner, whose processors keep their state by request slot."""

from typing import TYPE_CHECKING

import torch

from tandem.engine.vllm.forced_tokens import Known, known_of
from tandem.engine.vllm.forcing import draw_of, force
from tandem.engine.vllm.internals import async_tensor_h2d, gpu_logits_processor

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import LogitsContext, LogitsProcRequestState, SamplingParams, VllmConfig


class ForcedTokensV2(gpu_logits_processor.LogitsProcessor):
    """Leaves a single token where the next one is known: one row in one step, without waiting for the device.

    It runs before temperature and cuts, which leave a single token as it is. What is next is counted on the host,
    from lengths that the scheduler knows ahead of the device.
    """

    def __init__(self, vllm_config: "VllmConfig", req_states: "LogitsProcRequestState") -> None:
        self._prompts = req_states.prompt_len
        self._prefilled = req_states.prefill_len
        self._speculates = vllm_config.speculative_config is not None
        self._known: dict[int, Known] = {}
        """The known positions, by slot, of requests that can still have one ahead."""

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        """A slot's last request may have left something here."""
        self._known.pop(req_idx, None)
        known = known_of(draw_of(sampling_params))
        if known is not None:
            self._known[req_idx] = known
        return known is not None

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext") -> torch.Tensor:
        """`logits` [rows, vocabulary]; changed in place."""
        if self._known and (found := self._next(ctx)):
            positions, tokens = (
                async_tensor_h2d([each[at] for each in found], logits.device, torch.int64) for at in (0, 1)
            )
            force(logits, self._rows(ctx, positions), tokens)
        return logits

    def _next(self, ctx: "LogitsContext") -> list[tuple[int, int]]:
        """(position in the batch, token) of requests that draw a known position now; those that are over are
        forgotten."""
        found: list[tuple[int, int]] = []
        for position, slot in enumerate(ctx.idx_mapping_np.tolist()):
            known = self._known.get(slot)
            if known is None:
                continue
            seen, prefilled = int(ctx.seq_lens_upper_bound_np[position]), int(self._prefilled.np[slot])
            if seen < prefilled:
                # A part of the prompt: what is drawn after it counts for nothing.
                continue
            # Beside drafts the length is a bound only, but the first step after the prompt has accepted none.
            at = (prefilled if self._speculates else seen) - int(self._prompts.np[slot])
            token = known.token(at)
            if token is not None:
                found.append((position, token))
            if self._speculates or known.over(at + 1):
                del self._known[slot]
        return found

    def _rows(self, ctx: "LogitsContext", positions: torch.Tensor) -> torch.Tensor:
        """Each request's first row: beside drafts it has several, and where they begin is known on the device."""
        if not self._speculates:
            return positions
        slots = ctx.idx_mapping[positions][:, None]
        first: torch.Tensor = (ctx.expanded_idx_mapping == slots) & (ctx.expanded_local_pos == 0)
        return first.int().argmax(1)
