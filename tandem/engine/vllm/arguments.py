"""Conversion of settings to vLLM's engine arguments and environment. Pure; imports no vLLM."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.messages import Adapter
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.extra_args import NUMERIC, read_extra
from tandem.engine.vllm.internals import vllm_version
from tandem.engine.vllm.settings import RunnerKind, Speculative, VllmSettings

PROCESSORS: Final = ("tandem.engine.vllm.forcing:ForcedTokens", "tandem.engine.vllm.drawing:PositionDraws")
"""Our logits processors for vLLM's first model runner."""
PROCESSORS_V2: Final = ("tandem.engine.vllm.forcing_v2:ForcedTokensV2",)
"""Our logits processors for vLLM's second model runner, which draws from seed and position by itself."""
REPORT_VARIABLE: Final = "TANDEM_VLLM_TELL"
"""The environment variable with the socket to which the engine's processes send their progress and last words; see
`process_reports.py`."""
_ADAPTER_SLOTS: Final = 4
"""The number of adapters whose weights are loaded at a time, and which can therefore be in one step;
`extra.max_loras` overrides it."""
_OF_ONE_NODE: Final = ("model", "node_rank", "master_port", "kv_events_config")
"""Arguments that differ between the nodes of a worker: paths of its own, and which it is."""
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class AdapterDirectory:
    """A LoRA adapter on disk. `number` is what vLLM knows it by, from 1."""

    adapter: Adapter
    path: Path
    number: int


@dataclass(frozen=True)
class Sockets:
    """Unix sockets of one engine, inside a directory of its own."""

    directory: Path

    @property
    def events(self) -> str:
        """ZeroMQ endpoint where vLLM publishes what happens to its prefix cache."""
        return f"ipc://{self.directory}/events"

    @property
    def replay(self) -> str:
        """ZeroMQ endpoint where missed events can be asked for again."""
        return f"ipc://{self.directory}/replay"

    @property
    def tell(self) -> Path:
        return self.directory / "tell"


@dataclass(frozen=True)
class EngineArguments:
    """The arguments that vLLM is built from: keyword arguments of `AsyncEngineArgs`, and the environment of its
    processes."""

    keywords: Mapping[str, object]
    environment: Mapping[str, str]


def engine_arguments(
    settings: VllmSettings,
    scheduler: SchedulerSettings,
    model: Path,
    adapters: tuple[AdapterDirectory, ...],
    sockets: Sockets,
    transfer: Mapping[str, object] | None,
    store_port: int | None = None,
    *,
    kv_events: bool = True,
) -> EngineArguments:
    """The arguments that vLLM is built from. `transfer` holds the fields of vLLM's `KVTransferConfig`; None moves no
    KV. `store_port` is the leader's port at which ranks on several nodes find each other. With `kv_events` vLLM
    reports the changes of its prefix cache. Raises `bad_setting`."""
    refuse_unfit(settings)
    assert transfer is None or settings.nodes.count == 1, "ranks on other nodes cannot reach a stage"
    if transfer is not None and settings.parallelism.data > 1:
        count = settings.parallelism.data
        why = f"{count} engines in one worker would have a KV cache each, of which a worker can hand over one"
        raise _bad("parallelism.data", f"{why}; give the pool {count} times the replicas instead")
    keywords: dict[str, object] = {
        **_model(settings, model),
        **_memory(settings),
        **_parallel(settings),
        **_nodes(settings, store_port),
        "max_num_seqs": scheduler.max_sequences,
        "max_num_batched_tokens": max(scheduler.max_batched_tokens, scheduler.max_sequences),
        "scheduling_policy": "priority",
        "enable_prefix_caching": scheduler.prefix_cache,
        "kv_events_config": _events(sockets) if scheduler.prefix_cache and kv_events else None,
        "kv_transfer_config": None if transfer is None else dict(transfer),
        **_adapters(settings, adapters),
        **_sampling(settings),
        **read_extra(settings.extra),
    }
    return EngineArguments(
        {key: value for key, value in keywords.items() if value is not None}, _environment(settings, sockets)
    )


def facts_of(arguments: EngineArguments, model_hash: str) -> dict[str, str]:
    """The facts that have to be the same on all nodes of a worker, as text by name."""
    keywords = {name: str(value) for name, value in arguments.keywords.items() if name not in _OF_ONE_NODE}
    return {**keywords, "vllm": vllm_version() or "unknown", "weights": model_hash}


def with_threads(settings: VllmSettings) -> VllmSettings:
    """The settings with the threads of each rank filled in where they are not given: this node's cores divided among
    its ranks, except for one core that is left to everything else."""
    if settings.threads is not None:
        return settings
    return replace(settings, threads=max(1, (len(os.sched_getaffinity(0)) - 1) // settings.ranks_here))


def refuse_unfit(settings: VllmSettings) -> None:
    """Raise `bad_setting` for what vLLM 0.32 cannot do, or would die of at the first request."""
    parallel = settings.parallelism
    if settings.device == "cpu" and parallel.expert:
        raise _bad(
            "parallelism.expert",
            "on a CPU vLLM 0.32 ignores which experts a rank has, and crashes; leave it off there: experts are then "
            "sharded by column like all other weights",
        )
    if settings.device == "cpu" and parallel.pipeline > 1 and settings.runs_eager:
        raise _bad("parallelism.pipeline", "on a CPU vLLM 0.32 needs the compiled model for this: set eager to false")
    if parallel.expert and parallel.tensor * parallel.data == 1:
        raise _bad("parallelism.expert", "experts are dealt out over tensor x data ranks, and there is one")
    if settings.speculates and parallel.pipeline > 1:
        raise _bad("speculative", "vLLM 0.32 does not speculate with pipeline parallelism")
    nodes = settings.nodes.count
    if parallel.ranks % nodes or (nodes > 1 and parallel.data > 1):
        counts = f"{parallel.tensor} x {parallel.pipeline} ranks (tensor x pipeline), data = {parallel.data}"
        raise _bad("nodes.count", f"{counts} do not spread evenly over {nodes} nodes with data = 1")


def numbers_identity(settings: VllmSettings) -> str:
    """The settings that change the model's numbers, and so belong to the identity of its KV blocks, as text."""
    parts = [f"quantization={settings.quantization}"] if settings.quantization is not None else []
    parts += [f"{name}={settings.extra[name]}" for name in NUMERIC if name in settings.extra]
    return "\x1f".join(parts)


def _model(settings: VllmSettings, model: Path) -> dict[str, object]:
    return {
        "model": str(model),
        "dtype": settings.dtype,
        "max_model_len": settings.context_tokens,
        "quantization": settings.quantization,
        "enforce_eager": settings.runs_eager,
        # The router has settled what requests leave out: here they are complete.
        "generation_config": "vllm",
        "disable_log_stats": False,
        **_media(settings),
    }


def _media(settings: VllmSettings) -> dict[str, object]:
    """The arguments for images. Without images, vLLM loads nothing that reads them. With images, no processed image
    is cached: vLLM would rely on requests reaching its engine in the order in which their images were read, and here
    some never reach it."""
    if settings.images_per_prompt == 0:
        return {"language_model_only": True}
    most = {"image": settings.images_per_prompt, "video": 0, "audio": 0}
    return {"limit_mm_per_prompt": most, "mm_processor_cache_gb": 0}


def _memory(settings: VllmSettings) -> dict[str, object]:
    on_cpu = settings.device == "cpu"
    return {
        "block_size": settings.block_tokens,
        "num_gpu_blocks_override": settings.blocks,
        "kv_cache_dtype": settings.kv_dtype,
        "kv_cache_memory_bytes": None if on_cpu else settings.kv_memory_bytes,
        "gpu_memory_utilization": None if on_cpu else settings.gpu_memory_share,
    }


def _parallel(settings: VllmSettings) -> dict[str, object]:
    parallel = settings.parallelism
    return {
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
        "enable_expert_parallel": parallel.expert,
        "distributed_executor_backend": None if parallel.ranks == 1 else "mp",
    }


def _nodes(settings: VllmSettings, store_port: int | None) -> dict[str, object]:
    nodes = settings.nodes
    if nodes.count == 1:
        return {}
    return {
        "nnodes": nodes.count,
        "node_rank": nodes.rank,
        "master_addr": nodes.leader,
        "master_port": store_port,
    }


def _events(sockets: Sockets) -> dict[str, object]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": sockets.events,
        "replay_endpoint": sockets.replay,
        "topic": "",
    }


def _adapters(settings: VllmSettings, adapters: tuple[AdapterDirectory, ...]) -> dict[str, object]:
    if not adapters:
        return {}
    # Weights are read when a request asks for them, and make room for others when the slots are taken.
    slots = min(len(adapters), _ADAPTER_SLOTS)
    return {"enable_lora": True, "max_lora_rank": settings.adapter_rank_max, "max_loras": slots}


def _sampling(settings: VllmSettings) -> dict[str, object]:
    """Processors are of the model runner that the environment chooses."""
    runner = settings.runner
    made: dict[str, object] = {}
    if runner.processes:
        made["logits_processors"] = list(PROCESSORS_V2 if runner.v2 else PROCESSORS)
    if runner.speculates:
        made["speculative_config"] = _speculation(settings.speculative, runner)
    return made


def _speculation(given: Speculative, runner: RunnerKind) -> dict[str, object]:
    """The speculative settings in vLLM's terms. Only vLLM's n-gram lookup on the device works with asynchronous
    scheduling."""
    made: dict[str, object] = {"method": given.method, "num_speculative_tokens": given.tokens}
    if given.model:
        made["model"] = given.model
    if given.method == "ngram":
        made |= {"method": "ngram_gpu" if runner.v2 else "ngram", "prompt_lookup_max": given.lookup}
    return made


def _environment(settings: VllmSettings, sockets: Sockets) -> dict[str, str]:
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        # Standard output is for event lines.
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
        # Said in both cases, as logits processors are written for one of the two.
        "VLLM_USE_V2_MODEL_RUNNER": str(int(settings.runner.v2)),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(settings.start_timeout_s)),
        # Its own sockets too, as it leaves them behind.
        "VLLM_RPC_BASE_PATH": str(sockets.directory),
        REPORT_VARIABLE: str(sockets.tell),
    }
    if settings.nodes.count > 1:
        # Else it asks which way leads to the internet, and takes that interface.
        environment["VLLM_HOST_IP"] = settings.nodes.host
    if settings.runs_eager:
        # vLLM compiles a few small functions even then, with a C++ compiler, while the first request waits.
        environment["TORCH_COMPILE_DISABLE"] = "1"
    if settings.device == "cpu":
        environment |= _cpu_environment(settings)
    return environment


def _cpu_environment(settings: VllmSettings) -> dict[str, str]:
    """Threads are not bound to cores: several workers of a machine would all choose the same ones."""
    memory = settings.kv_memory_bytes or _GIB
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil(memory / _GIB))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if settings.parallelism.ranks == 1:
        # One rank needs no process of its own, and no message queue that is read in a busy loop.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if settings.threads is not None:
        # torch listens to both, and to the second one more.
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(settings.threads))
    return environment


def _bad(key: str, why: str) -> TandemError:
    return TandemError("bad_setting", f"{key}: {why}", param=key)
