"""The few facts that Tandem reads from any model's `config.json`: context, vocabulary, end tokens, kinds of KV cache.

Unknown keys and architectures pass. What an engine reports of a model that it has loaded takes precedence over all of
this. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeGuard

Json = Mapping[str, Any]

_TEXT_PARTS: Final = ("text_config", "language_config", "llm_config", "thinker_config")
"""The keys under which configurations of multimodal models keep their language model."""
_CONTEXT_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_STRETCHING: Final = ("linear", "dynamic", "ntk")
"""Kinds of rope whose factor is not in the stated length yet."""
_ATTENTION: Final = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_INDEXED: Final = ("indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention")
"""Attention to positions that an index of its own chooses."""
_COMPRESSED: Final = ("compressed_sparse_attention", "heavily_compressed_attention")
_RECURRENT: Final = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid", "hybrid_sliding")
"""The last two have attention beside their state."""
_PATTERNS: Final[Mapping[str, int]] = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gpt_oss": 2,
    "olmo3": 4,
}
"""The window pattern (see `window_pattern`) of the families whose older files leave it to the architecture."""
_STATE_KEYS: Final = (
    "mamba_d_state",
    "mamba_n_heads",
    "ssm_state_size",
    "state_size",
    "linear_num_key_heads",
    "linear_attn_config",
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_layer_indices",
)
"""Keys that only models with layers of recurrent state have."""


@dataclass(frozen=True)
class ConfigFacts:
    """None and empty stand for what the file does not say."""

    context_tokens: int | None
    vocab_size: int | None
    eos_token_ids: tuple[int, ...]


def facts_of(config: Json, generation: Json | None = None) -> ConfigFacts:
    """The facts stated by the objects in `config.json` and `generation_config.json`. Never raises: a value that is
    not a number counts as missing."""
    text = text_part(config)
    vocabulary = text.get("vocab_size")
    return ConfigFacts(
        context_tokens=_context(text, str(config.get("model_type", ""))),
        vocab_size=vocabulary if _is_count(vocabulary) else None,
        eos_token_ids=_eos(generation or {}, config, text),
    )


def text_part(config: Json) -> Json:
    """The language model's keys, at one level: those of its own part go before those around it."""
    for name in _TEXT_PARTS:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            return {**config, **text_part(inner)}
    return config


def quantization(config: Json) -> Json | None:
    """The quantization that the checkpoint states, wherever it states it; None for weights as they were trained."""
    for part in (config, text_part(config)):
        for key in ("quantization_config", "compression_config"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return found
    return None


def _context(text: Json, model_type: str) -> int | None:
    stated = [text[key] for key in _CONTEXT_KEYS if _is_count(text.get(key))]
    if not stated:
        return None
    # Gemma 3 states the stretched length.
    factor = 1.0 if "gemma3" in model_type else _stretch(text)
    return int(min(stated) * factor)


def _stretch(text: Json) -> float:
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key)
        if isinstance(rope, Mapping):
            kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
            if kind in _STRETCHING and isinstance(factor, int | float) and factor > 0:
                return float(factor)
    return 1.0


def _eos(*places: Json) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for place in places:
        value = place.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
                found[token] = None
    return tuple(found)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Windows(Enum):
    """Which layers see only a window of the last positions."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


@dataclass(frozen=True)
class CacheKinds:
    """The properties of a model that decide whether its KV blocks can be exchanged. `other` describes in words what
    the model keeps besides keys and values, or latents, of every layer alike; empty for nothing. `inexact` says why
    KV of one position is not the same wherever it is computed; empty where it is."""

    other: str = ""
    windows: Windows = Windows.NONE
    inexact: str = ""


def cannot_exchange(kinds: CacheKinds) -> str:
    """Why blocks of such a model cannot be exchanged, in words; empty where they can."""
    if kinds.other:
        return f"the model has {kinds.other}, which blocks of keys and values do not carry"
    if kinds.windows is Windows.ALL:
        return "all layers see a sliding window only, and vLLM frees what is before it"
    return kinds.inexact


def cache_kinds(config: Json, context_tokens: int | None = None) -> CacheKinds:
    """The cache properties of a model as far as the file states them; an engine that knows the architecture may know
    more. `context_tokens` is the part of the context that is served: a window that is not smaller counts as none."""
    text = text_part(config)
    return CacheKinds(other_state(config, text), windows_of(text, context_tokens))


def other_state(config: Json, text: Json) -> str:
    """See `CacheKinds.other`."""
    kinds = layer_types(text)
    if any(kind in _RECURRENT for kind in kinds):
        return "layers of recurrent state"
    if not kinds and any(text.get(key) is not None for key in _STATE_KEYS):
        return "layers of recurrent state"
    if text.get("compress_ratios") is not None or any(kind in _COMPRESSED for kind in kinds):
        return "compressed latents"
    if text.get("index_topk") is not None or any(kind in _INDEXED for kind in kinds):
        return "an index of its latents" if text.get("kv_lora_rank") is not None else "an index of its keys"
    for kind in kinds:
        if kind not in _ATTENTION:
            return f"layers of the unknown layer type {kind!r}"
    if _is_count(text.get("num_kv_shared_layers")):
        return "layers that share a KV cache"
    if _is_count(text.get("global_head_dim")) and text.get("global_head_dim") != text.get("head_dim"):
        return "layers with heads of other sizes"
    if config.get("is_encoder_decoder") is True:
        return "attention to an encoder"
    return ""


def layer_types(text: Json) -> tuple[str, ...]:
    """The kind of each layer, where the file lists them."""
    listed = text.get("layer_types") or text.get("layers_block_type")
    return tuple(str(kind) for kind in listed) if isinstance(listed, list | tuple) else ()


def windows_of(text: Json, context_tokens: int | None = None) -> Windows:
    """See `cache_kinds`."""
    size = text.get("sliding_window")
    if not _is_count(size) or text.get("use_sliding_window") is False:
        return Windows.NONE
    if context_tokens is not None and size >= context_tokens:
        return Windows.NONE
    return _windows_by_layer(text)


def _windows_by_layer(text: Json) -> Windows:
    kinds = layer_types(text)
    first, layers = text.get("max_window_layers"), text.get("num_hidden_layers")
    if not kinds and _is_count(first) and _is_count(layers) and first >= layers:
        # Of Qwen: layers before this one see everything.
        return Windows.NONE
    if kinds:
        sliding = [kind == "sliding_attention" for kind in kinds]
        return Windows.ALL if all(sliding) else Windows.SOME if any(sliding) else Windows.NONE
    return Windows.SOME if window_pattern(text) > 1 else Windows.ALL


def window_pattern(text: Json) -> int:
    """Every so many layers one sees everything, where the file does not list the kinds of layers; 1 or less: none."""
    stated = text.get("sliding_window_pattern")
    if isinstance(stated, str):
        return len(stated)
    if _is_count(stated):
        return int(stated)
    return _PATTERNS.get(str(text.get("model_type", "")), 1)
