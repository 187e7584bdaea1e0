"""The examples for a cluster: checked as the API server checks them, and small enough for their accelerators."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from control_plane.crds.definitions import definitions
from control_plane.objects.installation import Installation, completed
from control_plane.objects.pods import pod_template
from control_plane.objects.template_rules import template_problems
from control_plane.observe.observed import ModelFacts
from control_plane.reconcile.capacity_check import memory_of, pools_over_capacity
from tandem.core.shape_reading import shape_of
from tandem.core.sizing import RUNTIME_SHARE, fit
from tandem.spec.pool import Pool, engine_of
from tandem.spec.reading import read_service
from tandem.spec.revision import revision_of
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import gpu_memory_share
from tests.worlds.structural import refused

FOLDER: Final = Path(__file__).resolve().parents[3] / "deploy" / "examples"
EXAMPLES: Final = sorted(
    path for path in FOLDER.glob("*.yaml") if "\nkind: ModelService\n" in path.read_text("utf-8")
)
"""Of ModelServices: KubeRay's has tests of its own (tests/ray/test_rayservice.py)."""
_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
_LLAMA_70B: Final = {
    **_LLAMA,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
_QWEN3_235B: Final[dict[str, Any]] = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
_QWEN3_06B: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
CONFIGS: Final = {
    "shared-gpu": _QWEN3_06B,
    "one-gpu-node": _LLAMA,
    "llama-70b-tp4": _LLAMA_70B,
    "moe-expert-parallel": _QWEN3_235B,
}
"""What the hub's `config.json` of each model says."""
PARAMETERS: Final = {"shared-gpu": 1, "one-gpu-node": 8, "llama-70b-tp4": 71, "moe-expert-parallel": 235}


def pools() -> list[tuple[str, ModelService, Pool]]:
    """Every pool with accelerators."""
    services = ((path.stem, read_service(path)) for path in EXAMPLES)
    return [(name, service, pool) for name, service in services for pool in service.spec.pools if pool.accelerator]


def test_there_is_one_for_each_size() -> None:
    assert {path.stem for path in EXAMPLES} == {"cpu-demo", "simulated-auto", *CONFIGS}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_good(path: Path) -> None:
    service = read_service(path)
    assert revision_of(service.spec)
    assert service.metadata.namespace is None, "it is for the reader to say where"
    text = path.read_text("utf-8")
    assert text.startswith("# "), "says what it is for"
    assert all(len(line) <= 120 for line in text.splitlines())
    (loaded,) = yaml.safe_load_all(text)
    (version,) = definitions()["modelservices"]["spec"]["versions"]
    assert list(refused(version["schema"]["openAPIV3Schema"], loaded)) == []
    roles = {"auto"} if path.stem.endswith("-auto") else {"prefill", "decode"}
    assert {pool.role for pool in service.spec.pools} == roles


@pytest.mark.parametrize(
    ("name", "service", "pool"), pools(), ids=[f"{name} {pool.name}" for name, _, pool in pools()]
)
def test_workers_fit_their_accelerators(name: str, service: ModelService, pool: Pool) -> None:
    shape = shape_of(CONFIGS[name])
    assert round(shape.parameters / 1e9) == PARAMETERS[name]
    engine = engine_of(service.spec.engine, pool)
    assert engine.dtype is not None
    assert pool.accelerator is not None
    memory = memory_of(pool.accelerator)
    assert memory is not None
    # Without counting what dealing out experts saves: with it there is more room.
    found = fit(
        shape,
        memory,
        tensor=engine.parallelism.tensor,
        pipeline=engine.parallelism.pipeline,
        weight_dtype=engine.dtype,
        context=engine.context_tokens or 1,
        share=gpu_memory_share(engine, pool) or 1 - RUNTIME_SHARE,
    )
    assert found.fits, found.reason
    assert engine.parallelism.ranks <= pool.accelerator.per_node


@pytest.mark.parametrize("name", CONFIGS)
def test_the_operator_has_nothing_against_them(name: str) -> None:
    service = read_service(FOLDER / f"{name}.yaml")
    facts = ModelFacts(shape_of(CONFIGS[name]), "bfloat16", service.spec.engine.context_tokens or 1)
    assert pools_over_capacity(service, facts) == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_their_pods_ask_for_what_they_need(path: Path) -> None:
    service = completed(read_service(path), Installation())
    assert list(template_problems(service, Installation())) == []
    for pool in service.spec.pools:
        template = pod_template(service, pool, revision_of(service.spec), Installation())
        (container,) = template["spec"]["containers"]
        asked = container["resources"]
        assert asked["requests"].keys() >= {"cpu", "memory"}
        ranks = engine_of(service.spec.engine, pool).parallelism.ranks
        if pool.accelerator is not None:
            assert asked["limits"][pool.accelerator.resource] == str(ranks)
