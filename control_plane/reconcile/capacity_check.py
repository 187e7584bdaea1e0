"""Whether a pool's workers can hold the model at all, before a pod is started."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from control_plane.observe.observed import ModelFacts
from control_plane.reconcile.accelerators import labelled_memory, memory_of_slice, memory_of_type
from tandem.core.sizing import ITEM_BYTES, RUNTIME_SHARE, Fit, Shape, fit, indivisible
from tandem.core.weight_format import quantized_by
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import WHOLE, Accelerator, Pool, engine_of
from tandem.spec.quantity import quantity
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import gpu_memory_share

_SIXTEEN_OR_MORE: Final = ("float32", "bfloat16", "float16")
_CONFIG: Final = "config.json of the model has not been read: it is on the hub, or in an annotation of the service"

_MOVING: Final = frozenset(("cpu_offload_gb", "hf_overrides", "quantization_config", "revision"))
"""vLLM's own arguments by which less lies on accelerators than the model's files say, or other things."""


Measured = Mapping[str, int]
"""By pool, the bytes of one of its accelerators as labels of nodes tell them, where any does."""


def pools_over_capacity(
    service: ModelService, model: ModelFacts | None, measured: Measured = MappingProxyType({})
) -> dict[str, str]:
    """The pools whose workers cannot hold the model, each with the arithmetic."""
    found = {}
    for pool in service.spec.pools:
        engine = engine_of(service.spec.engine, pool)
        reason = None if model is None else _misfit(engine, pool, model, measured.get(pool.name))
        if reason is not None:
            found[pool.name] = reason
    return found


def pools_unchecked(
    service: ModelService, model: ModelFacts | None, measured: Measured = MappingProxyType({})
) -> dict[str, str]:
    """The pools for which it is unknown whether their workers can hold the model, each with what is missing."""
    found = {pool.name: _missing(service, pool, model, measured.get(pool.name)) for pool in service.spec.pools}
    return {name: reason for name, reason in found.items() if reason}


def measured_memory(service: ModelService, nodes: Sequence[Mapping[str, str]], key: str | None) -> dict[str, int]:
    """What the labels of nodes tell of the pools' accelerators; `key` is the label that pools are bound to."""
    found = {}
    for pool in service.spec.pools:
        if (named := pool.accelerator) is not None:
            size = labelled_memory(nodes, named.type, named.resource, key)
            if size is not None:
                found[pool.name] = size
    return found


def _missing(service: ModelService, pool: Pool, model: ModelFacts | None, measured: int | None) -> str:
    engine = engine_of(service.spec.engine, pool)
    if engine.type == "simulated" or pool.accelerator is None:
        return ""
    if model is None:
        return _CONFIG
    if model.shape is None:
        return model.unread
    if moved := unfollowed(engine):
        return moved
    if memory_of(pool.accelerator, measured) is None:
        kind = pool.accelerator.type
        return f"the memory of accelerator {kind!r} is not known: say accelerator.memory, or a type such as h100"
    if weight_bytes(engine, model) is None:
        return f"the size of weights quantized as {engine.quantization or 'the checkpoint says'} is not known"
    return ""


def memory_of(accelerator: Accelerator, measured: int | None = None) -> int | None:
    """Memory of one accelerator in bytes: as stated, or the larger of what was `measured` and what its name says,
    since larger ones of that name may be on nodes that have yet to come; None where none of them tells."""
    if accelerator.memory is not None:
        return quantity(accelerator.memory)
    named = memory_of_slice(accelerator.resource) or memory_of_type(accelerator.type)
    return max((size for size in (measured, named) if size is not None), default=None)


def unfollowed(engine: EngineSpec) -> str:
    """Why the arithmetic does not hold for an engine with such arguments; empty where it does."""
    found = sorted(_MOVING.intersection(engine.extra_args))
    return (
        f"extraArgs.{found[0]} moves weights or changes the model, which the arithmetic does not follow"
        if found
        else ""
    )


def weight_bytes(engine: EngineSpec, model: ModelFacts) -> int | None:
    """What the weights take at least, in bytes, when this engine has loaded them; None where that is not known."""
    if model.shape is None:
        return None
    if model.format is not None:
        return model.format.bytes_of(model.shape)
    if model.dtype in _SIXTEEN_OR_MORE:
        if engine.quantization is not None:
            made = quantized_by(engine.quantization)
            return None if made is None else made.bytes_of(model.shape)
        return model.shape.weight_bytes(computed_with(engine, model))
    # A checkpoint that is quantized in a way that is not known: naming the method does not tell its bits.
    dtype = model.dtype
    return None if dtype is None or dtype not in ITEM_BYTES else model.shape.weight_bytes(dtype)


def computed_with(engine: EngineSpec, model: ModelFacts) -> str:
    """The type that the engine computes in. vLLM has 16 bits for a checkpoint of 32 unless it is told otherwise."""
    for said in (engine.dtype, model.dtype):
        if said in _SIXTEEN_OR_MORE:
            halved = engine.type == "vllm" and said == "float32" and engine.dtype in (None, "auto")
            return "float16" if halved else str(said)
    return "bfloat16"


def _misfit(engine: EngineSpec, pool: Pool, model: ModelFacts, measured: int | None) -> str | None:
    if engine.type == "simulated" or pool.accelerator is None or model.shape is None:
        return None
    shape, shards = _cached(model.shape, engine, pool), engine.parallelism
    if problem := indivisible(shape, shards.tensor, shards.pipeline, expert=shards.expert):
        return problem
    memory, weights = memory_of(pool.accelerator, measured), weight_bytes(engine, model)
    if memory is None or weights is None or unfollowed(engine):
        return None
    if shards.expert and shards.data > 1:
        return _experts_misfit(weights, memory, shards.ranks)
    found: Fit = fit(
        shape,
        memory,
        tensor=shards.tensor,
        pipeline=shards.pipeline,
        kv_dtype=_kv_type(engine, model),
        context=engine.context_tokens or model.context or 1,
        share=gpu_memory_share(engine, pool) or 1 - RUNTIME_SHARE,
        weights=weights,
        expert=shards.expert,
    )
    return None if found.fits else found.reason


def _cached(shape: Shape, engine: EngineSpec, pool: Pool) -> Shape:
    """The shape with what its layers keep in cache: where KV is exchanged, all of it, windows or not."""
    alone = engine.type == "vllm" and pool.role in WHOLE and engine.kv_transfer != "always"
    return shape if alone else shape.with_whole_cache()


def _experts_misfit(weights: int, memory: int, ranks: int) -> str | None:
    """Why the weights do not fit; None when they may. Experts are spread over all ranks and the rest is not, so no
    rank holds less than an even share."""
    each = weights / ranks
    room = memory * (1 - RUNTIME_SHARE)
    if each < room:
        return None
    return (
        f"weights {weights / 1e9:.2f} GB over {ranks} accelerators are at least "
        f"{each / 1e9:.2f} GB each; {room / 1e9:.2f} GB of {memory / 1e9:.2f} GB can hold them"
    )


def _kv_type(engine: EngineSpec, model: ModelFacts) -> str:
    said = engine.kv_dtype or "auto"
    if said == "auto" and engine.type == "vllm" and model.kv_dtype is not None:
        return model.kv_dtype
    if said.startswith(("fp8", "int8")):
        return "fp8"
    if said.startswith(("nvfp4", "int4", "turboquant", "ultraquant")):
        return "int4"
    return said if said in _SIXTEEN_OR_MORE else computed_with(engine, model)
