"""The bytes that the weights of a quantized checkpoint take, with their scales, from its `config.json`. Pure.

What cannot be told counts as quantized: the sum is what the weights need at least.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from math import ceil
from typing import Any, Final, TypeGuard

from tandem.core.config_facts import quantization
from tandem.core.quantization import grouped_weights, type_of_method, weight_type
from tandem.core.sizing import ITEM_BYTES, Shape

_LEFT: Final = ("embeddings", "vectors", "router")
"""Parts that no method quantizes."""
_HEAD: Final = ("compressed-tensors", "modelopt", "modelopt_fp4")
"""Methods that quantize the head, too, unless the checkpoint leaves it out."""
_EXPERTS_ONLY: Final = ("mxfp4", "gpt_oss_mxfp4", "experts_int8")
_SCALE_BYTES: Final = 2.0
_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT: Final = ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_FEED_FORWARD: Final = ("gate_proj", "up_proj", "down_proj")
_MODULES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "attention": (("self_attn",), _ATTENTION),
    "feed_forward": (("mlp",), _FEED_FORWARD),
    "experts": (("mlp",), ("experts",), ("0", "1"), _FEED_FORWARD),
    "shared_experts": (("mlp",), ("shared_expert",), _FEED_FORWARD),
    "recurrent": (("linear_attn",), ("in_proj_qkvz", "out_proj")),
}
"""The paths of a part's matrices within a layer, as most models name them."""
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
_LANGUAGE: Final = frozenset(("model", "language_model", "text_model"))
"""What the layers of the language part are in; a tower of images has layers of its own."""


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored: `item` bytes for one number of a quantized matrix, with what its scales take, and
    `plain_item` bytes for one of the others. `plain` is the share of each part (`Shape.parts`) that is not quantized,
    1 for what is not listed and never quantized."""

    item: float
    plain: Mapping[str, float] = field(default_factory=dict)
    plain_item: float = ITEM_BYTES["bfloat16"]

    def bytes_of(self, shape: Shape) -> int:
        """All weights of a model of this shape."""
        found = 0.0
        for part, count in shape.parts.items():
            plain = 1.0 if part in _LEFT else self.plain.get(part, 0.0)
            found += count * (plain * self.plain_item + (1 - plain) * self.item)
        return ceil(found)


def quantized_by(method: str) -> WeightFormat | None:
    """What one of vLLM's methods makes of weights that are not quantized; None for a method that is not known."""
    dtype = type_of_method(method)
    return None if dtype is None else WeightFormat(ITEM_BYTES[dtype], _untouched(method))


def format_of(config: Mapping[str, Any], shape: Shape) -> WeightFormat | None:
    """The format of a quantized checkpoint of this shape; None for one that is not quantized, or in a way that is not
    known."""
    found, dtype = quantization(config), weight_type(config)
    if found is None or dtype is None or dtype not in ITEM_BYTES:
        return None
    method = method_of(found)
    patterns = tuple(_patterns(found))
    whole = tuple(pattern for pattern in patterns if _layer_of(pattern) is None)
    modules = {**_MODULES, "attention": (("self_attn",), _ATTENTION if shape.latent is None else _LATENT)}
    plain = {
        part: _share_left(names, patterns if _everywhere(part, shape) else whole, shape.layers)
        for part, names in modules.items()
    }
    if any(_matches(pattern, "lm_head") for pattern in patterns):
        plain["head"] = 1.0
    return WeightFormat(ITEM_BYTES[dtype] + _scales(found, method, dtype), {**plain, **_untouched(method, found)})


def _everywhere(part: str, shape: Shape) -> bool:
    """Whether every layer has this part. Of other parts it is not known which layers a pattern of one layer names."""
    dense = shape.experts is not None and shape.experts.dense_layers > 0
    return shape.recurrent is None and (part == "attention" or not dense)


def _untouched(method: str, found: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Parts that the method leaves alone whatever the checkpoint says."""
    if method in _EXPERTS_ONLY:
        return dict.fromkeys(("head", "attention", "feed_forward", "shared_experts", "recurrent"), 1.0)
    head = method in _HEAD or (found or {}).get("lm_head") is True
    return {} if head else {"head": 1.0}


def method_of(found: Mapping[str, Any]) -> str:
    """The name of the method that a checkpoint's quantization states."""
    return str(found.get("quant_method", "")).lower().replace("compressed_tensors", "compressed-tensors")


def _scales(found: Mapping[str, Any], method: str, dtype: str) -> float:
    """Bytes of scales and zero points for one number; types whose scales are of a fixed size have theirs in
    `ITEM_BYTES`."""
    if method == "compressed-tensors":
        return _grouped_scales(found, dtype)
    if method == "bitsandbytes":
        # A scale for each 64 numbers; quantized in their turn, of one byte.
        return 0.0 if dtype != "int4" else (1.0 if found.get("bnb_4bit_use_double_quant") else 4.0) / 64
    block = found.get("weight_block_size")
    if dtype == "fp8" and isinstance(block, list) and len(block) == 2 and all(_is_size(each) for each in block):
        return 4.0 / float(block[0] * block[1])
    group = found.get("group_size", found.get("q_group_size"))
    if dtype not in ("int4", "int8") or not _is_size(group):
        return 0.0
    zeros = method.startswith("awq") or found.get("sym") is False or found.get("zero_point") is True
    return (_SCALE_BYTES + (ITEM_BYTES[dtype] if zeros else 0.0)) / group


def _grouped_scales(found: Mapping[str, Any], dtype: str) -> float:
    """The least that any of the checkpoint's groups of layers needs."""
    if dtype not in ("int4", "int8"):
        return 0.0
    each = []
    for weights in grouped_weights(found):
        group = weights.get("group_size")
        zeros = ITEM_BYTES[dtype] if weights.get("symmetric") is False else 0.0
        each.append((_SCALE_BYTES + zeros) / group if _is_size(group) else 0.0)
    return min(each, default=0.0)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _patterns(found: Mapping[str, Any]) -> Iterator[str]:
    """Names of modules that are not quantized."""
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"):
        listed = found.get(key)
        if isinstance(listed, list | tuple):
            yield from (str(each) for each in listed)


def _share_left(names: tuple[tuple[str, ...], ...], patterns: tuple[str, ...], layers: int) -> float:
    """The share of the layers in which all matrices of these names are left out."""
    if not patterns:
        return 0.0
    paths = [".".join(path) for path in product(*names)]
    by_layer: dict[str, list[str]] = {}
    for pattern in patterns:
        by_layer.setdefault(_layer_of(pattern) or "", []).append(pattern)
    left = 0
    for layer in map(str, range(layers)):
        here = by_layer.get("", []) + by_layer.get(layer, [])
        left += all(any(_matches(pattern, f"layers.{layer}.{path}") for pattern in here) for path in paths)
    return left / layers


def _layer_of(pattern: str) -> str | None:
    """The number of the one layer that a pattern is about; None where it is about all, or does not tell."""
    numbered = None if pattern.startswith("re:") else _LAYER.search(pattern)
    return None if numbered is None else numbered[1]


def _matches(pattern: str, path: str) -> bool:
    """Whether the pattern names the module or something that it is in; `re:` begins a regular expression."""
    if pattern.startswith("re:"):
        try:
            return any(re.match(pattern[3:], f"{before}{path}") for before in ("", "model.", "language_model.model."))
        except re.error:
            return False
    wanted, parts = pattern.split("."), path.split(".")
    if "layers" in wanted:
        at = wanted.index("layers")
        if not _LANGUAGE.issuperset(wanted[:at]):
            return False
        wanted = wanted[at:]
    return any(
        all(fnmatchcase(name, like) for name, like in zip(parts[start:], wanted, strict=False))
        for start in range(len(parts) - len(wanted) + 1)
    )
