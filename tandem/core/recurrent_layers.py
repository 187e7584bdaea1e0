"""The sizes of layers that keep a state of fixed size per sequence, from `config.json`, for `sizing`. Pure."""

from collections.abc import Mapping
from typing import Any

from tandem.core.config_facts import layer_types, whole_number
from tandem.core.sizing import Recurrent


def recurrent_layers(config: Mapping[str, Any], kind: str, layers: int) -> Recurrent | None:
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
    hidden, heads = whole_number(config, "hidden_size"), whole_number(config, "linear_num_value_heads")
    key, value = whole_number(config, "linear_key_head_dim"), whole_number(config, "linear_value_head_dim")
    kernel = whole_number(config, "linear_conv_kernel_dim")
    keys, values = whole_number(config, "linear_num_key_heads") * key, heads * value
    convolved = 2 * keys + values
    # Queries, keys, values and a gate as wide as values; two numbers a head for decay and update; the way back.
    matrices = hidden * (convolved + values) + hidden * 2 * heads + values * hidden
    vectors = convolved * kernel + 2 * heads + value
    whole = layers // whole_number(config, "full_attention_interval", 4)
    count = layer_types(config).count("linear_attention") or layers - whole
    return Recurrent(count, matrices, vectors, heads * key * value + convolved * (kernel - 1))


def _mamba2(config: Mapping[str, Any]) -> Recurrent:
    """Mamba-2 layers of Granite 4 (arXiv 2405.21060): each head has a matrix of head x state numbers, and a
    convolution over inputs and both projections of the state keeps its last inputs."""
    hidden, heads = whole_number(config, "hidden_size"), whole_number(config, "mamba_n_heads")
    kernel, state = whole_number(config, "mamba_d_conv"), whole_number(config, "mamba_d_state")
    inner = heads * whole_number(config, "mamba_d_head")
    convolved = inner + 2 * whole_number(config, "mamba_n_groups") * state
    matrices = hidden * (inner + convolved + heads) + inner * hidden
    # Weights and biases of the convolution; decay, skip and step of each head; the norm before the way back.
    vectors = convolved * (kernel + 1) + 3 * heads + inner
    count = layer_types(config).count("mamba")
    return Recurrent(count, matrices, vectors, inner * state + convolved * (kernel - 1))
