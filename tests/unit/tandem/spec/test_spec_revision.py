"""A revision changes with what workers are, and with nothing else."""

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tandem.spec.reading import service_of
from tandem.spec.revision import POOL_LEFT_OUT, SPEC_LEFT_OUT, revision_of
from tandem.spec.service import Spec
from tests.cluster.good_model_services import GOOD

SPECS = {name: service_of(yaml.safe_load(text)).spec for name, text in GOOD.items()}
OTHERS: dict[str, Any] = {
    "model.source": "hf://other/model",
    "model.name": "other",
    "model.revision": "v2",
    "model.digest": "sha256:" + "1" * 64,
    "model.credentialsSecret": "other",
    "model.toolParser": "hermes",
    "model.reasoningParser": "think",
    "model.generationConfig": "vllm",
    "model.chatTemplate": "/t.jinja",
    "engine.type": "torch",
    "engine.preset": "other",
    "engine.dtype": "float16",
    "engine.device": "cpu",
    "engine.blockTokens": 128,
    "engine.kvMemory": "3Gi",
    "engine.gpuMemoryShare": 0.31,
    "engine.parallelism": {"tensor": 16},
    "engine.contextTokens": 17,
    "engine.quantization": "awq",
    "engine.kvDtype": "fp8_e5m2",
    "engine.kvTransfer": "always",
    "engine.imagesPerPrompt": 2,
    "engine.adapters": ["x=/x"],
    "engine.speculative": {"method": "mtp", "tokens": 7},
    "engine.eager": False,
    "engine.extraArgs": {"seed": 7},
    "tiers": {"dram": "1Ti"},
    "redis": "redis://other",
    "redisSecretRef": {"name": "other"},
    "pools.name": "other",
    "pools.role": "prefill",
    "pools.parallelism": {"pipeline": 8},
    "pools.gpuMemoryShare": 0.31,
    "pools.accelerator": {"type": "other", "perNode": 2},
    "pools.topology": {"pack": "other"},
    "pools.network": {"resources": {"rdma/ib": 1}},
    "pools.engine": {"type": "vllm", "eager": False, "contextTokens": 9},
    "pools.image": "other",
    "pools.spot": None,
    "pools.template": {"spec": {"priorityClassName": "other"}},
}
"""A value for every field that makes another revision; None turns it over."""

KEPT: dict[str, st.SearchStrategy[Any]] = {
    "model.aliases": st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
    "rollout": st.builds(
        lambda weight, paused: {"weight": weight, "paused": paused}, st.integers(0, 100), st.booleans()
    ),
    "routing": st.sampled_from([{"policy": "round_robin"}, {"maxQueueSeconds": 5}]),
    "slo": st.builds(lambda ttft: {"ttftMs": ttft}, st.integers(1, 5000)),
    "router": st.builds(lambda port: {"port": port}, st.integers(0, 65535)),
    "store": st.builds(lambda dram: {"dram": f"{dram}Gi"}, st.integers(1, 100)),
    "pools.replicas": st.integers(0, 100),
    "pools.autoscaling": st.builds(lambda most: {"maxReplicas": most}, st.integers(1, 100)),
    "pools.spare": st.integers(0, 64),
    "pools.drainSeconds": st.integers(0, 7200),
}


def with_value(spec: Spec, path: str, value: Any) -> Spec:
    """The spec with the last pool's field, or its own, replaced."""
    plain = msgspec.to_builtins(spec)
    where, _, key = path.rpartition(".")
    inner = plain["pools"][-1] if where == "pools" else plain[where] if where else plain
    inner[key] = not inner[key] if value is None else value
    return msgspec.convert(plain, Spec)


def fields_of(type_: type) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(type_)}


@given(st.sampled_from(sorted(SPECS)), st.data())
def test_numbers_traffic_and_rollout_keep_the_revision(name: str, data: st.DataObject) -> None:
    spec = edited = SPECS[name]
    for path in data.draw(st.lists(st.sampled_from(sorted(KEPT)), max_size=5)):
        edited = with_value(edited, path, data.draw(KEPT[path]))
    assert revision_of(edited) == revision_of(spec)


@given(st.sampled_from(["one node", "70B, TP 4, P/D, autoscaled"]), st.none() | st.floats(0, 1000))
def test_prices_keep_the_revision(name: str, dollars: float | None) -> None:
    plain = msgspec.to_builtins(SPECS[name])
    for pool in plain["pools"]:
        pool["accelerator"]["dollarsPerHour"] = dollars
    assert revision_of(msgspec.convert(plain, Spec)) == revision_of(SPECS[name])


@pytest.mark.parametrize("path", OTHERS)
def test_everything_else_changes_it(path: str) -> None:
    edits = [(spec, with_value(spec, path, OTHERS[path])) for spec in SPECS.values()]
    edits = [(spec, edited) for spec, edited in edits if edited != spec]
    assert edits
    for spec, edited in edits:
        assert revision_of(edited) != revision_of(spec)


def test_no_field_is_forgotten_here() -> None:
    spec = SPECS["smallest"]
    named = {*OTHERS, *KEPT}
    fields = {f"model.{key}" for key in fields_of(type(spec.model))}
    fields |= {f"engine.{key}" for key in fields_of(type(spec.engine))}
    fields |= {f"pools.{key}" for key in fields_of(type(spec.pools[0]))}
    fields |= fields_of(Spec) - {"model", "engine", "pools"}
    assert fields == named
    assert (len(SPEC_LEFT_OUT), len(POOL_LEFT_OUT)) == (5, 4)


@pytest.mark.parametrize("name", SPECS)
def test_defaults_written_out_are_the_same(name: str) -> None:
    whole = msgspec.convert(msgspec.json.decode(msgspec.json.encode(SPECS[name])), Spec)
    assert revision_of(whole) == revision_of(SPECS[name])


def test_the_order_of_pools_is_of_no_matter() -> None:
    spec = SPECS["MoE with experts"]
    turned = msgspec.structs.replace(spec, pools=tuple(reversed(spec.pools)))
    assert revision_of(turned) == revision_of(spec)


def test_workers_of_a_tenant_are_another_revision() -> None:
    for spec in SPECS.values():
        assert revision_of(spec, tenant=True) != revision_of(spec)


def test_it_is_the_same_everywhere_and_always() -> None:
    """Another value here restarts every worker of every cluster that upgrades."""
    assert {name: revision_of(spec) for name, spec in SPECS.items()} == {
        "Redis in a Secret": "10248e7148",
        "smallest": "31580a30a3",
        "one node": "e223cfb038",
        "70B, TP 4, P/D, autoscaled": "50df3b6bfe",
        "MoE with experts": "180053f7f7",
        "asleep at night": "00b9ef90aa",
        "AMD, engines per pool": "58eaf4fc4d",
        "parts of GPUs": "dd305e792b",
        "a split that follows the load": "30c770a9cf",
    }
