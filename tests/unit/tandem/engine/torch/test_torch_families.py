"""Greedy tokens and logits equal the reference implementation's for every family and variant."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds.torch_drive import Driver, prompt, reference_greedy, reference_logits, save_model

torch.set_num_threads(1)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_experts": 6}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-head-dim": ("Llama", {"head_dim": 32}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("Llama", {"num_key_value_heads": 4}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear": (
        "Llama",
        {"max_position_embeddings": 32, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-yarn-options": (
        "Llama",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
                "attention_factor": 1.3,
            }
        },
    ),
    "llama-yarn-mscale": ("Llama", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-window": (
        "Qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 4, "sliding_window": 20}),
    "qwen3-moe": ("Qwen3Moe", MOE),
    "qwen3-moe-normalised": ("Qwen3Moe", {**MOE, "norm_topk_prob": True, "head_dim": 32}),
    "qwen3-moe-dense-first": ("Qwen3Moe", {**MOE, "mlp_only_layers": [0]}),
    "qwen3-moe-sparse-step": ("Qwen3Moe", {**MOE, "decoder_sparse_step": 2, "norm_topk_prob": True}),
    "qwen3-moe-window": ("Qwen3Moe", {**MOE, "use_sliding_window": True, "sliding_window": 12}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_reference(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = save_model(tmp_path, family, **changes)
    driver = Driver(tmp_path)
    tokens = prompt(61)
    expected = reference_logits(model, tokens)
    logits = driver.prefill(tokens, driver.table(61), (61,))
    torch.testing.assert_close(logits, expected[-1], rtol=1e-4, atol=2e-4)
    assert driver.greedy(tokens, 24) == reference_greedy(model, tokens, 24)
    assert driver.greedy(tokens[:3], 24) == reference_greedy(model, tokens[:3], 24)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Mixtral", {"num_local_experts": 4}), ("Qwen3Moe", MOE)],
)
def test_fused_expert_names(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_model(tmp_path / "split", family, **changes)
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    tokens = prompt(20)
    driver = Driver(tmp_path / "fused")
    logits = driver.prefill(tokens, driver.table(20), (20,))
    torch.testing.assert_close(logits, reference_logits(model, tokens)[-1], rtol=1e-4, atol=2e-4)


def test_dynamic_scaling_follows_each_token(tmp_path: Path) -> None:
    """Within the original context a prompt, beyond it generated tokens: as the reference generates."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = save_model(tmp_path, "Llama", max_position_embeddings=32, rope_parameters=rope)
    tokens = prompt(30)
    assert Driver(tmp_path).greedy(tokens, 40) == reference_greedy(model, tokens, 40)


def test_dynamic_scaling_does_not_depend_on_chunks(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    save_model(tmp_path, "Llama", max_position_embeddings=32, rope_parameters=rope)
    tokens, driver = prompt(70), Driver(tmp_path)
    whole = driver.prefill(tokens, driver.table(70), (70,))
    cut = driver.prefill(tokens, driver.table(70), (11, 40, 19))
    torch.testing.assert_close(whole, cut, rtol=1e-4, atol=1e-4)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    model = save_model(tmp_path / "one", "Llama")
    model.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    tokens = prompt(12)
    assert Driver(tmp_path / "many").greedy(tokens, 8) == reference_greedy(model, tokens, 8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("family", "changes"), [("Qwen3", {}), ("Mixtral", {"num_local_experts": 4})])
def test_half_precision(dtype: str, family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Half precision differs in rounding only: logits stay near the reference's float32 ones."""
    model = save_model(tmp_path, family, initializer_range=0.1, **changes)
    tokens, driver = prompt(40), Driver(tmp_path, dtype=dtype)
    logits = driver.prefill(tokens, driver.table(40), (40,))
    expected = reference_logits(model, tokens)[-1]
    assert logits.dtype == torch.float32
    assert torch.corrcoef(torch.stack((logits, expected)))[0, 1] > 0.99
