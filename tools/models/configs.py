"""The configurations of the tiny models, in the shapes that vLLM's CPU kernels take.

Those are heads of 32 or 64, latents of 512 and 64, experts of a multiple of 32. Everything else is small.
"""

from dataclasses import dataclass
from typing import Any, Final

VOCABULARY: Final = 1536
"""The demo model's, whose tokenizer all of them use."""
WINDOW: Final = 64
LARGE_CONTEXT: Final = 32768
"""Of the models of real size."""
BASE: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
_EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_YARN: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 512,
}
"""As DeepSeek-V2, V3, R1 and Kimi K2 have it, on a smaller scale."""
_LATENTS: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "head_dim": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_parameters": _YARN,
}
_UNSCALED: Final = {"rope_type": "default", "rope_theta": 50000.0}
_LITE: Final[dict[str, Any]] = {
    **_LATENTS,
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
}
_GPT_OSS: Final[dict[str, Any]] = {
    "head_dim": 64,
    "intermediate_size": 128,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": WINDOW,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 1024,
    },
}
_LINEAR: Final[dict[str, Any]] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "shared_expert_intermediate_size": 64,
    **_EXPERTS,
}
_MAMBA: Final[dict[str, Any]] = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_expand": 2,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "shared_intermediate_size": 128,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.18,
    "position_embedding_type": "rope",
}
_LLAMA_4: Final[dict[str, Any]] = {
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "intermediate_size_mlp": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 1, 1, 0],
    "attention_chunk_size": WINDOW,
    "use_qk_norm": True,
}
SLIDING: Final = ["sliding_attention"] * 3 + ["full_attention"]

KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", {**_EXPERTS, "norm_topk_prob": True}),
    "deepseek-v3": ("DeepseekV3", _LATENTS),
    "deepseek-v2-lite": ("DeepseekV2", _LITE),
    "moonlight": ("DeepseekV3", {**_LATENTS, "q_lora_rank": None, "rope_parameters": _UNSCALED}),
    "gpt-oss": ("GptOss", _GPT_OSS),
    "gemma-3": ("Gemma3Text", {"num_hidden_layers": 4, "layer_types": SLIDING, "sliding_window": WINDOW}),
    "qwen3-next": ("Qwen3Next", _LINEAR),
    "glm-4-moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
    ),
    "phi-3": ("Phi3", {"sliding_window": None}),
    "granite": ("Granite", {}),
    "granite-4": ("GraniteMoeHybrid", _MAMBA),
    "olmo-2": ("Olmo2", {}),
    "llama-4": ("Llama4Text", _LLAMA_4),
    "cohere-2": ("Cohere2", {"num_hidden_layers": 4, "layer_types": SLIDING, "sliding_window": WINDOW}),
}
"""By name: the prefix of the classes in transformers, and what differs from the base."""
_OF: Final = {"awq": "llama", "gptq": "llama", "int8": "llama", "w4a16": "llama", "fp8-channel": "llama"}


@dataclass(frozen=True)
class Cards:
    """A model of its real size, which is the default of its class in transformers, over `tensor` cards."""

    kind: str
    tensor: int
    weight_dtype: str
    card: str = "NVIDIA H100"
    memory_bytes: int = 80 << 30


_H200: Final = ("NVIDIA H200", 141 << 30)
CARDS: Final = {
    "fp8": Cards("Llama", 1, "fp8"),
    "block-fp8": Cards("DeepseekV3", 8, "fp8", *_H200),
    "mxfp4": Cards("GptOss", 2, "int4"),
    "gptq-moe": Cards("Qwen3Moe", 1, "int4"),
    "deepseek-v3.2": Cards("DeepseekV32", 8, "fp8", *_H200),
}
"""Those that cannot run here."""


def base_of(name: str) -> str:
    """The model whose weights a quantized one has; itself for the others."""
    return _OF.get(name, name)


def config_of(name: str) -> Any:
    """A configuration of transformers, without quantization."""
    import transformers

    if name in CARDS:
        return getattr(transformers, f"{CARDS[name].kind}Config")(max_position_embeddings=LARGE_CONTEXT)
    kind, more = KINDS[base_of(name)]
    return getattr(transformers, f"{kind}Config")(**{**BASE, **more})
