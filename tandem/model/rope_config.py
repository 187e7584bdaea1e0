"""Rotary positions as a `config.json` describes them: the base and how it is stretched beyond the original context.

Newer writers put everything under `rope_parameters`; older ones put the base in `rope_theta` and the rest in
`rope_scaling`, with the kind under `type` or `rope_type`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tandem.model.config_fields import Fields


@dataclass(frozen=True)
class Rope:
    """One rule for rotation frequencies. Fields beyond `theta` matter only to the kinds that name them."""

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_tokens: int = 0
    """The context the model was trained on before stretching (dynamic, llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


KINDS: Final = ("default", "linear", "dynamic", "llama3", "yarn")
_NO_FIXED: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType({"partial_rotary_factor": (1, 1.0, None)})


def parse_rope(fields: Fields, positions: int, theta_default: float) -> tuple[Rope, int]:
    """The rope and the context in tokens that it reaches, `positions` being `max_position_embeddings`.

    `linear` and `dynamic` stretch `positions` by their factor, `yarn` stretches the original context, `llama3`
    states the stretched context in `positions` already. Raises `bad_model`.
    """
    theta = fields.number("rope_theta", default=theta_default)
    for key in ("rope_parameters", "rope_scaling"):
        value = fields.raw(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            fields.refuse(key, "expected an object")
        rope = _parse_object(fields.within(key, value), positions, theta)
        return rope, _context(rope, positions)
    return Rope(theta=theta, original_tokens=positions), positions


def _context(rope: Rope, positions: int) -> int:
    if rope.kind in ("linear", "dynamic"):
        return int(positions * rope.factor)
    if rope.kind == "yarn":
        return max(positions, int(rope.original_tokens * rope.factor))
    return positions


def _parse_object(fields: Fields, positions: int, theta_default: float) -> Rope:
    key = "rope_type" if fields.has("rope_type") else "type"
    kind = fields.choice(key, KINDS, default="default")
    fields.raw("type")
    theta = fields.number("rope_theta", default=theta_default)
    rope = _PARSERS[kind](fields, positions, theta)
    fields.finish((), _NO_FIXED)
    return rope


def _default(fields: Fields, positions: int, theta: float) -> Rope:
    return Rope("default", theta, original_tokens=positions)


def _linear(fields: Fields, positions: int, theta: float) -> Rope:
    return Rope("linear", theta, fields.number("factor"), positions)


def _dynamic(fields: Fields, positions: int, theta: float) -> Rope:
    if fields.has("original_max_position_embeddings"):
        original = fields.integer("original_max_position_embeddings")
        if original != positions:
            fields.refuse("original_max_position_embeddings", f"differs from max_position_embeddings = {positions}")
    return Rope("dynamic", theta, fields.number("factor"), positions)


def _llama3(fields: Fields, positions: int, theta: float) -> Rope:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        fields.refuse("high_freq_factor", f"must be greater than low_freq_factor = {low}")
    original = fields.integer("original_max_position_embeddings", default=positions)
    return Rope("llama3", theta, fields.number("factor"), original, low_freq_factor=low, high_freq_factor=high)


def _yarn(fields: Fields, positions: int, theta: float) -> Rope:
    original = fields.integer("original_max_position_embeddings", default=positions)
    return Rope(
        "yarn",
        theta,
        fields.number("factor", default=positions / original),
        original,
        attention_factor=fields.optional_number("attention_factor"),
        beta_fast=fields.number("beta_fast", default=32.0),
        beta_slow=fields.number("beta_slow", default=1.0),
        mscale=fields.optional_number("mscale") or 0.0,
        mscale_all_dim=fields.optional_number("mscale_all_dim") or 0.0,
        truncate=fields.flag("truncate", True),
    )


_PARSERS: Final = MappingProxyType(
    {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn}
)
