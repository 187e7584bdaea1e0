"""The sizes of a model from its `config.json`, for `sizing`. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from tandem.core.config_facts import Windows, layer_types, other_state, text_part, window_pattern, windows_of
from tandem.core.errors import TandemError
from tandem.core.sizing import Experts, Latent, Recurrent, Shape

_TIED: Final = ("gemma", "cohere")
"""Families that use their embeddings as the head's weights unless the file says otherwise."""
_FAMILIES: Final = (
    "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "exaone4", "gemma", "gemma2", "gemma3",
    "gemma3_text", "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "kimi_k2", "llama",
    "llama4", "llama4_text", "minimax_m2", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "phi3", "qwen2",
    "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_next",
    "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3",
)  # fmt: skip
"""Types of models that consist of what the formulas count. Of others the parts are not known: a feed-forward network
may have two matrices instead of three."""
_INDEX: Final = "an index of its latents"
_STATE: Final = "layers of recurrent state"


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape stated by the `config.json` of a decoder-only model, or of the language part of a multimodal one.
    Raises `bad_model` naming the key that is missing, or what the formulas do not cover."""
    whole, config = config, text_part(config)
    kind = str(config.get("model_type", ""))
    if kind not in _FAMILIES:
        raise TandemError("bad_model", f"config.json: the parts of models of type {kind!r} are not known here")
    layers = _whole(config, "num_hidden_layers")
    other, recurrent = other_state(whole, config), _recurrent_layers(config, kind, layers)
    if other not in ("", _INDEX) and not (other == _STATE and recurrent is not None):
        raise TandemError("bad_model", f"config.json: the model has {other}, whose sizes are not computed here")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
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
        latent=_latent(config, indexed=other == _INDEX),
        window=window,
        windowed_layers=windowed,
        recurrent=recurrent,
        query_gate=kind == "qwen3_next",
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The window, and how many layers have it. Attention within a chunk keeps no more than that chunk."""
    kinds = layer_types(config)
    if config.get("attention_chunk_size"):
        chunked = kinds.count("chunked_attention") if kinds else _rotary_layers(config, layers)
        return (_whole(config, "attention_chunk_size"), chunked) if chunked else (0, 0)
    found = windows_of(config)
    if found is Windows.NONE:
        return 0, 0
    window = _whole(config, "sliding_window")
    if kinds:
        return window, sum(kind == "sliding_attention" for kind in kinds)
    pattern = window_pattern(config)
    return window, layers if pattern <= 1 else layers - layers // pattern


def _rotary_layers(config: Mapping[str, Any], layers: int) -> int:
    """Of Llama 4: in the layers without rotary embeddings, every fourth one unless the file lists them, a token
    attends to all before it, in the others to its chunk."""
    rotary = config.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        return sum(bool(each) for each in rotary)
    return layers - layers // _whole(config, "no_rope_layer_interval", 4)


def _latent(config: Mapping[str, Any], *, indexed: bool) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        rank=_whole(config, "kv_lora_rank"),
        rope=_whole(config, "qk_rope_head_dim"),
        nope=_whole(config, "qk_nope_head_dim"),
        value=_whole(config, "v_head_dim"),
        query_rank=int(config.get("q_lora_rank") or 0),
        # Of 8 bits, with a float32 scale for each 128.
        index_bytes=_whole(config, "index_head_dim", 128) * 132 // 128 if indexed else 0,
    )


def _experts(config: Mapping[str, Any], layers: int) -> Experts | None:
    """The experts of a model, None when it has none. Mixtral calls their number `num_local_experts`, Qwen
    `num_experts`, DeepSeek `n_routed_experts`. In Llama 4 one layer in `interleave_moe_layer_step` has experts, and
    one expert that all tokens pass; Qwen and Granite state the width of that expert."""
    step = config.get("interleave_moe_layer_step")
    between = layers - layers // step if isinstance(step, int) and step > 0 else 0
    shared_width = config.get("shared_expert_intermediate_size") or config.get("shared_intermediate_size") or 0
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key):
            return Experts(
                count=_whole(config, key),
                active=_whole(config, "num_experts_per_tok"),
                width=_whole(config, "moe_intermediate_size", _whole(config, "intermediate_size")),
                shared=int(config.get("n_shared_experts") or isinstance(step, int) or bool(shared_width)),
                dense_layers=int(config.get("first_k_dense_replace") or between),
                shared_width=int(shared_width),
            )
    return None


def _recurrent_layers(config: Mapping[str, Any], kind: str, layers: int) -> Recurrent | None:
    """The recurrent layers of a model of type `kind`; None where it has none, or such that are not known here. Raises
    `bad_model` naming a key that is missing."""
    if kind == "qwen3_next":
        return _delta_net(config, layers)
    if kind == "granitemoehybrid" and "mamba" in layer_types(config):
        return _mamba2(config)
    return None


def _delta_net(config: Mapping[str, Any], layers: int) -> Recurrent:
    """Gated delta networks of Qwen3-Next (arXiv 2412.06464): each head of values has a matrix of key x value numbers
    as its state, and a convolution over keys, queries and values keeps its last inputs."""
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "linear_num_value_heads")
    key, value = _whole(config, "linear_key_head_dim"), _whole(config, "linear_value_head_dim")
    kernel = _whole(config, "linear_conv_kernel_dim")
    keys, values = _whole(config, "linear_num_key_heads") * key, heads * value
    convolved = 2 * keys + values
    # Queries, keys, values and a gate as wide as values; two numbers a head for decay and update; the way back.
    matrices = hidden * (convolved + values) + hidden * 2 * heads + values * hidden
    vectors = convolved * kernel + 2 * heads + value
    whole = layers // _whole(config, "full_attention_interval", 4)
    count = layer_types(config).count("linear_attention") or layers - whole
    return Recurrent(count, matrices, vectors, heads * key * value + convolved * (kernel - 1))


def _mamba2(config: Mapping[str, Any]) -> Recurrent:
    """Mamba-2 layers of Granite 4 (arXiv 2405.21060): each head has a matrix of head x state numbers, and a
    convolution over inputs and both projections of the state keeps its last inputs."""
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "mamba_n_heads")
    kernel, state = _whole(config, "mamba_d_conv"), _whole(config, "mamba_d_state")
    inner = heads * _whole(config, "mamba_d_head")
    convolved = inner + 2 * _whole(config, "mamba_n_groups") * state
    matrices = hidden * (inner + convolved + heads) + inner * hidden
    # Weights and biases of the convolution; decay, skip and step of each head; the norm before the way back.
    vectors = convolved * (kernel + 1) + 3 * heads + inner
    count = layer_types(config).count("mamba")
    return Recurrent(count, matrices, vectors, inner * state + convolved * (kernel - 1))


def _whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TandemError("bad_model", f"config.json: {key} is {config.get(key)!r}, not a number above 0", param=key)
    return value
