"""Command lines of workers, read back by the settings that the workers themselves read."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.apps.ray.launching import (
    LIFELINE,
    WorkerPlace,
    asks_for_rdma,
    fetch_command,
    interpreter,
    model_source,
    worker_command,
)
from tandem.process.processes import Command
from tandem.process.settings import load_settings
from tandem.spec.model import Model
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService
from tandem.worker.process_settings import WorkerSettings

PLACE = WorkerPlace("chat-d-1", "0123456789", "127.0.0.2", Path("/tmp/t"), Path("/tmp/t/key"), Path("/tmp/s"))
DIGEST = "sha256:" + "0" * 64


def service(role: str = "decode", **spec: Any) -> ModelService:
    pools = [{"name": "d", "role": role, "drainSeconds": 30, **spec.pop("pool", {})}]
    metadata = {"name": "chat"}
    return service_of(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": metadata,
            "spec": {"pools": pools, "engine": {"type": "simulated"}, **spec},
        }
    )


def flags(command: Command) -> dict[str, str]:
    at = command.argv.index("--events") + 1
    given = command.argv[at:]
    return dict(zip((each.removeprefix("--") for each in given[::2]), given[1::2], strict=True))


def command(found: ModelService, place: WorkerPlace = PLACE) -> Command:
    return worker_command(found, found.spec.pools[0], place, {"HOME": "/root"})


@pytest.mark.parametrize(
    ("role", "module"), [("prefill", "prefill_worker"), ("decode", "decode_worker"), ("unified", "decode_worker")]
)
def test_the_worker_runs_under_a_lifeline(role: str, module: str) -> None:
    pools = [{"name": "x", "role": role}, {"name": "y", "role": "decode"}]
    found = service(pools=pools)
    assert command(found).argv[:5] == [sys.executable, "-m", LIFELINE, module, "--events"]


def test_the_worker_listens_where_other_nodes_reach_it() -> None:
    told = flags(command(service()))
    assert told["link.bind"] == "127.0.0.2:0"
    assert told["link.advertise"] == told["kv.host"] == told["kv.advertise"] == "127.0.0.2"
    assert told["metrics_bind"] == "127.0.0.2:0"
    assert told["kv.transports"] == "shm,tcp"


def test_the_worker_is_told_who_it_is() -> None:
    told = flags(command(service()))
    assert (told["worker_id"], told["revision"], told["role"]) == ("chat-d-1", "0123456789", "decode")
    assert (told["ticket_key_file"], told["socket_directory"]) == ("/tmp/t/key", "/tmp/s")
    assert told["deadlines.drain_s"] == "30"
    assert not any(key.startswith("vllm.nodes") for key in told)


def test_every_flag_is_a_setting_of_the_worker() -> None:
    loaded = load_settings(WorkerSettings, command(service()).argv[5:], {})
    assert loaded.worker_id == "chat-d-1"


def test_a_rank_of_a_gang_is_told_where_its_leader_is() -> None:
    pool = {"accelerator": {"type": "h100-sxm", "perNode": 4}, "parallelism": {"tensor": 4, "pipeline": 2}}
    found = service("unified", engine={"type": "vllm", "device": "cuda"}, pool=pool)
    place = WorkerPlace("w", "r", "::1", Path("/t"), Path("/t/k"), Path("/s"), rank=1, leader="127.0.0.9", rdma=True)
    told = flags(command(found, place))
    nodes = {key.removeprefix("vllm.nodes."): value for key, value in told.items() if key.startswith("vllm.nodes.")}
    assert nodes == {"count": "2", "rank": "1", "leader": "127.0.0.9", "host": "::1"}
    assert told["link.bind"] == "[::1]:0"
    assert told["kv.transports"] == "nixl,tcp"


@pytest.mark.parametrize(
    ("engine", "cpus", "threads"),
    [("vllm", None, None), ("vllm", "9", "4"), ("vllm", "2.5", "1"), ("vllm", "0", "1"), ("torch", "9", None)],
)
def test_vllm_computes_with_the_cpus_that_an_annotation_names(
    engine: str, cpus: str | None, threads: str | None
) -> None:
    pool = {"parallelism": {"tensor": 2}} if engine == "vllm" else {}
    found = service("unified", engine={"type": engine}, pool=pool)
    if cpus is not None:
        noted = msgspec.structs.replace(found.metadata, annotations={"ray.tandem.dev/d.cpus": cpus})
        found = msgspec.structs.replace(found, metadata=noted)
    assert flags(command(found)).get("vllm.threads") == threads


def test_the_shared_index_is_in_the_environment_alone() -> None:
    found = command(service(redis="redis://:secret@127.0.0.1/0"))
    assert found.env["HOME"] == "/root"
    assert found.env["TANDEM_INDEX__REDIS_URL"] == "redis://:secret@127.0.0.1/0"
    assert not any("secret" in each for each in found.argv)


def test_vllm_has_an_interpreter_of_its_own() -> None:
    torch, vllm = service(engine={"type": "torch"}), service(engine={"type": "vllm"})
    assert interpreter(torch, torch.spec.pools[0], "/v/python") == sys.executable
    assert interpreter(vllm, vllm.spec.pools[0], "/v/python") == "/v/python"
    assert interpreter(vllm, vllm.spec.pools[0], None) == sys.executable


@pytest.mark.parametrize(
    ("model", "source", "fetched"),
    [
        (Model(source="demo"), "demo", False),
        (Model(source="file:///models/a"), "/models/a", False),
        (Model(source="hf://org/name"), "org/name", False),
        (Model(source="org/name"), "org/name", False),
        (Model(source="s3://bucket/a"), "/tmp/t/model", True),
        (Model(source="org/name", digest=DIGEST, revision="main"), "/tmp/t/model", True),
    ],
)
def test_weights_that_a_worker_cannot_name_are_fetched(model: Model, source: str, fetched: bool) -> None:
    assert model_source(model, PLACE) == source
    found = fetch_command(model, PLACE, Path("/cache"), {})
    assert (found is not None) == fetched
    if found is not None:
        assert found.argv[1:6] == ["-m", LIFELINE, "tandem.apps.cli", "fetch", model.source]
        assert ("--digest" in found.argv) == (model.digest is not None)
        assert found.argv[found.argv.index("--link") + 1] == source


def test_rdma_is_seen_by_the_name_of_a_resource() -> None:
    assert asks_for_rdma({"rdma/hca": 1.0})
    assert not asks_for_rdma({"n1": 1.0})
