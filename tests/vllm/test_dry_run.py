"""What vLLM's own configuration makes of our arguments on a card that is not here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments
from tandem.engine.vllm.dry_run import resolve
from tandem.engine.vllm.settings import Parallelism, Speculative, VllmSettings
from tandem.spec.pool import engine_of
from tandem.spec.vllm import vllm_settings
from tests.unit.deploy.test_deploy_examples import CONFIGS, pools

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip
TRANSFER: dict[str, object] = {
    "kv_connector": "TandemConnector",
    "kv_connector_module_path": "tandem.engine.vllm.connector.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"socket": "/nowhere"},
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def arguments(model: Path, settings: VllmSettings) -> EngineArguments:
    return engine_arguments(settings, SchedulerSettings(), model, (), Sockets(model), TRANSFER)


def test_a_card_that_is_not_here_is_configured_and_what_vllm_refuses_is_told(llama: Path) -> None:
    settings = VllmSettings(device="cuda", parallelism=Parallelism(tensor=4), context_tokens=32768)
    fits = arguments(llama, settings)
    fails = replace(fits, keywords={**fits.keywords, "max_model_len": 1 << 20})
    good, bad = resolve([fits, fails])
    assert good.problem is None
    assert (good.executor, good.block_tokens) == ("mp", 16)
    assert bad.problem is not None
    assert "max_model_len" in bad.problem


def written(place: Path, config: dict[str, object]) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_nothing_of_the_examples_excludes_asynchronous_scheduling_or_the_second_model_runner(tmp_path: Path) -> None:
    architectures = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
    asked: dict[str, EngineArguments] = {}
    for name, service, pool in pools():
        settings = vllm_settings(engine_of(service.spec.engine, pool))
        if service.spec.engine.type == "vllm":
            config = {"architectures": [architectures[CONFIGS[name]["model_type"]]], "torch_dtype": "bfloat16"}
            model = written(
                tmp_path / name / pool.name, {**CONFIGS[name], **config, "max_position_embeddings": 131072}
            )
            asked[f"{name} {pool.name}"] = arguments(model, settings)
    assert {name.split()[0] for name in asked} == set(CONFIGS)
    for name, found in zip(asked, resolve(tuple(asked.values())), strict=True):
        assert found.problem is None, name
        assert (found.async_scheduling, found.v2_model_runner) == (True, True), name


def test_speculation_excludes_neither(llama: Path) -> None:
    """With configurations alone: what drafts has no weights here."""
    small = {**LLAMA, "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    drafts = written(llama / "drafts", {**small, "intermediate_size": 512})
    heads = {**LLAMA, "num_hidden_layers": 1, "draft_vocab_size": 32000}
    eagle = written(llama / "eagle", {**heads, "architectures": ["EagleLlamaForCausalLM"]})
    eagle3 = written(llama / "eagle3", {**heads, "architectures": ["LlamaForCausalLMEagle3"]})
    given = [
        (llama, Speculative("ngram", None, 3)),
        (llama, Speculative("draft_model", str(drafts), 3)),
        (llama, Speculative("eagle", str(eagle), 3)),
        (llama, Speculative("eagle3", str(eagle3), 3)),
    ]
    made = [
        arguments(model, VllmSettings(device="cuda", context_tokens=8192, speculative=each)) for model, each in given
    ]
    for (_, each), found in zip(given, resolve(made), strict=True):
        assert found.problem is None, each
        assert (found.async_scheduling, found.v2_model_runner) == (True, True), each
        assert (found.speculation or "").removesuffix("_gpu") == each.method


def test_a_process_that_says_nothing_in_time_is_ended(llama: Path) -> None:
    with pytest.raises(TandemError, match="said nothing within") as raised:
        resolve([arguments(llama, VllmSettings(device="cuda"))], timeout_s=0.01)
    assert raised.value.code == "engine_failed"
