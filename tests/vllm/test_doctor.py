"""`tandem doctor --dry-run` where vLLM is installed: its own parser and its own choice of attention backends."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.apps.cli.doctor import command
from tandem.apps.cli.doctor.cases import Host
from tandem.apps.cli.doctor.findings import Finding
from tandem.apps.cli.main import main
from tandem.spec.reading import service_of
from tests.unit.deploy.test_deploy_examples import EXAMPLES

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "one-gpu-node": LLAMA,
    "llama-70b-tp4": LLAMA | {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
    },
    "shared-gpu": LLAMA | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True,
    },
    "moe-expert-parallel": LLAMA | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 94,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "max_position_embeddings": 262144,
    },
}  # fmt: skip
"""What vLLM reads of each example's model; of `cpu-demo`, which is not vLLM's, nothing."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "check_free", lambda *_: None)
    arguments = ["doctor", "--dry-run", str(path), "--json"]
    if path.stem in CONFIGS:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[path.stem]))
        arguments += ["--model", str(tmp_path)]
    status = main(arguments)
    findings = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert status == 0, [each for each in findings if each.verdict == "problem"]
    asked = {each.check: each.verdict for each in findings}
    assert asked["arguments"] == asked["stage"] == "ok"
    assert asked.get("attention backends", "ok") == "ok"


def test_what_vllm_would_not_do_is_told(tmp_path: Path) -> None:
    """Latents with blocks of 16 tokens, on a card whose fast backends want larger ones; too long a context."""
    config = LLAMA | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 4,
        "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    small = _told(tmp_path, {"blockTokens": 16}, {})
    assert small["first", "attention backends"].verdict == "problem"
    assert "MLA" in small["first", "attention backends"].said
    told = _told(tmp_path, {}, {"contextTokens": 1 << 20})
    assert told["first", "attention backends"].verdict == "ok"
    assert told["second", "arguments"].verdict == "problem"
    assert "max_model_len" in told["second", "arguments"].said


def test_cards_of_amd_are_asked_of_vllms_platform_for_them(tmp_path: Path) -> None:
    """Which has its own kinds of quantization: Marlin's kernels are NVIDIA's."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    told = _told(tmp_path, {}, {"quantization": "gptq_marlin"}, "mi300x")
    assert told["first", "arguments"].verdict == "ok"
    assert "on an AMD MI300X" in told["first", "arguments"].said
    assert told["first", "attention backends"].verdict == "ok"
    assert "TRITON_ATTN; with a KV connector" in told["first", "attention backends"].said
    assert "takes no ROCM_ATTN" in told["first", "attention backends"].said
    assert told["second", "arguments"].verdict == "problem"
    assert "gptq_marlin" in told["second", "arguments"].said


def test_processors_are_asked_of_vllms_platform_for_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    told = _told(tmp_path, {"device": "cpu", "kvMemory": "2Gi"}, {"contextTokens": 1 << 20})
    assert told["first", "arguments"].verdict == "ok"
    assert "on processors" in told["first", "arguments"].said
    assert told["first", "attention backends"].verdict == "ok"
    assert told["second", "arguments"].verdict == "problem"
    assert "max_model_len" in told["second", "arguments"].said


def _told(
    directory: Path, engine: dict[str, Any], second: dict[str, Any], accelerator: str = "b200"
) -> dict[tuple[str, str], Finding]:
    """Of two pools on such cards, the second with an engine of its own; by pool and check."""
    engine = {"type": "vllm", "device": "cuda", "dtype": "bfloat16", "contextTokens": 8192, **engine}
    pool = {"role": "unified", "accelerator": {"type": accelerator}}
    service = service_of(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": {"name": "latents"},
            "spec": {
                "model": {"source": str(directory)},
                "engine": engine,
                "pools": [{**pool, "name": "first"}, {**pool, "name": "second", "engine": {**engine, **second}}],
            },
        }
    )
    findings = command.examine(service, directory, Host(memory_bytes=64 << 30))
    return {(each.pool, each.check): each for each in findings}
