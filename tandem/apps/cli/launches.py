"""The command line and environment of every process that a service runs. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.apps.cli import drill_settings as pace
from tandem.apps.cli.gpus import UNBOUND, DeviceBinding, Gpus
from tandem.apps.cli.member import Member
from tandem.apps.cli.single_node import local_source
from tandem.apps.cli.supervisor import ROUTER
from tandem.process.processes import Command
from tandem.spec.pool import Pool, engine_of
from tandem.spec.revision import revision_of
from tandem.spec.rollout import Routing
from tandem.spec.service import STORE, ModelService, StoreSpec, TiersSpec
from tandem.spec.worker_settings import (
    as_flags,
    index_environment,
    tier_settings,
    worker_module,
    worker_settings,
)

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class LaunchContext:
    """The files and ports of a run, and whether it is one for drills."""

    fleet_file: Path
    key_file: Path
    sockets: Path
    port: int
    grpc_port: int | None
    drills: bool = False


def members_of(
    service: ModelService,
    places: LaunchContext,
    cores: int,
    environment: Mapping[str, str],
    router_flags: Sequence[str] = (),
    gpus: Gpus | None = None,
) -> list[Member]:
    """The router first, then every worker of every pool. `router_flags` are added to the router's command line.
    Raises `bad_setting` for workers that do not fit the `gpus`; without `gpus` no worker gets any."""
    workers = [(pool, index) for pool in service.spec.pools for index in range(pool.first_replicas)]
    threads, environment = (
        threads_per_worker(cores, workers_of(service)),
        {**environment, **index_environment(service, service.metadata.name)},
    )
    router = Member(Command(ROUTER, [*_router(service, places), *router_flags], environment), ROUTER)
    bounds = {} if gpus is None else gpus.give(service, workers)
    members = [
        router,
        *(
            worker_of(service, places, pool, index, threads, environment, bounds.get(f"{pool.name}-{index}", UNBOUND))
            for pool, index in workers
        ),
    ]
    if service.spec.store is not None:
        members.append(store_of(service.spec.store, places, environment))
    return members


def store_of(store: StoreSpec, places: LaunchContext, environment: Mapping[str, str]) -> Member:
    """The process that keeps blocks for all workers."""
    name = f"{STORE}-0"
    settings = {
        "worker_id": name,
        "workers_file": places.fleet_file,
        "ticket_key_file": places.key_file,
        "socket_directory": places.sockets,
        "metrics_bind": "127.0.0.1:0",
        **tier_settings(TiersSpec(store.dram, store.nvme, store.nvme_dir)),
    }
    return Member(
        Command(name, [sys.executable, "-m", "kv_store", "--events", *as_flags(settings)], environment), "store"
    )


def worker_of(
    service: ModelService,
    places: LaunchContext,
    pool: Pool,
    index: int,
    threads: int,
    environment: Mapping[str, str],
    bound: DeviceBinding = UNBOUND,
) -> Member:
    """The worker number `index`, from 0, of a pool, on the devices it is bound to."""
    name = f"{pool.name}-{index}"
    with_threads = {
        **environment,
        **index_environment(service, service.metadata.name),
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        **bound.environment,
    }
    argv = _worker(service, pool, name, places, threads, bound)
    return Member(Command(name, argv, with_threads), pool.role)


def workers_of(service: ModelService) -> int:
    """The number of workers that share the machine at first."""
    return sum(pool.first_replicas for pool in service.spec.pools)


def threads_per_worker(cores: int, workers: int) -> int:
    """Compute threads of each worker: the cores shared out, at least one. More than that makes workers collide."""
    return max(1, cores // max(1, workers))


def _router(service: ModelService, places: LaunchContext) -> list[str]:
    settings = {
        "host": service.spec.router.host,
        "port": places.port,
        "grpc_port": places.grpc_port,
        "metrics_bind": "127.0.0.1:0",
        "workers_file": places.fleet_file,
        "ticket_key_file": places.key_file,
        "model": local_source(service.spec.model.source),
        "model_name": service.model_name,
        "engine": service.spec.engine.type,
        "tool_parser": service.spec.model.tool_parser,
        "reasoning_parser": service.spec.model.reasoning_parser,
        "generation_config": service.spec.model.generation_config,
        "chat_template": service.spec.model.chat_template,
        "core.placement.policy": _policy(service),
        "max_streams": service.spec.router.max_streams,
        **(pace.ROUTER if places.drills else {}),
    }
    return [sys.executable, "-m", "router", "--events", *as_flags(settings)]


def _sequences(service: ModelService) -> int | None:
    """The sequences that each worker computes at once: an even share of the streams asked for."""
    streams = service.spec.router.max_streams
    if streams is None:
        return None
    generating = sum(pool.first_replicas for pool in service.spec.pools if pool.role != "prefill")
    return -(-streams // max(1, generating))


def _policy(service: ModelService) -> str | None:
    """None where it is the router's own choice."""
    policy = service.spec.routing.policy
    return None if policy == Routing().policy else policy


def _worker(
    service: ModelService, pool: Pool, name: str, places: LaunchContext, threads: int, bound: DeviceBinding
) -> list[str]:
    engine = engine_of(service.spec.engine, pool).type
    settings = {
        "worker_id": name,
        "revision": revision_of(service.spec),
        **worker_settings(service, pool, local_source(service.spec.model.source)),
        "scheduler.max_sequences": _sequences(service),
        "ticket_key_file": places.key_file,
        "socket_directory": places.sockets,
        "metrics_bind": "127.0.0.1:0",
        # Its threads wait for one another by spinning: one core is left to everything else.
        "vllm.threads": max(1, threads - 1) if engine == "vllm" else None,
        "stage.sharers": workers_of(service) if engine == "vllm" else None,
        "torch.threads": threads if engine == "torch" else None,
        **bound.settings,
        **(pace.worker_settings(engine) if places.drills else {}),
    }
    return [sys.executable, "-m", worker_module(pool), "--events", *as_flags(settings)]
