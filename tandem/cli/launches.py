"""What to run for a service: the command line and environment of every process. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.cli.drill import pace
from tandem.cli.member import Member
from tandem.cli.service_spec import ModelService, Pool, quantity
from tandem.cli.supervisor import ROUTER
from tandem.service.processes import Command

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Places:
    """The files and ports of a run, and whether it is one for drills."""

    fleet_file: Path
    key_file: Path
    sockets: Path
    port: int
    grpc_port: int | None
    drills: bool = False


def members_of(
    service: ModelService,
    places: Places,
    cores: int,
    environment: Mapping[str, str],
    router_flags: Sequence[str] = (),
) -> list[Member]:
    """The router first, then every worker of every pool. `router_flags` are added to the router's command line."""
    workers = [(pool, index) for pool in service.spec.pools for index in range(pool.replicas)]
    threads = threads_per_worker(cores, len(workers))
    router = Member(Command(ROUTER, [*_router(service, places), *router_flags], environment), ROUTER)
    return [router, *(worker_of(service, places, pool, index, threads, environment) for pool, index in workers)]


def worker_of(
    service: ModelService, places: Places, pool: Pool, index: int, threads: int, environment: Mapping[str, str]
) -> Member:
    """The worker number `index`, from 0, of a pool."""
    name = f"{pool.name}-{index}"
    with_threads = {**environment, **dict.fromkeys(_THREAD_VARIABLES, str(threads))}
    return Member(Command(name, _worker(service, pool, name, places, threads), with_threads), pool.role)


def threads_per_worker(cores: int, workers: int) -> int:
    """Compute threads of each worker: the cores shared out, at least one. More than that makes workers collide."""
    return max(1, cores // max(1, workers))


def _router(service: ModelService, places: Places) -> list[str]:
    settings = {
        "host": service.spec.router.host,
        "port": places.port,
        "grpc_port": places.grpc_port,
        "workers_file": places.fleet_file,
        "ticket_key_file": places.key_file,
        "model": service.spec.model.source,
        "model_name": service.model_name,
        "engine": service.spec.engine.type,
        **(pace.ROUTER if places.drills else {}),
    }
    return [sys.executable, "-m", "router", "--events", *_flags(settings)]


def _worker(service: ModelService, pool: Pool, name: str, places: Places, threads: int) -> list[str]:
    """Pools of role unified run the decode worker, which does both."""
    engine = service.spec.engine
    settings = {
        "worker_id": name,
        "role": pool.role,
        "engine": engine.type,
        "model": service.spec.model.source,
        "model_name": service.model_name,
        "dtype": engine.dtype,
        "block_tokens": engine.block_tokens,
        "kv_memory": None if engine.kv_memory is None else quantity(engine.kv_memory),
        "ticket_key_file": places.key_file,
        "socket_directory": places.sockets,
        "metrics_bind": "127.0.0.1:0",
        "simulated.preset": engine.preset,
        "torch.device": engine.device,
        "torch.threads": threads if engine.type == "torch" else None,
        **(pace.worker_settings(engine.type) if places.drills else {}),
    }
    module = "prefill_worker" if pool.role == "prefill" else "decode_worker"
    return [sys.executable, "-m", module, "--events", *_flags(settings)]


def _flags(settings: Mapping[str, object]) -> list[str]:
    """Settings as command-line flags; None leaves one to its default."""
    return [part for key, value in settings.items() if value is not None for part in (f"--{key}", str(value))]
