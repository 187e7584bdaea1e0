"""The two kinds of MLP: gated dense, and a mixture of gated experts with softmax top-k routing."""

from dataclasses import dataclass

import torch
from torch.nn.functional import silu


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [n, in] times weight [in, out], plus bias [out]."""
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _gated(x: torch.Tensor, gate_up: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    both = linear(x, gate_up, bias)
    width = both.shape[1] // 2
    return silu(both[:, :width]).mul_(both[:, width:])


@dataclass(frozen=True)
class DenseMlp:
    """down(silu(gate(x)) * up(x)), gate and up fused side by side [hidden, 2 * width]."""

    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + mlp(x), both [n, hidden]; the residual may be overwritten."""
        residual.addmm_(_gated(x, self.gate_up, self.gate_up_bias), self.down)
        return residual if self.down_bias is None else residual.add_(self.down_bias)


@dataclass(frozen=True)
class ExpertMlp:
    """Each token goes through its `per_token` likeliest experts, weighted by their probability.

    Probabilities are a float32 softmax over all experts; `normalise` makes the chosen ones sum to one.
    """

    gate: torch.Tensor
    gate_up: tuple[torch.Tensor, ...]
    down: tuple[torch.Tensor, ...]
    per_token: int
    normalise: bool

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + mlp(x), both [n, hidden]; the residual may be overwritten."""
        weights, chosen = torch.softmax(torch.mm(x, self.gate).float(), -1).topk(self.per_token, -1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        mixed = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            token, choice = torch.where(chosen == expert)
            out = torch.mm(_gated(x.index_select(0, token), self.gate_up[expert], None), self.down[expert])
            mixed.index_add_(0, token, out * weights[token, choice, None])
        return residual.add_(mixed)
