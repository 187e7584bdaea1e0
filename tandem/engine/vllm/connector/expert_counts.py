"""Counts in a rank which experts its tokens are sent to, for a metric. Nothing is decided by it."""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from tandem.engine.counts import ExpertBalance
from tandem.engine.vllm.experts import balance_of

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import VllmConfig

_EVERY_S: Final = 1.0


class ExpertCounts:
    """One per rank whose router sees all tokens. `routers` are vLLM's, one per layer that has experts; `ranks` share
    these out."""

    def __init__(self, routers: Sequence[Any], experts: int, ranks: int, device: torch.device) -> None:
        self._ranks = ranks
        # The first column takes what vLLM routes nowhere: padding, by the expert -1.
        self._counts = torch.zeros(len(routers), experts + 1, dtype=torch.int64, device=device)
        self._told = float("-inf")
        for layer, router in enumerate(routers):
            router.set_capture_fn(partial(self._count, layer))

    def _count(self, layer: int, experts: torch.Tensor) -> None:
        """`experts`: the expert ids of every token, of any shape. Tensor operations only, so that it can be recorded
        with the model."""
        chosen = experts.reshape(-1).to(torch.int64) + 1
        self._counts[layer].index_add_(0, chosen, torch.ones_like(chosen))

    def balance(self) -> ExpertBalance | None:
        """The expert balance of the tokens since the last answer; None when the last answer is less than a second
        old, or when there were no tokens."""
        now = time.monotonic()
        if now - self._told < _EVERY_S:
            return None
        balance = balance_of([row[1:] for row in self._counts.tolist()], self._ranks)
        if balance is not None:
            self._told = now
            self._counts.zero_()
        return balance


def expert_counts(config: "VllmConfig", tensor_rank: int) -> ExpertCounts | None:
    """The expert counts of this rank. None for a model without experts or with different numbers of them between
    layers, for ranks that see the same tokens as another rank, and for routers that do not report their choices."""
    from tandem.engine.vllm.internals import BaseRouter, MoERunner

    layers = config.compilation_config.static_forward_context.values()
    routers = [layer.router for layer in layers if isinstance(layer, MoERunner)]
    if tensor_rank or not routers or not all(isinstance(router, BaseRouter) for router in routers):
        return None
    parallel = config.parallel_config
    # With its own balancing of experts vLLM alone knows where they are.
    shared_out = parallel.enable_expert_parallel and not parallel.enable_eplb
    ranks = parallel.tensor_parallel_size if shared_out else 1
    experts, *others = {router.global_num_experts: None for router in routers}
    return None if others else ExpertCounts(routers, experts, ranks, torch.device(config.device_config.device))
