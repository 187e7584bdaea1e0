"""The command line and environment of the worker process that a replica owns. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control_plane.objects.scheduling import nodes_of
from tandem.apps.ray.placing import threads_of
from tandem.link.address import join_host
from tandem.process.processes import Command
from tandem.spec.model import FETCHED, Model
from tandem.spec.pool import Pool, engine_of
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import as_flags, index_environment, worker_module, worker_settings

LIFELINE: Final = "tandem.process.lifeline"
_DEMO: Final = "demo"
_LOCAL: Final = ("file://", "hf://")
_RDMA: Final = "rdma/"


@dataclass(frozen=True)
class WorkerPlace:
    """What a worker's process has to be told of the replica that owns it. Rank and leader are those of its gang;
    `leader` is the address of rank 0 and counts only where the worker spans nodes."""

    name: str
    revision: str
    host: str
    """Its node's address, as other nodes reach it."""
    directory: Path
    """The replica's own, for key and links to fetched weights."""
    key_file: Path
    sockets: Path
    """Of the node, shared by its workers: shared memory is found through it."""
    rank: int = 0
    leader: str = ""
    rdma: bool = False
    """Whether KV moves over NIXL between nodes."""
    python: str = sys.executable


def interpreter(service: ModelService, pool: Pool, vllm_python: str | None) -> str:
    """The interpreter of a pool's workers: `vllm_python` for the engine vllm where one is given, else this one."""
    vllm = engine_of(service.spec.engine, pool).type == "vllm"
    return vllm_python if vllm and vllm_python is not None else sys.executable


def worker_command(service: ModelService, pool: Pool, place: WorkerPlace, environment: Mapping[str, str]) -> Command:
    """The worker's process; it ends with the pipe that is its standard input (`tandem.process.lifeline`).
    `environment` is the replica's own, to which the shared index is added."""
    flags = as_flags(_settings(service, pool, place))
    argv = [place.python, "-m", LIFELINE, worker_module(pool), "--events", *flags]
    added = index_environment(service, service.metadata.name)
    return Command(place.name, argv, {**environment, **added})


def fetch_command(model: Model, place: WorkerPlace, cache: Path, environment: Mapping[str, str]) -> Command | None:
    """The process that brings the weights to the node and ends, at the latest with the pipe that is its standard
    input; None where the worker finds them by itself."""
    if not _fetched(model):
        return None
    argv = [sys.executable, "-m", LIFELINE, "tandem.apps.cli", "fetch", model.source, "--cache", str(cache)]
    argv += ["--link", str(_link(place)), "--report", str(place.directory / "fetch.json")]
    for flag, value in (("--revision", model.revision), ("--digest", model.digest)):
        argv += [flag, value] if value else []
    return Command(f"{place.name}-fetch", argv, environment)


def model_source(model: Model, place: WorkerPlace) -> str:
    """The model as the worker's settings name it: a directory, a hub id, or the link to what was fetched."""
    if _fetched(model):
        return str(_link(place))
    return next((model.source.removeprefix(each) for each in _LOCAL if model.source.startswith(each)), model.source)


def asks_for_rdma(resources: Mapping[str, float]) -> bool:
    """Whether a replica with these custom resources has an RDMA device."""
    return any(name.startswith(_RDMA) for name in resources)


def _settings(service: ModelService, pool: Pool, place: WorkerPlace) -> dict[str, object]:
    return {
        "worker_id": place.name,
        "revision": place.revision,
        **worker_settings(service, pool, model_source(service.spec.model, place)),
        **_nodes(service, pool, place),
        "vllm.threads": threads_of(service, pool),
        "link.bind": join_host(place.host, 0),
        "link.advertise": place.host,
        "kv.transports": "nixl,tcp" if place.rdma else "shm,tcp",
        "kv.host": place.host,
        "kv.advertise": place.host,
        "ticket_key_file": place.key_file,
        "socket_directory": place.sockets,
        "metrics_bind": join_host(place.host, 0),
        "deadlines.drain_s": pool.drain_seconds,
    }


def _nodes(service: ModelService, pool: Pool, place: WorkerPlace) -> dict[str, object]:
    count = nodes_of(service, pool)
    if count == 1:
        return {}
    where = {"count": count, "rank": place.rank, "leader": place.leader, "host": place.host}
    return {f"vllm.nodes.{key}": value for key, value in where.items()}


def _fetched(model: Model) -> bool:
    return model.source.startswith(FETCHED) or bool(model.digest and model.source != _DEMO)


def _link(place: WorkerPlace) -> Path:
    return place.directory / "model"
