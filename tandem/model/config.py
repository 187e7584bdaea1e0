"""The settings of a model in its `config.json`, as one frozen value for six families of decoder-only transformers.

Both spellings are read: the flat keys of older checkpoints (`rope_theta`, `rope_scaling`, `torch_dtype`,
`num_experts`) and those that newer writers use (`rope_parameters`, `dtype`, `num_local_experts`). Torch-free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tandem.model.config_fields import Fields
from tandem.model.config_known import FIXED, HARMLESS
from tandem.model.rope_config import Rope, parse_rope

CONFIG_FILE: Final = "config.json"


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts MLP. `normalise` scales the chosen experts' weights to sum to one."""

    count: int
    per_token: int
    width: int
    normalise: bool


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model and everything that decides its numbers. Sizes are in elements, `context` in tokens."""

    architecture: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    norm_eps: float
    rope: Rope
    context_tokens: int
    windows: tuple[int | None, ...]
    """Per layer: how many positions a query sees, itself included; None means all."""
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    experts: Experts | None
    sparse_layers: tuple[bool, ...]
    """Per layer: whether its MLP is a mixture of experts."""
    dtype: str
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class _Family:
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    """Whether the MLP has biases. None, here and in the fields above, leaves it to the configuration
    (`attention_bias`, `mlp_bias`)."""
    qk_norm: bool = False
    window: str = "none"
    """`none`, `always` (when `sliding_window` is set) or `opt-in` (`use_sliding_window`)."""
    window_default: int | None = None
    experts: str = ""
    theta: float = 10_000.0
    head_dim: int | None = None


FAMILIES: Final = MappingProxyType(
    {
        "LlamaForCausalLM": _Family(qkv_bias=None, output_bias=None, mlp_bias=None),
        "MistralForCausalLM": _Family(window="always", window_default=4096),
        "Qwen2ForCausalLM": _Family(qkv_bias=True, window="opt-in", window_default=4096),
        "Qwen3ForCausalLM": _Family(
            qkv_bias=None, output_bias=None, qk_norm=True, window="opt-in", window_default=4096, head_dim=128
        ),
        "MixtralForCausalLM": _Family(window="always", experts="mixtral", theta=1_000_000.0),
        "Qwen3MoeForCausalLM": _Family(
            qkv_bias=None, output_bias=None, qk_norm=True, window="opt-in", window_default=4096, experts="qwen3"
        ),
    }
)

DTYPES: Final = ("float32", "bfloat16", "float16")


def parse_config(raw: Mapping[str, object], generation: Mapping[str, object] | None = None) -> ModelConfig:
    """The model described by the objects in `config.json` and `generation_config.json`.

    Raises `bad_model` naming the key for anything unknown, missing, contradictory or unsupported.
    """
    fields = Fields(CONFIG_FILE, raw)
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    layers = fields.integer("num_hidden_layers")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    hidden = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", default=family.head_dim or hidden // heads)
    if head_dim % 2:
        fields.refuse("head_dim", "rotary positions need an even head size")
    rope, context = parse_rope(fields, fields.integer("max_position_embeddings"), family.theta)
    fields.choice("hidden_act", ("silu",), default="silu")
    attention_bias = _bias(fields, "attention_bias", family.qkv_bias)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", default=1e-5 if family.experts == "mixtral" else 1e-6),
        rope=rope,
        context_tokens=context,
        windows=_windows(fields, family, layers),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias and family.output_bias is None,
        mlp_bias=_bias(fields, "mlp_bias", family.mlp_bias),
        qk_norm=family.qk_norm,
        experts=_experts(fields, family),
        sparse_layers=_sparse_layers(fields, family, layers),
        dtype=_dtype(fields),
        eos_token_ids=_eos(fields, generation),
    )
    fields.finish(HARMLESS, FIXED)
    return config


def _architecture(fields: Fields) -> str:
    value = fields.raw("architectures")
    if not isinstance(value, list) or len(value) != 1 or value[0] not in FAMILIES:
        fields.refuse("architectures", f"supported is one of {', '.join(FAMILIES)}")
    return str(value[0])


def _bias(fields: Fields, key: str, decided: bool | None) -> bool:
    if decided is None:
        return fields.flag(key, False)
    if fields.raw(key) not in (None, decided):
        fields.refuse(key, f"this architecture always has {str(decided).lower()}")
    return decided


def _dtype(fields: Fields) -> str:
    old, new = fields.raw("torch_dtype"), fields.raw("dtype")
    if new is None:
        return "float32" if old is None else fields.choice("torch_dtype", DTYPES)
    return fields.choice("dtype", DTYPES)


def _windows(fields: Fields, family: _Family, layers: int) -> tuple[int | None, ...]:
    if family.window == "none":
        if fields.has("sliding_window"):
            fields.refuse("sliding_window", "this architecture has none")
        fields.raw("sliding_window")
        return (None,) * layers
    used = family.window == "always" or fields.flag("use_sliding_window", False)
    # A Mistral file that says null means no window; one that says nothing means the family's default.
    window = family.window_default
    if fields.present("sliding_window"):
        window = fields.optional_integer("sliding_window")
    window = window if used else None
    types = _layer_types(fields, layers)
    if types is not None:
        if "sliding_attention" in types and window is None:
            fields.refuse("layer_types", "names sliding_attention, but no sliding window is in use")
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if family.window == "opt-in" and not family.experts:
        first = fields.integer("max_window_layers", default=28, least=0)
        return tuple(window if layer >= first else None for layer in range(layers))
    return (window,) * layers


def _layer_types(fields: Fields, layers: int) -> tuple[str, ...] | None:
    value = fields.raw("layer_types")
    if value is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(value, list) or len(value) != layers or any(kind not in known for kind in value):
        fields.refuse("layer_types", f"expected {layers} entries of {' or '.join(known)}")
    return tuple(value)


def _experts(fields: Fields, family: _Family) -> Experts | None:
    if not family.experts:
        return None
    mixtral = family.experts == "mixtral"
    old_name = "num_experts" if fields.has("num_experts") and not mixtral else "num_local_experts"
    count = fields.integer(old_name, default=8 if mixtral else 128)
    per_token = fields.integer("num_experts_per_tok", default=2 if mixtral else 8)
    if per_token > count:
        fields.refuse("num_experts_per_tok", f"there are only {count} experts")
    if mixtral:
        return Experts(count, per_token, fields.integer("intermediate_size"), True)
    width = fields.integer("moe_intermediate_size", default=768)
    return Experts(count, per_token, width, fields.flag("norm_topk_prob", False))


def _sparse_layers(fields: Fields, family: _Family, layers: int) -> tuple[bool, ...]:
    if family.experts != "qwen3":
        return (bool(family.experts),) * layers
    step = fields.integer("decoder_sparse_step", default=1)
    dense = frozenset(fields.integers("mlp_only_layers"))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _eos(fields: Fields, generation: Mapping[str, object] | None) -> tuple[int, ...]:
    ids = fields.integers("eos_token_id")
    if generation is not None:
        ids = Fields("generation_config.json", generation).integers("eos_token_id") + ids
    return tuple(dict.fromkeys(ids))
