"""`config.json` files of well-known models, shortened to the keys that decide something, and keys nobody knows."""

from dataclasses import dataclass
from typing import Any, Final

from tandem.core.config_facts import Windows

STATE: Final = "layers of recurrent state"


@dataclass(frozen=True)
class Case:
    """One model: its files, and what has to be read out of them. `billions` of parameters; None where they are not
    computed, `weights` None where their type is not known."""

    name: str
    config: dict[str, Any]
    context: int | None
    vocabulary: int
    eos: tuple[int, ...] = ()
    other: str = ""
    windows: Windows = Windows.NONE
    weights: str | None = "bfloat16"
    billions: float | None = None


def _text(model_type: str, layers: int, hidden: int, heads: tuple[int, int, int], width: int, **more: Any) -> Any:
    """Of a language model. `heads`: of queries, of keys and values, and their size."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": width,
        "a_key_of_next_year": {"nested": [1]},
        **more,
    }


_LLAMA_8B: Final = _text(
    "llama", 32, 4096, (32, 8, 128), 14336, vocab_size=128256, max_position_embeddings=131072,
    rope_scaling={"rope_type": "llama3", "factor": 8.0}, eos_token_id=[128001, 128008, 128009],
    torch_dtype="bfloat16", architectures=["LlamaForCausalLM"],
)  # fmt: skip
_DEEPSEEK_V3: Final = _text(
    "deepseek_v3", 61, 7168, (128, 128, 56), 18432, moe_intermediate_size=2048, n_routed_experts=256,
    num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, vocab_size=129280, max_position_embeddings=163840,
    rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, eos_token_id=1,
    quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=1,
)  # fmt: skip


def _quantized(**how: Any) -> dict[str, Any]:
    return {**_LLAMA_8B, "quantization_config": how}


def _llama(name: str, weights: str | None, **how: Any) -> Case:
    eos = (128001, 128008, 128009)
    return Case(name, _quantized(**how), 131072, 128256, eos, weights=weights, billions=8.0)


_W4A16: Final = {"group_0": {"weights": {"num_bits": 4, "type": "int"}, "targets": ["Linear"]}}
_W8A8: Final = {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}}

CASES: Final = (
    Case("Llama-3.1-8B", _LLAMA_8B, 131072, 128256, (128001, 128008, 128009), billions=8.0),
    Case("DeepSeek-V3", _DEEPSEEK_V3, 163840, 129280, (1,), weights="fp8", billions=671.0),
    Case(
        "DeepSeek-V3.2",
        {**_DEEPSEEK_V3, "model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64},
        163840,
        129280,
        (1,),
        other="an index of its latents",
        weights="fp8",
        billions=671.0,
    ),
    Case(
        "gpt-oss-20b",
        _text(
            "gpt_oss",
            24,
            2880,
            (64, 8, 64),
            2880,
            num_local_experts=32,
            num_experts_per_tok=4,
            vocab_size=201088,
            max_position_embeddings=131072,
            sliding_window=128,
            eos_token_id=200002,
            attention_bias=True,
            layer_types=["sliding_attention", "full_attention"] * 12,
            architectures=["GptOssForCausalLM"],
            rope_scaling={"rope_type": "yarn", "factor": 32.0},
            quantization_config={"quant_method": "mxfp4"},
        ),
        131072,
        201088,
        (200002,),
        windows=Windows.SOME,
        weights="mxfp4",
        billions=20.9,
    ),
    Case(
        "Gemma-3-27B",
        {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "torch_dtype": "bfloat16",
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27},
            "text_config": _text(
                "gemma3_text",
                62,
                5376,
                (32, 16, 128),
                21504,
                vocab_size=262208,
                sliding_window=1024,
                max_position_embeddings=131072,
                rope_scaling={"factor": 8.0, "rope_type": "linear"},
            ),
        },
        131072,
        262208,
        (1, 106),
        windows=Windows.SOME,
        billions=27.0,
    ),
    Case(
        "Qwen3-Next-80B-A3B",
        _text(
            "qwen3_next",
            48,
            2048,
            (16, 2, 256),
            5120,
            num_experts=512,
            num_experts_per_tok=10,
            vocab_size=151936,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
            full_attention_interval=4,
            max_position_embeddings=262144,
            eos_token_id=151645,
            dtype="bfloat16",
        ),
        262144,
        151936,
        (151645,),
        other=STATE,
        billions=79.7,
    ),
    Case(
        "Phi-3-mini-128k",
        _text(
            "phi3",
            32,
            3072,
            (32, 32, 96),
            8192,
            vocab_size=32064,
            max_position_embeddings=131072,
            eos_token_id=32000,
            sliding_window=262144,
            original_max_position_embeddings=4096,
            torch_dtype="bfloat16",
            rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
            auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
        ),
        131072,
        32064,
        (32000,),
        billions=3.8,
    ),
    Case(
        "GLM-4.5-Air",
        _text(
            "glm4_moe",
            46,
            4096,
            (96, 8, 128),
            10944,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            num_experts_per_tok=8,
            n_shared_experts=1,
            first_k_dense_replace=1,
            vocab_size=151552,
            max_position_embeddings=131072,
            eos_token_id=[151329, 151336, 151338],
            torch_dtype="bfloat16",
            partial_rotary_factor=0.5,
            attention_bias=True,
        ),
        131072,
        151552,
        (151329, 151336, 151338),
        billions=106.8,
    ),
    Case(
        "Llama-4-Scout",
        {
            "model_type": "llama4",
            "architectures": ["Llama4ForConditionalGeneration"],
            "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 1408, "vocab_size": 17},
            "text_config": _text(
                "llama4_text",
                48,
                5120,
                (40, 8, 128),
                8192,
                intermediate_size_mlp=16384,
                num_local_experts=16,
                num_experts_per_tok=1,
                interleave_moe_layer_step=1,
                vocab_size=202048,
                attention_chunk_size=8192,
                max_position_embeddings=10485760,
                eos_token_id=[200001, 200007, 200008],
            ),
        },
        10485760,
        202048,
        (200001, 200007, 200008),
        billions=107.8,
    ),
    Case(
        "Granite-4.0-H-Small",
        _text(
            "granitemoehybrid",
            40,
            4096,
            (32, 8, 128),
            768,
            vocab_size=100352,
            max_position_embeddings=131072,
            layer_types=["mamba"] * 5 + (["attention"] + ["mamba"] * 9) * 3 + ["attention"] + ["mamba"] * 4,
            num_local_experts=72,
            num_experts_per_tok=10,
            shared_intermediate_size=1536,
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
            tie_word_embeddings=True,
            eos_token_id=100257,
            dtype="bfloat16",
        ),
        131072,
        100352,
        (100257,),
        other=STATE,
        billions=32.2,
    ),
    Case(
        "Granite-4.0-Micro",
        _text(
            "granitemoehybrid",
            4,
            2560,
            (40, 8, 64),
            8192,
            vocab_size=100352,
            max_position_embeddings=131072,
            layer_types=["attention"] * 4,
            mamba_n_heads=128,
            eos_token_id=100257,
            dtype="bfloat16",
        ),
        131072,
        100352,
        (100257,),
        billions=0.83,
    ),
    Case(
        "Qwen2.5-VL-7B",
        {
            **_text(
                "qwen2_5_vl",
                28,
                3584,
                (28, 4, 128),
                18944,
                vocab_size=152064,
                max_position_embeddings=128000,
                sliding_window=32768,
                use_sliding_window=False,
                max_window_layers=28,
                eos_token_id=151645,
                torch_dtype="bfloat16",
                rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
            ),
            "vision_config": {"depth": 32, "hidden_size": 1280},
        },
        128000,
        152064,
        (151645,),
        billions=7.6,
    ),
    Case(
        "Mistral-7B-v0.1",
        _text(
            "mistral",
            32,
            4096,
            (32, 8, 128),
            14336,
            vocab_size=32000,
            max_position_embeddings=32768,
            sliding_window=4096,
            eos_token_id=2,
            torch_dtype="bfloat16",
        ),
        32768,
        32000,
        (2,),
        windows=Windows.ALL,
        billions=7.2,
    ),
    Case(
        "Gemma-3n",
        {
            "model_type": "gemma3n",
            "torch_dtype": "bfloat16",
            "text_config": _text(
                "gemma3n_text",
                35,
                2048,
                (8, 2, 256),
                16384,
                vocab_size=262400,
                max_position_embeddings=32768,
                num_kv_shared_layers=15,
                sliding_window=512,
                layer_types=["sliding_attention", "full_attention"],
            ),
        },
        32768,
        262400,
        other="layers that share a KV cache",
        windows=Windows.SOME,
    ),
    Case(
        "a model of next year",
        {"model_type": "unheard", "text_config": {"vocab_size": 1000, "wings": 4}, "torch_dtype": "bfloat16"},
        None,
        1000,
    ),
    _llama("FP8", "fp8", quant_method="fp8", activation_scheme="dynamic"),
    _llama("AWQ", "int4", quant_method="awq", bits=4, group_size=128, zero_point=True),
    _llama("GPTQ 4 bits", "int4", quant_method="gptq", bits=4, desc_act=False),
    _llama("GPTQ 8 bits", "int8", quant_method="gptq", bits=8),
    _llama("compressed-tensors W4A16", "int4", quant_method="compressed-tensors", config_groups=_W4A16),
    _llama("compressed-tensors FP8", "int8", quant_method="compressed_tensors", config_groups=_W8A8),
    _llama("bitsandbytes NF4", "int4", quant_method="bitsandbytes", _load_in_4bit=True),
    _llama("bitsandbytes 8 bits", "int8", quant_method="bitsandbytes", load_in_8bit=True),
    _llama("a method of next year", None, quant_method="feathers"),
)
