"""The options of `tandem up`: a file, or flags that say the same."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandem.cli.service_spec import (
    API_VERSION,
    KIND,
    EngineSpec,
    Metadata,
    Model,
    ModelService,
    Pool,
    RouterSpec,
    Spec,
    check,
    read_service,
)
from tandem.core.errors import TandemError
from tandem.engine.simulated.presets import PRESETS

_SPEC_FLAGS = (
    "model",
    "engine",
    "preset",
    "dtype",
    "device",
    "block_tokens",
    "kv_memory",
    "prefill",
    "decode",
    "unified",
    "name",
)


@dataclass(frozen=True)
class UpOptions:
    """What to run, and how to show it."""

    service: ModelService
    start_s: float
    plain: bool
    drills: bool = False
    """Workers let `tandem drill` damage them, and are paced for it."""


def parse(arguments: Sequence[str]) -> UpOptions:
    """Raises `bad_setting`; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    service = _from_file(given) if given.file is not None else _from_flags(given)
    router = service.spec.router
    router = RouterSpec(
        port=router.port if given.port is None else given.port,
        grpc_port=router.grpc_port if given.grpc_port is None else given.grpc_port,
        host=router.host if given.host is None else given.host,
    )
    service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, router=router))
    problem = check(service)
    if problem is not None:
        raise TandemError("bad_setting", problem)
    return UpOptions(service, given.start_timeout, given.plain, given.drills)


def _from_file(given: argparse.Namespace) -> ModelService:
    also = [f"--{flag.replace('_', '-')}" for flag in _SPEC_FLAGS if getattr(given, flag) is not None]
    if also:
        raise TandemError("bad_setting", f"{', '.join(also)} cannot be combined with {given.file}; change the file")
    return read_service(given.file)


def _from_flags(given: argparse.Namespace) -> ModelService:
    source = given.model or "demo"
    engine = EngineSpec(
        type=given.engine or "torch",
        preset=given.preset,
        dtype=given.dtype,
        device=given.device,
        block_tokens=given.block_tokens,
        kv_memory=given.kv_memory,
    )
    return ModelService(
        api_version=API_VERSION,
        kind=KIND,
        metadata=Metadata("local"),
        spec=Spec(model=Model(source, given.name or model_name(source)), engine=engine, pools=_pools(given)),
    )


def _pools(given: argparse.Namespace) -> tuple[Pool, ...]:
    """Without prefill workers the decode workers serve whole requests, so they are unified ones."""
    prefill = 1 if given.prefill is None else given.prefill
    decode = 1 if given.decode is None else given.decode
    counts = (
        Pool("prefill", "prefill", prefill),
        Pool("decode", "decode" if prefill else "unified", decode),
        Pool("unified", "unified", given.unified or 0),
    )
    return tuple(pool for pool in counts if pool.replicas)


def model_name(source: str) -> str:
    """What clients call a model: the last part of its directory or hub id."""
    return Path(source.rstrip("/")).name if "/" in source or source.startswith(".") else source


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem up",
        description="Run a router, prefill and decode workers as processes on this machine.",
        epilog="Ctrl-C lets running streams end and stops; a second one hurries.",
    )
    parser.add_argument("file", nargs="?", type=Path, help=f"a ModelService ({API_VERSION}) as YAML")
    group = parser.add_argument_group("instead of a file")
    group.add_argument("--model", help="demo, a Hugging Face model directory, or a hub id (default demo)")
    group.add_argument("--name", help="what clients call the model (default: from --model)")
    group.add_argument("--engine", choices=("torch", "simulated"), help="default torch")
    group.add_argument("--preset", choices=tuple(PRESETS), help="step times of the simulated engine")
    group.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"))
    group.add_argument("--device", choices=("cpu", "cuda"), help="default cpu")
    group.add_argument("--block-tokens", type=int, help="tokens per KV block")
    group.add_argument("--kv-memory", metavar="SIZE", help="KV memory of each worker, such as 512Mi")
    group.add_argument("--prefill", type=_workers, metavar="N", help="prefill workers (default 1; 0 serves unified)")
    group.add_argument("--decode", type=_workers, metavar="N", help="decode workers (default 1)")
    group.add_argument("--unified", type=_workers, metavar="N", help="workers that do both (default 0)")
    parser.add_argument("--host", help="interface to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="OpenAI REST port (default 8000)")
    parser.add_argument("--grpc-port", type=int, help="public gRPC port (default: none)")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds until everything must be ready")
    parser.add_argument("--plain", action="store_true", help="lines instead of a table, as when not on a terminal")
    parser.add_argument(
        "--drills", action="store_true", help="for `tandem drill` only: slower, smaller, and workers can be damaged"
    )
    return parser


def _workers(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


_workers.__name__ = "number of workers"  # for argparse's messages
