"""What of a `ModelService` `tandem up` runs, what it says has no effect, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tandem.apps.cli.launches import LaunchContext, members_of
from tandem.apps.cli.single_node import (
    REPLICAS_MAX,
    check_single_node,
    ignored_fields,
    local_source,
    stays_unified,
    unchecked_handoff,
)
from tandem.apps.cli.up_options import parse
from tandem.core.errors import TandemError
from tandem.process.settings import load_settings
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService
from tandem.worker.process_settings import WorkerSettings
from tests.cluster.bad_model_services import over
from tests.cluster.good_model_services import GOOD, LLAMA_70B, SMALLEST

PLACES = LaunchContext(Path("/run/fleet.json"), Path("/run/key"), Path("/run/s"), 9000, None)


def changed(text: str, upper: str) -> ModelService:
    return service_of(over(yaml.safe_load(text), yaml.safe_load(upper)))


def settings_of(service: ModelService) -> list[Any]:
    """Of every worker, as it would read them."""
    members = members_of(service, PLACES, cores=2, environment={})
    workers = [member for member in members if member.role in ("prefill", "decode", "unified", "auto")]
    return [load_settings(WorkerSettings, list(worker.command.argv[4:]), {}) for worker in workers]


def test_what_only_a_cluster_can_do_is_said_in_one_line() -> None:
    line = ignored_fields(service_of(yaml.safe_load(LLAMA_70B)))
    assert line == (
        "on one machine these have no effect: spec.model.revision, spec.model.credentialsSecret, "
        "spec.rollout.gate, spec.routing.maxQueueSeconds, autoscaling of prefill and decode, accelerator "
        "of prefill and decode, topology of prefill and decode, image of prefill, spare of decode"
    )


def test_a_secret_with_a_redis_is_said_to_be_a_clusters() -> None:
    line = ignored_fields(service_of(yaml.safe_load(GOOD["Redis in a Secret"])))
    assert line == "on one machine these have no effect: spec.redisSecretRef"


def test_nothing_is_said_when_everything_counts() -> None:
    assert ignored_fields(service_of(yaml.safe_load(SMALLEST))) is None


@pytest.mark.parametrize("name", ["smallest", "70B, TP 4, P/D, autoscaled", "asleep at night"])
def test_services_for_clusters_are_taken(name: str) -> None:
    check_single_node(service_of(yaml.safe_load(GOOD[name])))


def test_a_pool_without_a_number_has_one_worker() -> None:
    service = service_of(yaml.safe_load(LLAMA_70B))
    assert [settings.worker_id for settings in settings_of(service)] == ["prefill-0", "decode-0"]


def test_workers_of_a_pool_run_its_engine() -> None:
    service = changed(
        GOOD["AMD, engines per pool"], "spec: {model: {source: 'file:///models/qwen'}, engine: {device: cuda}}"
    )
    prefill, decode = settings_of(service)
    assert (prefill.vllm.eager, decode.vllm.eager) == (True, None)
    assert (prefill.vllm.speculative.tokens, decode.vllm.speculative.tokens) == (0, 4)
    assert [one.vllm.parallelism.tensor for one in (prefill, decode)] == [2, 2]
    assert prefill.model == "/models/qwen"


def test_the_router_is_told_its_policy() -> None:
    plain, chosen = (
        members_of(service, PLACES, cores=2, environment={})[0].command.argv
        for service in (
            service_of(yaml.safe_load(SMALLEST)),
            changed(SMALLEST, "spec: {routing: {policy: least_loaded}}"),
        )
    )
    assert "--core.placement.policy" not in plain
    assert chosen[chosen.index("--core.placement.policy") + 1] == "least_loaded"


@pytest.mark.parametrize(
    ("upper", "said"),
    [
        ("spec: {model: {source: 'pvc://models/x'}}", "spec.model.source 'pvc://models/x' is for a cluster"),
        ("spec: {pools: [{name: all, role: unified, replicas: 0}]}", "spec.pools has no worker that can decode"),
        (
            f"spec: {{pools: [{{name: all, role: unified, replicas: {REPLICAS_MAX + 1}}}]}}",
            "spec.pools[0].replicas is 257: one machine takes at most 256",
        ),
    ],
)
def test_what_cannot_run_here_is_refused(upper: str, said: str) -> None:
    with pytest.raises(TandemError) as caught:
        check_single_node(changed(SMALLEST, upper))
    assert (caught.value.code, said in caught.value.message) == ("bad_setting", True)


def cached(cache: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any] | None) -> None:
    """A hub's cache with a model `owner/hybrid` of this configuration, or with nothing."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    if config is None:
        return
    model = cache / "models--owner--hybrid"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "snapshots" / "abc" / "config.json").write_text(json.dumps(config))


FLAGS = ["--engine", "vllm", "--model", "owner/hybrid"]


def test_a_hubs_model_that_is_here_is_refused_where_its_kv_cannot_be_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, monkeypatch, {"layer_types": ["linear_attention", "full_attention"]})
    with pytest.raises(TandemError, match=r"layers of recurrent state.*unified workers") as refused:
        parse(FLAGS)
    assert refused.value.param == "pools"
    assert unchecked_handoff(parse([*FLAGS, "--prefill", "0"]).service) is None


def test_a_hubs_model_that_is_here_and_can_hand_over_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, monkeypatch, {"layer_types": ["full_attention"]})
    assert unchecked_handoff(parse(FLAGS).service) is None


WINDOWED = {"sliding_window": 4096, "max_position_embeddings": 32_768}


def test_a_model_of_windows_alone_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, monkeypatch, WINDOWED)
    with pytest.raises(TandemError, match="all layers see a sliding window only") as refused:
        parse(FLAGS)
    assert refused.value.param == "pools"
    parse([*FLAGS, "--context-tokens", "4096"])
    parse([*FLAGS, "--prefill", "0"])


def test_a_window_as_wide_as_the_context_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, monkeypatch, {**WINDOWED, "sliding_window": 32_768})
    parse(FLAGS)


@pytest.mark.parametrize(("argument", "value"), [("disable_sliding_window", True), ("hf_overrides", "{}")])
def test_windows_that_an_argument_may_take_away_are_left_to_the_workers(
    argument: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, monkeypatch, WINDOWED)
    service = parse([*FLAGS, "--context-tokens", "4096"]).service
    engine = replace(service.spec.engine, context_tokens=None, extra_args={argument: value})
    check_single_node(replace(service, spec=replace(service.spec, engine=engine)))


def test_of_a_hubs_model_that_is_not_here_it_is_said_that_nothing_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, monkeypatch, None)
    line = unchecked_handoff(parse(FLAGS).service)
    assert line is not None
    assert line.startswith(
        "not checked: whether prefill and decode can hand KV over, as no config.json of owner/hybrid"
    )
    assert unchecked_handoff(parse([*FLAGS, "--prefill", "0"]).service) is None
    assert unchecked_handoff(parse(["--engine", "simulated"]).service) is None


def test_a_file_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "asleep.yaml"
    file.write_text(SMALLEST.replace("role: unified", "role: unified, replicas: 0"))
    with pytest.raises(TandemError, match=r"asleep\.yaml: spec\.pools has no worker that can decode"):
        parse([str(file)])
    file.write_text(LLAMA_70B)
    assert parse([str(file), "--port", "0"]).service.spec.slo.ttft_ms == 800


@pytest.mark.parametrize(
    ("source", "here"), [("demo", "demo"), ("file:///models/x", "/models/x"), ("hf://org/x", "org/x"), ("a/b", "a/b")]
)
def test_sources(source: str, here: str) -> None:
    assert local_source(source) == here


def test_auto_workers_are_asked_for_alone() -> None:
    service = parse(["--engine", "simulated", "--auto", "4"]).service
    settings = settings_of(service)
    assert [(each.worker_id, each.role) for each in settings] == [(f"auto-{number}", "auto") for number in range(4)]
    assert stays_unified(service) is None
    for other in (["--prefill", "1"], ["--decode", "2"], ["--unified", "1"]):
        with pytest.raises(TandemError, match=f"--auto goes without {other[0]}: the router chooses"):
            parse(["--auto", "2", *other])
    parse(["--auto", "2", "--prefill", "0"])


def test_auto_workers_of_an_engine_with_fixed_steps_are_said_to_stay_unified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That their KV cannot be handed over is no reason against them either."""
    flags = [*FLAGS, "--auto", "2"]
    cached(tmp_path, monkeypatch, {"layer_types": ["full_attention"]})
    line = stays_unified(parse(flags).service)
    assert line is not None
    assert line.startswith("workers of auto serve whole requests, as if unified: what a step of engine vllm")
    assert unchecked_handoff(parse(flags).service) is None


def test_auto_workers_that_cannot_hand_over_are_said_to_stay_unified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, monkeypatch, WINDOWED)
    line = stays_unified(parse([*FLAGS, "--auto", "2"]).service)
    assert line is not None
    assert "KV cannot be handed over: all layers see a sliding window only" in line


def test_a_worker_of_role_auto_needs_the_ticket_key_and_may_span_nodes() -> None:
    with pytest.raises(TandemError, match="role auto needs the ticket key file"):
        WorkerSettings("w-0", "auto")
    nodes = ["--worker_id", "w-0", "--engine", "vllm", "--vllm.nodes.count", "2", "--ticket_key_file", "/run/key"]
    nodes += ["--vllm.parallelism.tensor", "2"]
    for role in ("unified", "auto"):
        assert load_settings(WorkerSettings, [*nodes, "--role", role], {}).role == role
    with pytest.raises(TandemError, match="only workers of role unified or auto"):
        load_settings(WorkerSettings, [*nodes, "--role", "decode"], {})
