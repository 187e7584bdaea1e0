"""Bytes of weights, KV and state of real models, against figures worked out by hand."""

from typing import Any

import pytest

from tandem.core.quantization import kv_type, weight_type
from tandem.core.shape_reading import shape_of
from tandem.core.weight_format import WeightFormat, format_of, quantized_by
from tests.worlds.real_configs import CASES

CONFIGS = {case.name: case.config for case in CASES}
LLAMA = CONFIGS["Llama-3.1-8B"]
LINEAR = 6_979_321_856
"""Numbers in the matrices of Llama 3.1 8B's layers. Each layer: queries and output 2 x 4096 x 4096 = 33,554,432; keys
and values 2 x 4096 x 1024 = 8,388,608; feed-forward 3 x 4096 x 14336 = 176,160,768; in all 218,103,808, times 32."""
PLAIN = 2_101_878_784
"""Bytes of what stays as it was: embeddings and head 2 x 128256 x 4096 and 65 norms of 4096, of 2 bytes each."""


def quantized(method: str, **how: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": {"quant_method": method, **how}}


def bytes_of(config: dict[str, Any]) -> int:
    shape = shape_of(config)
    found = format_of(config, shape)
    assert found is not None
    return found.bytes_of(shape)


def groups(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # 54,525,952 groups of 128, each of 64 bytes with a scale of 2 and a zero of half a byte: 3,625,975,808. The
        # published checkpoint has 5.73 GB.
        (quantized("awq", bits=4, group_size=128, zero_point=True), 54_525_952 * 66.5 + PLAIN),
        # Symmetric: no zeros. 3,598,712,832 for the layers.
        (quantized("gptq", bits=4, group_size=128, sym=True), 54_525_952 * 66 + PLAIN),
        (quantized("gptq", bits=4, group_size=128, sym=False), 54_525_952 * 66.5 + PLAIN),
        (quantized("gptq", bits=8, group_size=128, sym=True), 54_525_952 * 130 + PLAIN),
        # One scale for a whole row is too little to count.
        (quantized("gptq", bits=4, group_size=-1, sym=True), LINEAR // 2 + PLAIN),
        (
            quantized(
                "compressed-tensors",
                config_groups=groups(num_bits=4, type="int", symmetric=True, strategy="group", group_size=128),
                ignore=["lm_head"],
            ),
            54_525_952 * 66 + PLAIN,
        ),
        (
            quantized(
                "compressed-tensors",
                config_groups=groups(num_bits=8, type="float", strategy="channel"),
                ignore=["re:.*lm_head"],
            ),
            LINEAR + PLAIN,
        ),
        # 16 numbers of half a byte have a scale of one byte: 9/16 bytes each.
        (
            quantized(
                "compressed-tensors",
                config_groups=groups(num_bits=4, type="float", group_size=16),
                ignore=["lm_head"],
            ),
            LINEAR * 9 / 16 + PLAIN,
        ),
        (quantized("modelopt", quant_algo="NVFP4", ignore=["lm_head"]), LINEAR * 9 / 16 + PLAIN),
        (quantized("modelopt", quant_algo="FP8", exclude_modules=["lm_head"]), LINEAR + PLAIN),
        (quantized("modelopt", quant_algo="fp8_pb_wo", exclude_modules=["lm_head"]), LINEAR + PLAIN),
        (quantized("modelopt_fp4", quant_algo="NVFP4", exclude_modules=["lm_head"]), LINEAR * 9 / 16 + PLAIN),
        # A scale of 4 bytes for each 128 x 128: 6,979,321,856 / 4096 = 1,703,936 more.
        (quantized("fp8", weight_block_size=[128, 128]), LINEAR + 1_703_936 + PLAIN),
        # A scale of 4 bytes for each 64, or of one byte.
        (quantized("bitsandbytes", load_in_4bit=True), LINEAR * (1 / 2 + 1 / 16) + PLAIN),
        (
            quantized("bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True),
            LINEAR * (1 / 2 + 1 / 64) + PLAIN,
        ),
        # Without a list of what is left out the head may be quantized, too: 525,336,576 numbers of 1 byte, not 2.
        (
            quantized("compressed-tensors", config_groups=groups(num_bits=8, type="float")),
            LINEAR + PLAIN - 525_336_576,
        ),
        # The first and the last of 32 layers as they were.
        (
            quantized("fp8", modules_to_not_convert=["model.layers.0", "model.layers.31.self_attn", "layers.31.mlp"]),
            LINEAR * 34 / 32 + PLAIN,
        ),
        # Every matrix of the attention of one layer by its name; one of another layer alone counts as nothing.
        (
            quantized(
                "fp8",
                ignored_layers=[f"model.layers.3.self_attn.{name}_proj" for name in "qkvo"]
                + ["model.layers.4.self_attn.q_proj"],
            ),
            LINEAR + 41_943_040 + PLAIN,
        ),
        # All attention: 41,943,040 numbers in each of 32 layers.
        (quantized("fp8", ignored_layers=["re:.*self_attn.*"]), LINEAR + 32 * 41_943_040 + PLAIN),
        # A tower of images has layers of its own, "gate" is the router's and no part of "gate_proj".
        (
            quantized("fp8", ignored_layers=["vision_tower.layers.0.self_attn", "vision_tower.layers.0.mlp"]),
            LINEAR + PLAIN,
        ),
        (quantized("awq", bits=4, group_size=128, modules_to_not_convert=["gate"]), 54_525_952 * 66.5 + PLAIN),
    ],
)  # fmt: skip
def test_bytes_of_llama_8b(config: dict[str, Any], expected: float) -> None:
    assert bytes_of(config) == expected


def test_gpt_oss_has_experts_of_4_bits_and_all_else_of_16() -> None:
    # Experts: 24 layers x 32 x 3 x 2880 x 2880 = 19,110,297,600 numbers, 32 of them 16 bytes and a scale of one:
    # 10,152,345,600 bytes. Attention: 24 x (2 x 2880 x 4096 + 2 x 2880 x 512) = 637,009,920; embeddings and head
    # 2 x 201,088 x 2880 = 1,158,266,880; routers 24 x 32 x 2880 = 2,211,840; 49 norms of 2880 and 24 x 5120 biases of
    # queries, keys and values = 264,000: 3,595,505,280 bytes. The published files have 13.76 GB.
    assert bytes_of(CONFIGS["gpt-oss-20b"]) == 10_152_345_600 + 3_595_505_280


def test_deepseek_v3_in_blocks_of_8_bits() -> None:
    # Attention: 61 x (1536 x (7168 + 128 x 192) + 7168 x 576 + 512 x 128 x 256 + 128 x 128 x 7168) = 11,413,422,080;
    # dense: 3 x 3 x 7168 x 18432 = 1,189,085,184; experts: 58 x 257 x 3 x 7168 x 2048 = 656,463,101,952. Together
    # 669,065,609,216 numbers of a byte, with 4 bytes more for each 16,384 of them: 163,346,096.
    quantized_bytes = 669_065_609_216 + 163_346_096
    # Embeddings and head 2 x 129,280 x 7168 = 1,853,358,080; routers 58 x 256 x 7168 = 106,430,464; norms
    # 123 x 7168 + 61 x (1536 + 512) = 1,006,592; of 2 bytes each.
    assert bytes_of(CONFIGS["DeepSeek-V3"]) == quantized_bytes + 3_921_590_272


def test_only_what_certainly_stays_as_it_was_counts_as_that() -> None:
    def without(name: str, *left: str) -> int:
        config = CONFIGS[name]
        given = config.get("quantization_config", {"quant_method": "fp8"})
        return bytes_of({**config, "quantization_config": {**given, "modules_to_not_convert": list(left)}})

    # One expert of a layer is not all of them, and the first three layers have none.
    whole = without("DeepSeek-V3")
    assert without("DeepSeek-V3", "model.layers.3.mlp.experts.0") == whole
    assert without("DeepSeek-V3", "model.layers.0.mlp") == whole
    # 187,105,280 numbers of one layer's attention: of 2 bytes instead of 1 and 4 / 16,384.
    more = 187_105_280 - 187_105_280 // 4096
    assert without("DeepSeek-V3", "model.layers.0.self_attn") == whole + more
    # Which of a hybrid's layers are recurrent is not asked.
    hybrid = without("Qwen3-Next-80B-A3B")
    assert without("Qwen3-Next-80B-A3B", "model.layers.0") == hybrid
    # 36 x (2048 x (8192 + 4096) + 2048 x 64 + 4096 x 2048) = 36 x 33,685,504 numbers.
    assert without("Qwen3-Next-80B-A3B", "linear_attn") == hybrid + 36 * 33_685_504


@pytest.mark.parametrize(
    "config",
    [
        quantized("gptq", bits=4, group_size=128, dynamic={"+:.*mlp.*": {"bits": 8}}),
        quantized("modelopt", quant_algo="MIXED_PRECISION"),
        quantized(
            "compressed-tensors", config_groups=groups(num_bits=8), sparsity_config={"format": "sparse-24-bitmask"}
        ),
        quantized("compressed-tensors", config_groups={"group_0": "odd"}),
        quantized("gptq", bits=3, group_size=128),
        quantized("quark"),
    ],
)
def test_what_is_not_known_has_no_size(config: dict[str, Any]) -> None:
    assert weight_type(config) is None
    assert format_of(config, shape_of(LLAMA)) is None


def test_a_method_of_the_engine_leaves_embeddings_and_head() -> None:
    made = quantized_by("fp8")
    assert made is not None
    assert made.bytes_of(shape_of(LLAMA)) == LINEAR + PLAIN
    assert quantized_by("feathers") is None
    assert WeightFormat(2.0).bytes_of(shape_of(LLAMA)) == shape_of(LLAMA).weight_bytes()


def test_a_checkpoint_may_come_with_scales_for_its_kv() -> None:
    assert kv_type(LLAMA) is None
    assert kv_type(quantized("modelopt", quant_algo="NVFP4", kv_cache_quant_algo="FP8")) == "fp8"
    assert kv_type(quantized("compressed-tensors", kv_cache_scheme={"num_bits": 8, "type": "float"})) == "fp8"


@pytest.mark.parametrize(
    ("name", "token", "context", "sequence"),
    [
        # 61 layers x (512 + 64) numbers of 2 bytes; the whole context of one sequence.
        ("DeepSeek-V3", 70_272, 163_840, 70_272 * 163_840),
        # The index of V3.2 keeps 128 numbers of a byte and a scale of 4 beside it: 61 x (1152 + 132).
        ("DeepSeek-V3.2", 78_324, 163_840, 78_324 * 163_840),
        # Each layer 2 x 8 x 64 x 2 = 2048 bytes; 12 see everything, 12 the last 128 tokens:
        # 12 x 131,072 x 2048 + 12 x 128 x 2048.
        ("gpt-oss-20b", 24 * 2048, 131_072, 3_221_225_472 + 3_145_728),
        # Each layer 2 x 8 x 128 x 2 = 4096 bytes; every fourth of 48 sees everything, the others a chunk of 8192:
        # 12 x 10,485,760 x 4096 + 36 x 8192 x 4096.
        ("Llama-4-Scout", 48 * 4096, 10_485_760, 515_396_075_520 + 1_207_959_552),
        # Every layer sees the last 4096 tokens: 32 x 4096 bytes for each of those.
        ("Mistral-7B-v0.1", 32 * 4096, 32_768, 32 * 4096 * 4096),
        # 12 of 48 layers keep KV: 12 x 2 x 2 x 256 x 2.
        ("Qwen3-Next-80B-A3B", 24_576, 262_144, 24_576 * 262_144),
        # 4 of 40 layers keep KV: 4 x 2 x 8 x 128 x 2.
        ("Granite-4.0-H-Small", 16_384, 131_072, 16_384 * 131_072),
    ],
)
def test_bytes_of_kv(name: str, token: int, context: int, sequence: int) -> None:
    shape = shape_of(CONFIGS[name])
    assert shape.kv_token_bytes() == token
    assert shape.sequence_tokens(context) * token == pytest.approx(sequence, rel=1e-12)


def test_bytes_of_recurrent_state() -> None:
    # 36 layers, each with 32 heads of 128 x 128 numbers and the last 3 inputs of a convolution over 2 x 2048 + 4096:
    # 36 x (524,288 + 24,576) x 2.
    assert shape_of(CONFIGS["Qwen3-Next-80B-A3B"]).state_bytes() == 39_518_208
    # 36 layers, each with 128 heads of 64 x 128 numbers and the last 3 inputs of a convolution over 8192 + 2 x 128:
    # 36 x (1,048,576 + 25,344) x 2.
    assert shape_of(CONFIGS["Granite-4.0-H-Small"]).state_bytes() == 77_322_240
    assert shape_of(LLAMA).state_bytes() == 0


def test_a_key_of_recurrent_layers_that_is_missing_is_named() -> None:
    config = {key: value for key, value in CONFIGS["Qwen3-Next-80B-A3B"].items() if key != "linear_key_head_dim"}
    with pytest.raises(Exception, match="linear_key_head_dim"):
        shape_of(config)
