"""Sizing against published counts of real models, and the properties its formulas must have."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.core.shape_reading import shape_of
from tandem.core.sizing import Hardware, Recurrent, decode_step_floor_s, fit, indivisible, prefill_floor_s, transfer_s

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
MIXTRAL_8X7B = {**LLAMA_8B, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
H100 = Hardware(80e9, 3.35e12, 989e12)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN2_7B, 7_615_616_512),
        (QWEN3_30B_A3B, 30_532_122_624),
    ],
)
def test_parameters_are_those_the_checkpoints_have(config: dict[str, Any], parameters: int) -> None:
    assert shape_of(config).parameters == parameters


def test_deepseek_v3_is_published_with_671_billion_parameters_of_which_37_are_active() -> None:
    shape = shape_of(DEEPSEEK_V3)
    assert round(shape.parameters / 1e9) == 671
    assert round(shape.active_parameters / 1e9) == 37


def test_kv_of_llama_3_70b() -> None:
    shape = shape_of(LLAMA_70B)
    assert shape.kv_token_bytes() == 327_680
    sizes = {tokens: transfer_s(shape, tokens=tokens, bytes_per_s=1e9) for tokens in (4096, 8192, 131_072)}
    assert {tokens: round(size, 3) for tokens, size in sizes.items()} == {4096: 1.342, 8192: 2.684, 131_072: 42.95}


def test_kinds_of_attention_and_what_they_cache() -> None:
    whole = shape_of({**LLAMA_8B, "num_key_value_heads": 32})
    single = shape_of({**LLAMA_8B, "num_key_value_heads": 1})
    latent = shape_of(DEEPSEEK_V3)
    assert [shape.attention for shape in (whole, shape_of(LLAMA_8B), single, latent)] == ["MHA", "GQA", "MQA", "MLA"]
    assert whole.kv_token_bytes() == 32 * single.kv_token_bytes()
    assert latent.kv_token_bytes() == 61 * (512 + 64) * 2


def test_heads_are_split_then_repeated_and_a_latent_is_on_every_rank() -> None:
    llama, latent = shape_of(LLAMA_70B), shape_of(DEEPSEEK_V3)
    assert llama.kv_token_bytes_per_rank(8) * 8 == llama.kv_token_bytes()
    assert llama.kv_token_bytes_per_rank(16) == llama.kv_token_bytes_per_rank(8)
    assert latent.kv_token_bytes_per_rank(8) == latent.kv_token_bytes()
    assert latent.kv_token_bytes_per_rank(8, pipeline=61) * 61 == latent.kv_token_bytes()


def test_a_70b_model_does_not_fit_one_80_gb_accelerator_and_does_fit_four() -> None:
    shape = shape_of(LLAMA_70B)
    alone = fit(shape, 80e9, context=8192)
    assert not alone.fits
    assert "141.11 GB" in alone.reason
    spread = fit(shape, 80e9, tensor=4, context=8192)
    assert spread.fits
    assert spread.kv_tokens == int((80e9 * 0.9 - shape.weight_bytes() / 4) // (327_680 / 4))


def test_a_model_without_attention_keeps_nothing_of_tokens() -> None:
    recurrent = replace(shape_of(LLAMA_8B), recurrent=Recurrent(32, 1, 1, 1), layers=32)
    assert recurrent.kv_layers == 0
    assert fit(recurrent, 80e9, context=131_072).fits
    assert not fit(recurrent, 1e9, context=1).fits


def test_the_reason_names_the_context_that_does_not_fit() -> None:
    shape = shape_of(LLAMA_8B)
    assert fit(shape, 24e9, context=8192).fits
    told = fit(shape, 24e9, context=131_072)
    assert not told.fits
    assert "131072 tokens" in told.reason


@pytest.mark.parametrize(
    ("tensor", "pipeline", "word"),
    [(3, 1, "64 attention heads"), (128, 1, "64 attention heads"), (1, 81, "80 layers")],
)
def test_what_cannot_be_cut_is_refused_with_both_numbers(tensor: int, pipeline: int, word: str) -> None:
    problem = indivisible(shape_of(LLAMA_70B), tensor, pipeline)
    assert problem is not None
    assert word in problem
    assert not fit(shape_of(LLAMA_70B), 1e15, tensor=tensor, pipeline=pipeline).fits


def test_kv_heads_that_do_not_divide() -> None:
    shape = shape_of(
        {**LLAMA_8B, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288}
    )
    assert indivisible(shape, 6) == "tensor parallelism 6 and 4 KV heads: neither divides the other"


def test_decode_of_one_sequence_is_bound_by_reading_the_weights() -> None:
    shape = shape_of(LLAMA_70B)
    floor = decode_step_floor_s(shape, H100, batch=1, context=1, ranks=4)
    weights = (shape.parameters - shape.hidden * shape.vocabulary) * 2
    assert floor == pytest.approx(weights / 3.35e12 / 4, rel=1e-4)


def test_prefill_of_a_long_prompt_is_bound_by_arithmetic() -> None:
    shape = shape_of(LLAMA_70B)
    floor = prefill_floor_s(shape, H100, tokens=8192, ranks=4)
    assert floor == pytest.approx(2 * shape.active_parameters * 8192 / 989e12 / 4, rel=0.1)
    assert prefill_floor_s(shape, H100, tokens=1) == pytest.approx(
        decode_step_floor_s(shape, H100, batch=1, context=1), rel=1e-4
    )


@given(st.integers(1, 512), st.integers(1, 100_000), st.sampled_from([LLAMA_8B, MIXTRAL_8X7B, DEEPSEEK_V3]))
def test_floors_grow_with_work_and_shrink_with_ranks(batch: int, context: int, config: dict[str, Any]) -> None:
    shape = shape_of(config)
    here = decode_step_floor_s(shape, H100, batch=batch, context=context)
    assert here <= decode_step_floor_s(shape, H100, batch=batch + 1, context=context)
    assert here <= decode_step_floor_s(shape, H100, batch=batch, context=context + 1)
    assert decode_step_floor_s(shape, H100, batch=batch, context=context, ranks=2) == pytest.approx(here / 2)
    assert prefill_floor_s(shape, H100, tokens=context) <= prefill_floor_s(shape, H100, tokens=context, cached=batch)


@given(st.integers(1, 1_000_000))
def test_a_batch_passes_every_expert_in_the_end_and_never_more(batch: int) -> None:
    shape = shape_of(MIXTRAL_8X7B)
    slow = Hardware(1.0, 1.0, float("inf"))
    read = decode_step_floor_s(shape, slow, batch=batch, context=0)
    everything = 2 * (shape.parameters - shape.hidden * shape.vocabulary)
    assert 2 * shape.active_parameters * (1 - 1e-12) <= read <= everything * (1 + 1e-12)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_missing_key_is_named(missing: str) -> None:
    config = {key: value for key, value in LLAMA_8B.items() if key != missing}
    with pytest.raises(TandemError, match=missing) as caught:
        shape_of(config)
    assert caught.value.code == "bad_model"


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(TandemError, match="float3"):
        shape_of(LLAMA_8B).kv_token_bytes("float3")
