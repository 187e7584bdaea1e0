"""The sizes of a model from its `config.json`, for `sizing`. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from tandem.core.config_facts import Windows, layer_types, other_state, text_part, window_pattern, windows_of
from tandem.core.errors import TandemError
from tandem.core.sizing import Experts, Latent, Shape

_TIED: Final = ("gemma", "cohere")
"""Families that use their embeddings as the head's weights unless the file says otherwise."""
_SIZED: Final = ("an index of its latents",)
"""Things that a model may keep besides keys and values and that are too small to count."""


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape stated by the `config.json` of a decoder-only model, or of the language part of a multimodal one.
    Raises `bad_model` naming the key that is missing, or what the formulas do not cover."""
    whole, config = config, text_part(config)
    other = other_state(whole, config)
    if other and other not in _SIZED:
        raise TandemError("bad_model", f"config.json: the model has {other}, whose sizes are not computed here")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    kind = str(config.get("model_type", ""))
    layers = _whole(config, "num_hidden_layers")
    window, windowed = _windows(config, layers)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_whole(config, "num_key_value_heads", heads),
        head_dim=_whole(config, "head_dim", hidden // heads),
        feed_forward=_whole(config, "intermediate_size_mlp", _whole(config, "intermediate_size")),
        vocabulary=_whole(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", kind.startswith(_TIED))),
        query_key_value_bias=kind.startswith("qwen2") or bool(config.get("attention_bias", False)),
        query_key_norms=kind.startswith("qwen3"),
        experts=_experts(config, layers),
        latent=_latent(config),
        window=window,
        windowed_layers=windowed,
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The window, and how many layers have it."""
    found = windows_of(config)
    if found is Windows.NONE:
        return 0, 0
    window = _whole(config, "sliding_window")
    kinds = layer_types(config)
    if kinds:
        return window, sum(kind == "sliding_attention" for kind in kinds)
    pattern = window_pattern(config)
    return window, layers if pattern <= 1 else layers - layers // pattern


def _latent(config: Mapping[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        rank=_whole(config, "kv_lora_rank"),
        rope=_whole(config, "qk_rope_head_dim"),
        nope=_whole(config, "qk_nope_head_dim"),
        value=_whole(config, "v_head_dim"),
        query_rank=int(config.get("q_lora_rank") or 0),
    )


def _experts(config: Mapping[str, Any], layers: int) -> Experts | None:
    """The experts of a model, None when it has none. Mixtral calls their number `num_local_experts`, Qwen
    `num_experts`, DeepSeek `n_routed_experts`. In Llama 4 one layer in `interleave_moe_layer_step` has experts, and
    one expert that all tokens pass."""
    step = config.get("interleave_moe_layer_step")
    between = layers - layers // step if isinstance(step, int) and step > 0 else 0
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key):
            return Experts(
                count=_whole(config, key),
                active=_whole(config, "num_experts_per_tok"),
                width=_whole(config, "moe_intermediate_size", _whole(config, "intermediate_size")),
                shared=int(config.get("n_shared_experts") or isinstance(step, int)),
                dense_layers=int(config.get("first_k_dense_replace") or between),
            )
    return None


def _whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TandemError("bad_model", f"config.json: {key} is {config.get(key)!r}, not a number above 0", param=key)
    return value
