"""The options of `tandem up`: a file, or flags that say the same."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.cli.single_node import check_single_node, read_local_service
from tandem.core.errors import TandemError
from tandem.engine.simulated.presets import PRESETS
from tandem.spec.engine import EngineSpec, Parallelism, Speculative
from tandem.spec.model import Model
from tandem.spec.pool import Pool
from tandem.spec.reading import check
from tandem.spec.service import (
    API_VERSION,
    KIND,
    Metadata,
    ModelService,
    RouterSpec,
    Spec,
    StoreSpec,
    TiersSpec,
)

REDIS_VARIABLE: Final = "TANDEM_REDIS"
"""Stands for `--redis`, and is in no list of processes."""
_SPEC_FLAGS = (
    "model",
    "engine",
    "preset",
    "dtype",
    "device",
    "block_tokens",
    "kv_memory",
    "gpu_memory_share",
    "tensor",
    "pipeline",
    "adapter",
    "speculative",
    "context_tokens",
    "eager",
    "dram_gb",
    "nvme_gb",
    "nvme_dir",
    "store_gb",
    "redis",
    "prefill",
    "decode",
    "unified",
    "auto",
    "name",
    "tool_parser",
    "reasoning_parser",
    "generation_config",
)


@dataclass(frozen=True)
class UpOptions:
    """The options of `tandem up`: what to run, and how to show it."""

    service: ModelService
    start_s: float
    plain: bool
    file: Path | None = None
    """The file that the service was read from; edits of it are carried out."""
    reread: Callable[[], ModelService] | None = None
    """Reads the service again from the file, with the same flags. Raises `bad_setting`."""
    drills: bool = False
    """Workers let `tandem drill` damage them, and are paced for it."""


def place_of(arguments: Sequence[str]) -> str:
    """Where the platform is to run, `machine` or `ray`: each has options of its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog="tandem up")
    add_place(parser)
    return str(parser.parse_known_args(arguments)[0].on)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the option `--on`."""
    parser.add_argument(
        "--on", choices=("machine", "ray"), default="machine",
        help="where to run: this machine (the default), or a Ray cluster, of which `tandem up --on ray --help` says "
        "more",
    )  # fmt: skip


def parse(arguments: Sequence[str]) -> UpOptions:
    """Raises `bad_setting`; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    service = _from_file(given) if given.file is not None else _from_flags(given)
    router = service.spec.router
    router = RouterSpec(
        port=router.port if given.port is None else given.port,
        grpc_port=router.grpc_port if given.grpc_port is None else given.grpc_port,
        host=router.host if given.host is None else given.host,
        max_streams=router.max_streams if given.max_streams is None else given.max_streams,
    )
    service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, router=router))
    problem = check(service)
    if problem is not None:
        raise TandemError("bad_setting", problem)
    check_single_node(service)
    reread = None if given.file is None else lambda: parse(arguments).service
    return UpOptions(service, given.start_timeout, given.plain, given.file, reread, given.drills)


def _from_file(given: argparse.Namespace) -> ModelService:
    also = [f"--{flag.replace('_', '-')}" for flag in _SPEC_FLAGS if getattr(given, flag) is not None]
    if also:
        raise TandemError("bad_setting", f"{', '.join(also)} cannot be combined with {given.file}; change the file")
    return read_local_service(given.file)


def _speculative(text: str) -> Speculative:
    """Raises `bad_setting`."""
    method, _, rest = text.partition(":")
    tokens, _, model = rest.partition(":")
    told = {"method": method, "tokens": int(tokens) if tokens.isdecimal() else tokens, "model": model or None}
    try:
        return msgspec.convert(told, Speculative)
    except msgspec.ValidationError as error:
        raise TandemError("bad_setting", f"--speculative {text}: {error}", param="speculative") from error


def _from_flags(given: argparse.Namespace) -> ModelService:
    source = given.model or "demo"
    engine = EngineSpec(
        type=given.engine or "torch",
        preset=given.preset,
        dtype=given.dtype,
        device=given.device,
        block_tokens=given.block_tokens,
        kv_memory=given.kv_memory,
        gpu_memory_share=given.gpu_memory_share,
        parallelism=Parallelism(given.tensor or 1, given.pipeline or 1),
        context_tokens=given.context_tokens,
        adapters=tuple(given.adapter or ()),
        speculative=None if given.speculative is None else _speculative(given.speculative),
        eager=given.eager,
    )
    model = Model(
        source=source,
        name=given.name or model_name(source),
        tool_parser=given.tool_parser or "auto",
        reasoning_parser=given.reasoning_parser or "auto",
        generation_config=given.generation_config or "auto",
    )
    return ModelService(
        api_version=API_VERSION,
        kind=KIND,
        metadata=Metadata("local"),
        spec=Spec(
            model=model,
            engine=engine,
            pools=_pools(given),
            tiers=_tiers(given),
            store=_store(given),
            redis=given.redis or environ.get(REDIS_VARIABLE) or None,
        ),
    )


def _tiers(given: argparse.Namespace) -> TiersSpec:
    return TiersSpec(_bytes(given.dram_gb), _bytes(given.nvme_gb), given.nvme_dir)


def _store(given: argparse.Namespace) -> StoreSpec | None:
    """The store has as much NVMe as a worker has, in a directory of its own."""
    dram = _bytes(given.store_gb)
    return None if dram is None else StoreSpec(dram, _bytes(given.nvme_gb), given.nvme_dir)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * 1e9)


def _pools(given: argparse.Namespace) -> tuple[Pool, ...]:
    """The pools that the flags describe. Without prefill workers the decode workers serve whole requests, so they are
    unified ones. With auto workers there are no others; flags that ask for others are refused."""
    if given.auto:
        asked = (("prefill", given.prefill), ("decode", given.decode), ("unified", given.unified))
        if others := [f"--{name}" for name, count in asked if count]:
            problem = f"--auto goes without {' and '.join(others)}: the router chooses which workers take prompts"
            raise TandemError("bad_setting", problem, param="auto")
        return (Pool("auto", "auto", given.auto),)
    prefill = 1 if given.prefill is None else given.prefill
    decode = 1 if given.decode is None else given.decode
    counts = (
        Pool("prefill", "prefill", prefill),
        Pool("decode", "decode" if prefill else "unified", decode),
        Pool("unified", "unified", given.unified or 0),
    )
    return tuple(pool for pool in counts if pool.replicas)


def model_name(source: str) -> str:
    """The name by which clients ask for a model: the last part of its directory or hub id."""
    return Path(source.rstrip("/")).name if "/" in source or source.startswith(".") else source


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem up",
        description="Run a router, prefill and decode workers as processes on this machine.",
        epilog="Ctrl-C lets running streams end and stops; a second one hurries.",
    )
    parser.add_argument("file", nargs="?", type=Path, help=f"a ModelService ({API_VERSION}) as YAML")
    add_place(parser)
    group = parser.add_argument_group("instead of a file")
    _add_model(group)
    _add_memory(group)
    _add_workers(group)
    parser.add_argument("--host", help="interface to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="OpenAI REST port (default 8000)")
    parser.add_argument("--grpc-port", type=int, help="public gRPC port (default: none)")
    parser.add_argument(
        "--max-streams", type=int, metavar="N",
        help="requests at once (default 4096): sets the router's bounds on requests and connections, and how many "
        "sequences each worker computes at once (default 256)",
    )  # fmt: skip
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds until everything must be ready")
    parser.add_argument("--plain", action="store_true", help="lines instead of a table, as when not on a terminal")
    parser.add_argument(
        "--drills", action="store_true", help="for `tandem drill` only: slower, smaller, and workers can be damaged"
    )
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", help="demo, a Hugging Face model directory, or a hub id (default demo)")
    group.add_argument("--name", help="what clients call the model (default: from --model)")
    group.add_argument(
        "--tool-parser",
        choices=("auto", "none", "hermes", "llama3_json", "mistral"),
        help="how the model writes tool calls (default: as its chat template shows)",
    )
    group.add_argument("--reasoning-parser", choices=("auto", "none", "think"), help="the same for its reasoning")
    group.add_argument(
        "--generation-config",
        choices=("auto", "vllm"),
        help="temperature and the like of requests that leave them out: as the model's generation_config.json says "
        "(auto, the default), or neutral (vllm)",
    )
    group.add_argument("--engine", choices=("torch", "vllm", "simulated"), help="default torch")
    group.add_argument("--tensor", type=int, metavar="N", help="vLLM: ranks that share every layer")
    group.add_argument("--pipeline", type=int, metavar="N", help="vLLM: ranks that have a part of the layers each")
    group.add_argument("--adapter", action="append", metavar="[NAME=]DIR", help="vLLM: a LoRA adapter, repeatable")
    group.add_argument(
        "--speculative", metavar="METHOD:N[:MODEL]",
        help="vLLM: draft N tokens at a time by ngram, draft_model, eagle, eagle3 or mtp; MODEL is what drafts",
    )  # fmt: skip
    group.add_argument("--context-tokens", type=int, metavar="N", help="vLLM: serve at most this context")
    group.add_argument("--eager", action=argparse.BooleanOptionalAction, help="vLLM: do not compile the model")
    group.add_argument("--preset", choices=tuple(PRESETS), help="step times of the simulated engine")


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"))
    group.add_argument("--device", choices=("cpu", "cuda"), help="default cpu")
    group.add_argument("--block-tokens", type=int, help="tokens per KV block")
    group.add_argument("--kv-memory", metavar="SIZE", help="KV memory of each worker, such as 512Mi")
    group.add_argument(
        "--gpu-memory-share",
        type=float,
        metavar="PART",
        help="of each GPU's memory for a worker (default 0.9, divided by the workers on that GPU)",
    )
    group.add_argument(
        "--dram-gb", type=float, metavar="GB", help="host memory of each worker for KV it has computed"
    )
    group.add_argument("--nvme-gb", type=float, metavar="GB", help="disk of each worker for the same (default: none)")
    group.add_argument("--nvme-dir", metavar="DIR", help="where that is; survives restarts of workers")
    group.add_argument(
        "--store",
        dest="store_gb",
        type=float,
        nargs="?",
        const=1.0,
        metavar="GB",
        help="also run a process that keeps blocks for all workers, in so much memory (default 1)",
    )
    group.add_argument(
        "--redis",
        metavar="URL",
        help="where workers also tell, and routers find, who has which blocks. Who lists processes sees it: with a "
        f"password in it give it as {REDIS_VARIABLE} in the environment, or as spec.redis in a file",
    )


def _add_workers(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--prefill", type=_workers, metavar="N", help="prefill workers (default 1; 0 serves unified)")
    group.add_argument("--decode", type=_workers, metavar="N", help="decode workers (default 1)")
    group.add_argument("--unified", type=_workers, metavar="N", help="workers that do both (default 0)")
    group.add_argument(
        "--auto",
        type=_workers,
        metavar="N",
        help="workers of which the router chooses, as the load asks for it, which compute prompts for the others; "
        "instead of --prefill, --decode and --unified",
    )


def _workers(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


_workers.__name__ = "number of workers"  # for argparse's messages
