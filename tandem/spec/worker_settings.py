"""What a pool's workers are told of their service, wherever they run: settings of a worker process by dotted keys.

Where a worker listens, where its keys lie and how it is named is added by whoever starts it. None leaves a setting to
its default.
"""

from collections.abc import Mapping
from typing import Final

from tandem.core.sizing import even_share
from tandem.core.tiers import SEGMENT_BYTES
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import Pool, engine_of
from tandem.spec.quantity import quantity
from tandem.spec.service import ModelService, TiersSpec
from tandem.spec.vllm import plain

_SEGMENTS: Final = 8

Settings = dict[str, object]


def worker_module(pool: Pool) -> str:
    """The program of a pool's workers. Pools of role unified or auto run the decode worker, which does both."""
    return "prefill_worker" if pool.role == "prefill" else "decode_worker"


def worker_settings(service: ModelService, pool: Pool, source: str) -> Settings:
    """Of the workers of a pool; `source` is the model as they find it."""
    engine = engine_of(service.spec.engine, pool)
    return {
        "role": pool.role,
        "engine": engine.type,
        "model": source,
        "model_name": service.model_name,
        "dtype": engine.dtype,
        "block_tokens": engine.block_tokens,
        "kv_memory": None if engine.kv_memory is None else quantity(engine.kv_memory),
        "simulated.preset": engine.preset,
        "torch.device": engine.device if engine.type == "torch" else None,
        f"{engine.type}.gpu_memory_share": gpu_memory_share(engine, pool),
        **(_vllm(engine) if engine.type == "vllm" else {}),
        **tier_settings(service.spec.tiers),
    }


def gpu_memory_share(engine: EngineSpec, pool: Pool) -> float | None:
    """Of each GPU's memory: as given, or an even part where pods share GPUs. None leaves it to who starts the
    worker."""
    if engine.gpu_memory_share is not None or engine.device != "cuda":
        return engine.gpu_memory_share
    pods = 1 if pool.accelerator is None else pool.accelerator.shared_by
    return None if pods == 1 else even_share(pods)


def index_environment(service: ModelService, name: str) -> dict[str, str]:
    """The shared index, by environment: its URL may have a password in it, which no command line should show.
    Services that share a Redis are kept apart by their names."""
    if service.spec.redis is None:
        return {}
    return {"TANDEM_INDEX__REDIS_URL": service.spec.redis, "TANDEM_INDEX__SERVICE": name}


def tier_settings(tiers: TiersSpec) -> Settings:
    """Few blocks on NVMe lie in small files, so that making room does not drop a large part of them."""
    dram = None if tiers.dram is None else quantity(tiers.dram)
    nvme = None if tiers.nvme is None else quantity(tiers.nvme)
    small = nvme is not None and nvme < _SEGMENTS * SEGMENT_BYTES
    return {
        "tiers.dram_bytes": dram,
        "tiers.nvme_bytes": nvme,
        "tiers.nvme_dir": tiers.nvme_dir,
        "tiers.segment_bytes": nvme // _SEGMENTS if small and nvme is not None else None,
    }


def as_flags(settings: Mapping[str, object]) -> list[str]:
    """As a command line."""
    return [part for key, value in settings.items() if value is not None for part in (f"--{key}", str(value))]


def _vllm(engine: EngineSpec) -> Settings:
    """What only vLLM is told."""
    shards = engine.parallelism
    return {
        "vllm.device": engine.device,
        "vllm.parallelism.tensor": shards.tensor,
        "vllm.parallelism.pipeline": shards.pipeline,
        "vllm.parallelism.data": shards.data,
        "vllm.parallelism.expert": plain(shards.expert),
        "vllm.context_tokens": engine.context_tokens,
        "vllm.quantization": engine.quantization,
        "vllm.kv_dtype": engine.kv_dtype,
        "vllm.kv_transfer": engine.kv_transfer,
        "vllm.images_per_prompt": engine.images_per_prompt,
        "vllm.adapters": ",".join(engine.adapters) or None,
        **_speculative(engine),
        "vllm.eager": None if engine.eager is None else plain(engine.eager),
        **{f"vllm.extra.{name}": plain(value) for name, value in engine.extra_args.items()},
    }


def _speculative(engine: EngineSpec) -> Settings:
    given = engine.speculative
    if given is None:
        return {}
    return {
        "vllm.speculative.method": given.method,
        "vllm.speculative.model": given.model,
        "vllm.speculative.tokens": given.tokens,
    }
