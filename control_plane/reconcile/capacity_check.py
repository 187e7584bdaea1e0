"""Whether a pool's workers can hold the model at all, before a pod is started."""

from typing import Final

from control_plane.observe.observed import ModelFacts
from control_plane.reconcile.accelerators import memory_of_type
from tandem.core.quantization import type_of_method
from tandem.core.sizing import ITEM_BYTES, RUNTIME_SHARE, Fit, Shape, fit, indivisible
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import WHOLE, Accelerator, Pool, engine_of
from tandem.spec.quantity import quantity
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import gpu_memory_share

_SIXTEEN_OR_MORE: Final = ("float32", "bfloat16", "float16")
_CONFIG: Final = "config.json of the model has not been read: it is on the hub, or in an annotation of the service"


def pools_over_capacity(service: ModelService, model: ModelFacts | None) -> dict[str, str]:
    """The pools whose workers cannot hold the model, each with the arithmetic."""
    found = {}
    for pool in service.spec.pools:
        reason = None if model is None else _misfit(engine_of(service.spec.engine, pool), pool, model)
        if reason is not None:
            found[pool.name] = reason
    return found


def pools_unchecked(service: ModelService, model: ModelFacts | None) -> dict[str, str]:
    """The pools for which it is unknown whether their workers can hold the model, each with what is missing."""
    found = {pool.name: _missing(service, pool, model) for pool in service.spec.pools}
    return {name: reason for name, reason in found.items() if reason}


def _missing(service: ModelService, pool: Pool, model: ModelFacts | None) -> str:
    engine = engine_of(service.spec.engine, pool)
    if engine.type == "simulated" or pool.accelerator is None:
        return ""
    if model is None:
        return _CONFIG
    if model.shape is None:
        return model.unread
    if memory_of(pool.accelerator) is None:
        kind = pool.accelerator.type
        return f"the memory of accelerator {kind!r} is not known: say accelerator.memory, or a type such as h100"
    if _weight_type(engine, model) is None:
        return f"the size of weights quantized as {engine.quantization or 'the checkpoint says'} is not known"
    return ""


def memory_of(accelerator: Accelerator) -> int | None:
    """Memory of one accelerator in bytes; None for a type whose memory is unknown."""
    if accelerator.memory is not None:
        return quantity(accelerator.memory)
    return memory_of_type(accelerator.type)


def _misfit(engine: EngineSpec, pool: Pool, model: ModelFacts) -> str | None:
    if engine.type == "simulated" or pool.accelerator is None or model.shape is None:
        return None
    shape, shards = _cached(model.shape, engine, pool), engine.parallelism
    if problem := indivisible(shape, shards.tensor, shards.pipeline):
        return problem
    memory, weights = memory_of(pool.accelerator), _weight_type(engine, model)
    if memory is None or weights is None:
        return None
    if shards.expert and shards.data > 1:
        return _experts_misfit(shape, memory, shards.ranks, weights)
    found: Fit = fit(
        shape,
        memory,
        tensor=shards.tensor,
        pipeline=shards.pipeline,
        weight_dtype=weights,
        kv_dtype=_kv_type(engine, model),
        context=engine.context_tokens or model.context or 1,
        share=gpu_memory_share(engine, pool) or 1 - RUNTIME_SHARE,
    )
    return None if found.fits else found.reason


def _cached(shape: Shape, engine: EngineSpec, pool: Pool) -> Shape:
    """The shape with what its layers keep in cache: where KV is exchanged, all of it, windows or not."""
    alone = engine.type == "vllm" and pool.role in WHOLE and engine.kv_transfer != "always"
    return shape if alone else shape.with_whole_cache()


def _experts_misfit(shape: Shape, memory: int, ranks: int, weights: str) -> str | None:
    """Why the weights do not fit; None when they may. Experts are spread over all ranks and the rest is not, so no
    rank holds less than an even share."""
    each = shape.weight_bytes(weights) / ranks
    room = memory * (1 - RUNTIME_SHARE)
    if each < room:
        return None
    return (
        f"weights {shape.weight_bytes(weights) / 1e9:.2f} GB over {ranks} accelerators are at least "
        f"{each / 1e9:.2f} GB each; {room / 1e9:.2f} GB of {memory / 1e9:.2f} GB can hold them"
    )


def _weight_type(engine: EngineSpec, model: ModelFacts) -> str | None:
    if engine.quantization is not None:
        quantized = model.dtype if model.dtype not in _SIXTEEN_OR_MORE else None
        return type_of_method(engine.quantization) or _if_known(quantized)
    # A quantized checkpoint stays what it is, whatever is computed with.
    stated = model.dtype if engine.dtype in (None, "auto") or model.dtype not in _SIXTEEN_OR_MORE else engine.dtype
    return _if_known(stated)


def _if_known(dtype: str | None) -> str | None:
    return dtype if dtype in ITEM_BYTES else None


def _kv_type(engine: EngineSpec, model: ModelFacts) -> str:
    said = engine.kv_dtype or "auto"
    if said.startswith(("fp8", "int8")):
        return "fp8"
    if said.startswith(("nvfp4", "int4", "turboquant", "ultraquant")):
        return "int4"
    return said if said in _SIXTEEN_OR_MORE else _computed_with(engine, model)


def _computed_with(engine: EngineSpec, model: ModelFacts) -> str:
    for said in (engine.dtype, model.dtype):
        if said in _SIXTEEN_OR_MORE:
            return str(said)
    return "bfloat16"
