"""Whether a pool's workers can hold the model at all, before a pod is started."""

from collections.abc import Mapping
from typing import Final

from control_plane.observe.observed import ModelFacts
from tandem.core.sizing import ITEM_BYTES, RUNTIME_SHARE, Fit, fit, indivisible
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import Accelerator, Pool, engine_of
from tandem.spec.quantity import quantity
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import gpu_memory_share

MEMORY: Final[Mapping[str, int]] = {
    "a10": 24 << 30,
    "a100-40gb": 40 << 30,
    "a100": 80 << 30,
    "b200": 180 << 30,
    "b300": 268 << 30,
    "gh200": 96 << 30,
    "h100": 80 << 30,
    "h200": 141 * 10**9,
    "l4": 24 << 30,
    "l40": 48 << 30,
    "mi300x": 192 << 30,
    "mi325x": 256 << 30,
    "mi355x": 288 << 30,
    "rtx-pro-6000": 96 << 30,
    "t4": 16 << 30,
    "v100": 32 << 30,
}
"""Bytes by the beginning of a type's name, where a pool does not say how much it is."""
_WEIGHTS: Final[Mapping[str, str]] = {
    "fp8": "fp8",
    "modelopt": "fp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
}
"""Of quantized weights, the type that most of them have."""


def misfits(service: ModelService, model: ModelFacts | None) -> dict[str, str]:
    """The pools whose workers cannot hold the model, each with the arithmetic."""
    found = {}
    for pool in service.spec.pools:
        reason = None if model is None else _misfit(engine_of(service.spec.engine, pool), pool, model)
        if reason is not None:
            found[pool.name] = reason
    return found


def memory_of(accelerator: Accelerator) -> int | None:
    """Bytes of one; None for a type that nobody has told of."""
    if accelerator.memory is not None:
        return quantity(accelerator.memory)
    kind = accelerator.type.lower()
    names = (name for name in MEMORY if kind == name or kind.startswith(f"{name}-") or kind == f"{name}s")
    longest = max(names, key=len, default=None)
    return None if longest is None else MEMORY[longest]


def _misfit(engine: EngineSpec, pool: Pool, model: ModelFacts) -> str | None:
    if engine.type == "simulated" or pool.accelerator is None:
        return None
    shards = engine.parallelism
    if problem := indivisible(model.shape, shards.tensor, shards.pipeline):
        return problem
    memory, weights = memory_of(pool.accelerator), _weight_type(engine, model)
    if memory is None or weights is None:
        return None
    if shards.expert and shards.data > 1:
        return _experts_misfit(model, memory, shards.ranks, weights)
    kv = "fp8" if (engine.kv_dtype or "").startswith("fp8") else _sixteen_or_more(model.dtype)
    found: Fit = fit(
        model.shape,
        memory,
        tensor=shards.tensor,
        pipeline=shards.pipeline,
        weight_dtype=weights,
        kv_dtype=kv,
        context=engine.context_tokens or model.context or 1,
        share=gpu_memory_share(engine, pool) or 1 - RUNTIME_SHARE,
    )
    return None if found.fits else found.reason


def _experts_misfit(model: ModelFacts, memory: int, ranks: int, weights: str) -> str | None:
    """Experts are dealt out over all ranks and the rest is not: less than an even share nobody has."""
    each = model.shape.weight_bytes(weights) / ranks
    room = memory * (1 - RUNTIME_SHARE)
    if each < room:
        return None
    return (
        f"weights {model.shape.weight_bytes(weights) / 1e9:.2f} GB over {ranks} accelerators are at least "
        f"{each / 1e9:.2f} GB each; {room / 1e9:.2f} GB of {memory / 1e9:.2f} GB can hold them"
    )


def _weight_type(engine: EngineSpec, model: ModelFacts) -> str | None:
    if engine.quantization is not None:
        return _WEIGHTS.get(engine.quantization)
    dtype = model.dtype if engine.dtype in (None, "auto") else engine.dtype
    return dtype if dtype in ITEM_BYTES else None


def _sixteen_or_more(dtype: str) -> str:
    return dtype if dtype in ("float32", "bfloat16", "float16") else "bfloat16"
