"""Rotation tables: cosine and sine per position, for every kind of context stretching.

Formulas: linear, "position interpolation" (angles divided by the factor); dynamic, NTK-aware scaling whose base
grows with the length; llama3, the wavelength bands of the Llama 3.1 release; yarn, arXiv:2309.00071, section 3.

Rotation must be a function of the position alone: KV blocks are named by their tokens, so a block must hold the
same bytes however its prompt was cut into chunks. `dynamic` therefore rotates position p for the length p + 1,
which is what token-by-token generation does; beyond the original context it differs from a one-shot forward
pass, which would rotate all positions for the final length.
"""

import math

import torch

from tandem.model.rope_config import Rope


def frequencies(rope: Rope, dim: int) -> tuple[torch.Tensor, float]:
    """Angles per position [dim / 2] in float32, and the factor on cosine and sine. Not for `dynamic`."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, rope.theta**exponents, dim), _yarn_attention(rope)
    return plain, 1.0


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    wavelength = 2 * math.pi / plain
    smooth = (rope.original_tokens / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    long = wavelength > rope.original_tokens / rope.low_freq_factor
    short = wavelength < rope.original_tokens / rope.high_freq_factor
    return torch.where(short, plain, torch.where(long, plain / rope.factor, between))


def _yarn(rope: Rope, powers: torch.Tensor, dim: int) -> torch.Tensor:
    def dimension(rotations: float) -> float:
        return dim * math.log(rope.original_tokens / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return 1.0 / (rope.factor * powers) * ramp + 1.0 / powers * (1 - ramp)


def _yarn_attention(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)


def _dynamic_angles(rope: Rope, dim: int, positions: torch.Tensor) -> torch.Tensor:
    lengths = (positions + 1).clamp(min=rope.original_tokens).to(torch.float32)
    growth = (rope.factor * lengths / rope.original_tokens) - (rope.factor - 1)
    base = rope.theta * growth ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    return positions.to(torch.float32)[:, None] / (base[:, None] ** exponents)


class RopeTable:
    """Cosine and signed sine rows [positions, dim], grown by doubling up to the longest position seen."""

    def __init__(self, rope: Rope, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rope = rope
        self._dim = dim
        self._dtype = dtype
        self._device = device
        self._grow(1024)

    def rows(self, positions: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [n, 1, dim] for `positions` [n], the greatest of which is `longest`."""
        if longest >= self._cos.shape[0]:
            self._grow(max(longest + 1, 2 * self._cos.shape[0]))
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def _grow(self, length: int) -> None:
        positions = torch.arange(length)
        scale = 1.0
        if self._rope.kind == "dynamic":
            angles = _dynamic_angles(self._rope, self._dim, positions)
        else:
            per_position, scale = frequencies(self._rope, self._dim)
            angles = positions.to(torch.float32)[:, None] * per_position
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self._cos = torch.cat((cos, cos), dim=-1).to(self._device, self._dtype)
        # The first half is rotated with a minus sign; carrying it here makes rotation two products and one roll.
        self._sin = torch.cat((-sin, sin), dim=-1).to(self._device, self._dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [n, heads, dim] by its rows of a `RopeTable`."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
