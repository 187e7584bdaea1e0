"""What vLLM's own configuration makes of our arguments on a card that is not here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments
from tandem.engine.vllm.dry_run import resolve
from tandem.engine.vllm.settings import Parallelism, VllmSettings

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip
TRANSFER: dict[str, object] = {
    "kv_connector": "TandemConnector",
    "kv_connector_module_path": "kv_transfer.connectors.vllm",
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


def test_a_process_that_says_nothing_in_time_is_ended(llama: Path) -> None:
    with pytest.raises(TandemError, match="said nothing within") as raised:
        resolve([arguments(llama, VllmSettings(device="cuda"))], timeout_s=0.01)
    assert raised.value.code == "engine_failed"
