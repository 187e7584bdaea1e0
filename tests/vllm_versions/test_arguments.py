"""vLLM's own parser takes the arguments that Tandem gives, and knows the variables it sets."""

import dataclasses
import json
from pathlib import Path

import pytest

from tandem.core.messages import Adapter
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm import internals
from tandem.engine.vllm.arguments import AdapterDirectory, EngineArguments, Sockets, engine_arguments
from tandem.engine.vllm.dry_run import resolve
from tandem.engine.vllm.extra_args import ALLOWED
from tandem.engine.vllm.settings import Nodes, Parallelism, Speculative, VllmSettings

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
TRANSFER: dict[str, object] = {
    "kv_connector": "TandemConnector", "kv_connector_module_path": "tandem.engine.vllm.connector.vllm",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"socket": "/nowhere"},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    (directory / "config.json").write_text(json.dumps(LLAMA))
    (directory / "experts").mkdir()
    (directory / "experts" / "config.json").write_text(json.dumps(MIXTRAL))
    return directory


def _variants(model: Path) -> dict[str, EngineArguments]:
    """What Tandem gives, one of each kind."""

    def made(
        settings: VllmSettings, transfer: dict[str, object] | None = TRANSFER, of: Path = model
    ) -> EngineArguments:
        adapters = tuple(AdapterDirectory(Adapter(each, each), model, 1) for each in settings.adapters)
        port = 7403 if settings.nodes.count > 1 else None
        return engine_arguments(settings, SchedulerSettings(), of, adapters, Sockets(model), transfer, port)

    experts = model / "experts"
    cuda = VllmSettings(device="cuda", context_tokens=32768)
    nodes = Nodes(count=2, rank=0, leader="10.0.0.1", host="10.0.0.1")
    return {
        "plain": made(cuda),
        "sharded": made(dataclasses.replace(cuda, parallelism=Parallelism(tensor=4, pipeline=2))),
        "experts": made(dataclasses.replace(cuda, parallelism=Parallelism(tensor=4, expert=True)), of=experts),
        "nodes": made(dataclasses.replace(cuda, nodes=nodes, parallelism=Parallelism(tensor=2)), None),
        "speculating": made(dataclasses.replace(cuda, speculative=Speculative("ngram", tokens=4))),
        "adapters": made(dataclasses.replace(cuda, adapters=("one",))),
        "fp8": made(dataclasses.replace(cuda, kv_dtype="fp8")),
    }


def test_every_argument_is_one_of_vllms(model: Path) -> None:
    fields = {each.name for each in dataclasses.fields(internals.AsyncEngineArgs)}
    given = {name for each in _variants(model).values() for name in each.keywords}
    assert given | set(ALLOWED) <= fields


def test_vllms_configuration_takes_them(model: Path) -> None:
    variants = _variants(model)
    found = dict(zip(variants, resolve(tuple(variants.values())), strict=True))
    assert {name: each.problem for name, each in found.items() if each.problem is not None} == {}


def test_every_variable_is_one_of_vllms(model: Path) -> None:
    envs = __import__("vllm.envs", fromlist=["environment_variables"])
    given = {name for each in _variants(model).values() for name in each.environment if name.startswith("VLLM_")}
    assert given
    assert given <= set(envs.environment_variables)
