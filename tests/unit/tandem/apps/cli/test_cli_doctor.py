"""`tandem doctor --dry-run`: each check finds what it is for, and every example passes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kv_transfer.transport import locked_memory
from tandem.apps.cli.doctor import checks, command, engine_checks
from tandem.apps.cli.doctor.cases import Case, Host, case_of
from tandem.apps.cli.doctor.engine_checks import engine_findings
from tandem.apps.cli.doctor.findings import Finding, healthy, text_of
from tandem.apps.cli.main import main
from tandem.core.errors import TandemError
from tandem.engine.vllm.dry_run import Resolved
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService
from tests.unit.deploy.test_deploy_examples import CONFIGS, EXAMPLES

GIB = 1 << 30
HOST = Host(memory_bytes=64 * GIB)
LLAMA = {
    **CONFIGS["one-gpu-node"], "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
}  # fmt: skip


def service(
    engine: Mapping[str, Any] | None = None, pool: Mapping[str, Any] | None = None, **spec: Any
) -> ModelService:
    """Two H100 workers of an 8B model, with what is given instead."""
    limits = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"memory": "64Gi"}}}]}}
    plain = {
        "name": "prefill", "role": "prefill", "replicas": 1, "accelerator": {"type": "h100-sxm", "memory": "80G"},
        "template": limits,
    }  # fmt: skip
    decode = {**plain, "name": "decode", "role": "decode"}
    return service_of(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": {"name": "llama"},
            "spec": {
                "model": {"source": "hf://meta-llama/Llama-3.1-8B-Instruct"},
                "engine": {
                    "type": "vllm",
                    "device": "cuda",
                    "dtype": "bfloat16",
                    "contextTokens": 8192,
                    **(engine or {}),
                },
                "pools": [{**plain, **(pool or {})}, decode],
                **spec,
            },
        }
    )


def case(of: ModelService, host: Host = HOST, config: Mapping[str, Any] | None = LLAMA) -> Case:
    return case_of(of, of.spec.pools[0], config, host)


# -- stage --


def test_a_stage_is_shown_with_its_arithmetic() -> None:
    found = checks.stage(case(service(tiers={"dram": "8Gi"})))
    assert (found.verdict, found.pool) == ("ok", "prefill")
    # 2 x 32 layers x 8 heads x 128 numbers of 2 bytes are 131072 bytes a token.
    assert found.said == "8.00 GiB / (16 tokens x 131072 B) = 4096 slots; a prompt of 8192 tokens needs 1024"


def test_a_stage_without_a_size_is_a_part_of_the_pods_memory() -> None:
    assert checks.stage(case(service())).said.startswith("16.00 GiB / ")


def test_a_stage_that_is_too_small_is_a_problem() -> None:
    found = checks.stage(case(service(tiers={"dram": "1Gi"})))
    assert found.verdict == "problem"
    assert "the stage has 1.00 GiB and needs 2.00 GiB" in found.said


def test_a_stage_larger_than_the_pod_is_a_problem() -> None:
    assert checks.stage(case(service(tiers={"dram": "64Gi"}))).verdict == "problem"


def test_a_pair_whose_kv_cannot_be_handed_over_is_a_problem() -> None:
    config = {**LLAMA, "layer_types": ["linear_attention"] * 31 + ["full_attention"]}
    found = checks.stage(case(service(), config=config))
    assert found.verdict == "problem"
    assert "layers of recurrent state" in found.said


def test_a_window_that_is_not_smaller_than_the_models_context_is_none() -> None:
    """As of Phi-3 with 128k: nothing says what is served of the context, which is then all of it."""
    of = service({"contextTokens": None}, tiers={"dram": "40Gi"})
    wide = {**LLAMA, "sliding_window": 262_144}
    assert checks.stage(case(of, config=wide)).verdict == "ok"
    found = checks.stage(case(of, config={**LLAMA, "sliding_window": 4096}))
    assert found.verdict == "problem"
    assert "all layers see a sliding window only" in found.said


def test_without_a_configuration_nothing_is_said_of_sizes() -> None:
    of = case(service(), config=None)
    assert {checks.stage(of).verdict, checks.share(of).verdict} == {"not checked"}


# -- gpuMemoryShare --


def test_weights_and_kv_within_the_share() -> None:
    found = checks.share(case(service()))
    assert found.verdict == "ok"
    assert "weights 16.06 GB over 1 accelerators" in found.said


def test_a_share_too_small_for_the_weights_is_a_problem() -> None:
    found = checks.share(case(service({"gpuMemoryShare": 0.15})))
    assert found.verdict == "problem"
    assert "weights 16.06 GB" in found.said


def test_shares_that_add_up_to_more_than_a_gpu_are_a_problem() -> None:
    accelerator = {"type": "h100-sxm", "memory": "80G", "sharedBy": 2}
    found = checks.share(case(service({"gpuMemoryShare": 0.6}, {"accelerator": accelerator})))
    assert found.verdict == "problem"
    assert "take 1.2" in found.said


# -- memlock, shared memory, allocator, ports --

HERE = replace(HOST, gpus=True, shm_bytes=64 << 20)


def with_rdma(security: Mapping[str, Any] | None = None) -> ModelService:
    """Its pods ask for an RDMA device; `security` is their container's."""
    limits = {"memory": "64Gi", "rdma/ib": "1"}
    container = {"name": "worker", "resources": {"limits": limits}, "securityContext": dict(security or {})}
    return service(pool={"template": {"spec": {"containers": [container]}}})


def test_what_is_not_registered_with_an_rdma_device_has_no_limit() -> None:
    assert {checks.memlock(case(service(), host)).verdict for host in (HOST, HERE)} == {"ok"}


@pytest.mark.parametrize("host", [HOST, HERE], ids=["laptop", "GPU node"])
def test_a_capability_of_pods_counts_for_root_alone(host: Host) -> None:
    """What holds for the doctor's own process says nothing of pods, wherever it runs."""
    found = checks.memlock(case(with_rdma(), host))
    assert found.verdict == "not checked"
    assert "GiB are pinned, for each RDMA device anew" in found.said
    assert "run as user 10001, for whom IPC_LOCK is not in force" in found.said
    assert "LimitMEMLOCK=infinity" in found.advice
    root = {"runAsUser": 0, "runAsNonRoot": False}
    assert checks.memlock(case(with_rdma(root), host)).verdict == "ok", "the operator adds IPC_LOCK"
    bare = {**root, "capabilities": {"drop": ["ALL"], "add": []}}
    assert checks.memlock(case(with_rdma(bare), host)).verdict == "not checked"


def as_user(pod: Mapping[str, Any], container: Mapping[str, Any], source: str, device: str) -> Finding:
    """What is said of the users of a pool with these security contexts in its template."""
    worker = {"name": "worker", "securityContext": dict(container)}
    template = {"spec": {"securityContext": dict(pod), "containers": [worker]}}
    of = service({"device": device}, {"template": template}, model={"source": source})
    return checks.user(case(of))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_root_that_the_kubelet_refuses_is_a_problem(device: str) -> None:
    root, hub = {"runAsUser": 0}, "hf://meta-llama/Llama-3.1-8B-Instruct"
    for pod, container in ((root, {}), ({}, root)):
        found = as_user(pod, container, hub, device)
        assert found.verdict == "problem"
        assert "container worker has runAsUser: 0 and runAsNonRoot: true" in found.said
    assert as_user({}, {**root, "runAsNonRoot": False}, hub, device).verdict == "ok"
    assert as_user({}, {}, hub, device).verdict == "ok"


def test_the_container_that_fetches_the_model_has_the_users_of_the_pod() -> None:
    found = as_user({"runAsUser": 0}, {"runAsNonRoot": False}, "s3://bucket/model", "cuda")
    assert found.verdict == "problem"
    assert "container fetch has runAsUser: 0" in found.said


@pytest.mark.parametrize(
    ("effective", "bound"), [("0000000000004000", False), ("00000000a80425fb", True), ("000001ffffffffff", False)]
)
def test_a_process_with_the_capability_has_no_limit(
    effective: str, bound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{effective}\n")
    monkeypatch.setattr(locked_memory.resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert locked_memory.memlock_bytes(status) == (8 << 20 if bound else None)


def test_a_registration_that_fails_names_the_limit() -> None:
    """Also where the limit is larger than what was registered: every RDMA device pins it once more."""
    for limit, said in ((8 << 20, "is 8 MiB"), (GIB, "is 1024 MiB"), (12 * GIB, "is 12288 MiB")):
        found = locked_memory.hint(GIB, limit)
        assert f"RLIMIT_MEMLOCK {said}, and every RDMA device pins these 1024 MiB against it" in found
    assert locked_memory.hint(GIB, None) == ""


def test_too_little_shared_memory_is_a_problem() -> None:
    of = service({"parallelism": {"tensor": 4}})
    assert checks.shared_memory(case(of, HERE), HERE).verdict == "problem"
    assert checks.shared_memory(case(of, HERE), replace(HERE, shm_bytes=GIB)).verdict == "ok"
    assert checks.shared_memory(case(of, HERE), replace(HERE, shm_bytes=None)).verdict == "not checked"
    assert checks.shared_memory(case(service(), HERE), HERE).verdict == "ok"


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("expandable_segments:True", "problem"),
        ("max_split_size_mb:128, expandable_segments:true", "problem"),
        ("expandable_segments:False", "ok"),
        ("max_split_size_mb:128", "ok"),
    ],
)
def test_segments_that_move_are_refused_with_a_connector(value: str, verdict: str) -> None:
    container = {"name": "worker", "env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": value}]}
    in_pods = service(pool={"template": {"spec": {"containers": [container]}}})
    assert checks.allocator(case(in_pods), HOST).verdict == verdict
    here = replace(HERE, environment={"PYTORCH_CUDA_ALLOC_CONF": value})
    assert checks.allocator(case(service(), here), here).verdict == verdict
    # Of this machine nothing reaches a pod.
    assert checks.allocator(case(service()), replace(HOST, environment=here.environment)).verdict == "ok"


def test_segments_may_move_without_a_connector() -> None:
    of = service({"kvTransfer": "never"}, pools=[{"name": "all", "role": "unified", "accelerator": {"type": "h100"}}])
    here = replace(HERE, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert checks.allocator(case(of, here), here).verdict == "ok"


def test_a_port_that_is_taken_is_a_problem() -> None:
    host = replace(HOST, busy={8000: "somebody listens there"})
    assert [each.verdict for each in checks.ports({"spec.router.port": 8000}, host)] == ["problem"]
    assert [each.verdict for each in checks.ports({"spec.router.port": 0}, host)] == ["ok"]
    twice = {"spec.router.port": 8001, "spec.router.grpcPort": 8001}
    assert [each.verdict for each in checks.ports(twice, host)] == ["ok", "problem"]


# -- what vLLM says --


def _asked(found: Resolved, of: ModelService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Finding, ...]:
    monkeypatch.setattr(engine_checks.importlib.util, "find_spec", lambda _name: True)
    return engine_findings([case(of)], tmp_path, lambda _arguments, _card: (found,))["prefill"]


def test_arguments_that_vllm_refuses_are_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (found,) = _asked(Resolved(problem="max_model_len is too large"), service(), monkeypatch, tmp_path)
    assert (found.check, found.verdict) == ("arguments", "problem")
    assert "max_model_len is too large" in found.said


@pytest.mark.parametrize(
    ("role", "reads"), [("prefill", False), ("decode", False), ("unified", True), ("auto", True)]
)
def test_vllm_is_asked_about_the_arguments_of_the_pools_role(role: str, reads: bool, tmp_path: Path) -> None:
    """What reads images is loaded where a worker has the whole request."""
    pool = {"name": "prefill", "role": role, "accelerator": {"type": "h100-sxm"}}
    others = [] if role == "auto" else [{"name": "decode", "role": "decode"}]
    keywords = engine_checks.arguments_of(case(service(pools=[pool, *others])), tmp_path, tmp_path).keywords
    assert ("limit_mm_per_prompt" in keywords) is reads
    assert keywords.get("language_model_only", False) is not reads


def test_an_attention_backend_that_our_arguments_exclude_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    excluded = Resolved(backends=("TRITON_MLA",), backends_lost=("FLASHINFER_MLA",))
    arguments, backends = _asked(excluded, service(), monkeypatch, tmp_path)
    assert (arguments.verdict, backends.verdict) == ("ok", "problem")
    assert "exclude FLASHINFER_MLA; left are TRITON_MLA" in backends.said


def test_what_vllm_takes_with_no_connector_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AMD's own backend is one of these: it is vLLM's rule, and no fault of a file with prefill and decode."""
    found = Resolved(backends=("TRITON_ATTN",), connector_lost=("ROCM_ATTN",))
    _, backends = _asked(found, service(), monkeypatch, tmp_path)
    assert backends.verdict == "ok"
    assert "takes no ROCM_ATTN" in backends.said
    assert "kvTransfer: never" in backends.said


@pytest.mark.parametrize(
    ("accelerator", "name", "build", "architecture"),
    [
        ("h100-sxm", "NVIDIA H100", "cuda", ""),
        ("mi300x", "AMD MI300X", "rocm", "gfx942"),
        ("amd-instinct-mi355x", "AMD MI355X", "rocm", "gfx950"),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100", "cuda", ""),
        ("Tesla-T4", "NVIDIA T4", "cuda", ""),
        ("AMD_Instinct_MI300X_OAM", "AMD MI300X", "rocm", "gfx942"),
    ],
)
def test_a_card_is_known_by_its_type(accelerator: str, name: str, build: str, architecture: str) -> None:
    card = engine_checks.card_of(case(service(pool={"accelerator": {"type": accelerator, "memory": "80G"}})))
    assert card is not None
    assert (card.name, card.build, card.architecture) == (name, build, architecture)


def test_processors_are_a_card_and_an_unknown_type_is_none() -> None:
    cpu = engine_checks.card_of(case(service({"device": "cpu"})))
    assert cpu is not None
    assert cpu.build == "cpu"
    unknown = service(pool={"accelerator": {"type": "abacus", "memory": "80G"}})
    assert engine_checks.card_of(case(unknown)) is None


def test_vllm_that_cannot_be_asked_is_no_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: object) -> tuple[Resolved, ...]:
        raise TandemError("engine_failed", "a dry run of vLLM said nothing within 180 s")

    monkeypatch.setattr(engine_checks.importlib.util, "find_spec", lambda _name: True)
    (found,) = engine_findings([case(service())], tmp_path, fails)["prefill"]
    assert found.verdict == "not checked"


def test_without_vllm_its_parser_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_checks.importlib.util, "find_spec", lambda _name: None)
    found = engine_findings([case(service())], tmp_path)["prefill"]
    assert {(each.verdict, each.said) for each in found} == {("not checked", "vLLM is not installed here")}


# -- whole files --


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without vLLM, a GPU and a cluster, with the models' configurations."""
    monkeypatch.setattr(engine_checks.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(command, "check_free", lambda *_: None)
    arguments = ["doctor", "--dry-run", str(path), "--json"]
    if path.stem in CONFIGS:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[path.stem]))
        arguments += ["--model", str(tmp_path)]
    assert main(arguments) == 0


def test_findings_are_readable_and_their_status_is_that_of_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "file.yaml").write_text(msgspec.yaml.encode(service(tiers={"dram": "1Gi"})).decode())
    monkeypatch.setattr(engine_checks.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(command, "check_free", lambda *_: None)
    given = ["doctor", "--dry-run", str(tmp_path / "file.yaml"), "--model", str(tmp_path)]
    assert main(given) == 1
    text = capsys.readouterr().out
    assert "PROBLEM      stage prefill: the stage has 1.00 GiB and needs" in text
    assert main([*given, "--json"]) == 1
    findings = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert not healthy(findings)
    assert text_of(findings) + "\n" == text
