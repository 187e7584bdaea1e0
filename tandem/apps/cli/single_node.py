"""Checks a service for one machine: which parts of it can run here, and which have no effect."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tandem.apps.cli.local_model import model_config, model_directory
from tandem.core.config_facts import cannot_exchange
from tandem.core.errors import TandemError
from tandem.spec.pool import WHOLE, Pool, engine_of
from tandem.spec.reading import read_service
from tandem.spec.service import ModelService
from tandem.spec.text import camel
from tandem.spec.vllm import kinds_served

REPLICAS_MAX: Final = 256
_MODEL: Final = ("revision", "digest", "credentials_secret")
_POOL: Final = ("autoscaling", "accelerator", "topology", "network", "image", "spot", "spare", "template")
_HERE: Final = ("file://", "hf://")


def read_local_service(path: Path) -> ModelService:
    """A checked service from a YAML file that can be run on one machine. Raises `bad_setting`."""
    service = read_service(path)
    try:
        check_single_node(service)
    except TandemError as error:
        raise TandemError(error.code, f"{path}: {error.message}") from error
    return service


def check_single_node(service: ModelService) -> None:
    """Raises `bad_setting` for what cannot be run on one machine."""
    spec = service.spec
    for index, pool in enumerate(spec.pools):
        if pool.first_replicas > REPLICAS_MAX:
            problem = f"spec.pools[{index}].replicas is {pool.replicas}: one machine takes at most {REPLICAS_MAX}"
            raise TandemError("bad_setting", problem)
    if not any(pool.first_replicas for pool in spec.pools if pool.role != "prefill"):
        problem = "spec.pools has no worker that can decode: give a pool of role decode, unified or auto a replica"
        raise TandemError("bad_setting", problem)
    check_handoff(service)
    if "://" in spec.model.source and not spec.model.source.startswith(_HERE):
        problem = f"spec.model.source {spec.model.source!r} is for a cluster; give a directory or a hub id here"
        raise TandemError("bad_setting", problem)


def check_handoff(service: ModelService) -> None:
    """Check that prefill and decode workers can hand off the model's KV. Raises `bad_setting` when they cannot, as
    far as a `config.json` on this machine says so: in the model's directory, or where the hub's files are kept. For
    any other model the workers find out when they start."""
    config = _config(service)
    if config is None:
        return
    for pool in _parted(service):
        why = cannot_exchange(kinds_served(config, engine_of(service.spec.engine, pool)))
        if why:
            problem = f"pool {pool.name} would hand KV over, and cannot: {why}; use unified workers (--prefill 0)"
            raise TandemError("bad_setting", problem, param="pools")


def unchecked_handoff(service: ModelService) -> str | None:
    """One line when nothing on this machine says whether the model's KV can be handed off, as the workers are to do;
    else None."""
    parted = _parted(service)
    if not parted or _config(service) is not None:
        return None
    return (
        f"not checked: whether {' and '.join(pool.name for pool in parted)} can hand KV over, as no config.json of "
        f"{local_source(service.spec.model.source)} can be read on this machine yet; workers that cannot will say so"
    )


def _parted(service: ModelService) -> tuple[Pool, ...]:
    """Pools whose vLLM workers hand KV over."""
    pools = service.spec.pools if service.spec.engine.type == "vllm" else ()
    return tuple(pool for pool in pools if pool.role not in WHOLE and pool.first_replicas)


def stays_unified(service: ModelService) -> str | None:
    """One line about `auto` pools whose workers all serve whole requests, whatever the load; else None."""
    pools = [pool for pool in service.spec.pools if pool.role == "auto" and pool.first_replicas]
    if not pools or service.spec.engine.type != "vllm":
        return None
    config = _config(service)
    engine = engine_of(service.spec.engine, pools[0])
    alone = "" if config is None else cannot_exchange(kinds_served(config, engine))
    why = (
        f"KV cannot be handed over: {alone}"
        if alone
        else "what a step of engine vllm may take cannot be changed while it runs"
    )
    return f"workers of {' and '.join(pool.name for pool in pools)} serve whole requests, as if unified: {why}"


def _config(service: ModelService) -> Mapping[str, Any] | None:
    directory = model_directory(local_source(service.spec.model.source))
    return None if directory is None else model_config(directory)


def local_source(source: str) -> str:
    """A model's source as processes on this machine take it: `demo`, a directory or a hub id."""
    for scheme in _HERE:
        source = source.removeprefix(scheme)
    return source


def ignored_fields(service: ModelService) -> str | None:
    """One line that names the given fields that have no effect on one machine, or None."""
    given = [f"spec.model.{key}" for key in _given(service.spec.model, _MODEL)]
    given += [f"spec.{key}" for key in _given(service.spec, ("redis_secret_ref",))]
    given += [f"spec.rollout.{key}" for key in _given(service.spec.rollout, ("gate",))]
    given += [f"spec.routing.{key}" for key in _given(service.spec.routing, ("max_queue_seconds",))]
    pools: dict[str, list[Pool]] = {}
    for pool in service.spec.pools:
        for key in _given(pool, _POOL):
            pools.setdefault(key, []).append(pool)
    given += [f"{key} of {' and '.join(pool.name for pool in having)}" for key, having in pools.items()]
    return f"on one machine these have no effect: {', '.join(given)}" if given else None


def _given(value: msgspec.Struct, fields: tuple[str, ...]) -> Iterator[str]:
    """The fields among `fields` that differ from their defaults, by their names in files."""
    for field in msgspec.structs.fields(value):
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if field.name in fields and getattr(value, field.name) != default:
            yield camel(field.name)
