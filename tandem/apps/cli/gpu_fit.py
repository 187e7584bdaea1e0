"""Checks whether a worker fits the GPUs it is given, before it starts: gives the arithmetic in words, or the reason
why there is none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandem.apps.cli.local_model import CONFIG, model_config, model_directory
from tandem.core.errors import TandemError
from tandem.core.sizing import activation_bytes, fit, indivisible, item_bytes
from tandem.devices.assigning import Assignment
from tandem.engine.settings import SchedulerSettings
from tandem.spec.engine import EngineSpec
from tandem.spec.quantity import quantity

_PLAIN: Final = ("float32", "bfloat16", "float16")
"""Types that are computed with; weights of others are quantized."""


def check_fit(source: str, engine: EngineSpec, given: Assignment) -> str:
    """One line on what the worker needs and has. Raises `bad_setting` where it cannot fit."""
    directory = model_directory(source)
    config = None if directory is None else model_config(directory)
    if directory is None or config is None:
        return f"memory not checked: {CONFIG} of {source} is not on this machine yet"
    return fit_of(config, weight_file_bytes(directory), engine, given)


def fit_of(config: Mapping[str, Any], file_bytes: int, engine: EngineSpec, given: Assignment) -> str:
    """Like `check_fit`, but from a model's `config.json` and the size of its weight files; `file_bytes` is 0 when the
    files are missing."""
    sizes = [gpu.memory for gpu in given.gpus]
    if any(size is None for size in sizes):
        return "memory not checked: the driver does not say how much the GPU has"
    # Imported on use: most platforms have no GPU, and the control plane takes a while to load.
    from control_plane.operator.model_facts import facts_of
    from control_plane.reconcile.capacity_check import computed_with, unfollowed, weight_bytes

    facts = facts_of(config)
    shape, shards = facts.shape, engine.parallelism
    if shape is None:
        return f"memory not checked: {facts.unread}"
    if moved := unfollowed(engine):
        return f"memory not checked: {moved}"
    if problem := indivisible(shape, shards.tensor, shards.pipeline, expert=shards.expert):
        raise TandemError("bad_setting", f"{given.name}: {problem}", param="parallelism")
    dtype, plain = computed_with(engine, facts), facts.dtype if facts.dtype in _PLAIN else None
    converted = plain is not None and (engine.quantization is not None or item_bytes(plain) != item_bytes(dtype))
    weights = file_bytes if file_bytes and not converted else weight_bytes(engine, facts)
    if weights is None:
        return "memory not checked: the weights are not here yet, and how large quantized ones are is not known"
    scheduler = SchedulerSettings()
    found = fit(
        shape,
        float(min(size for size in sizes if size is not None)),
        tensor=shards.tensor * (shards.data if shards.expert else 1),
        pipeline=shards.pipeline,
        kv_dtype="fp8" if (engine.kv_dtype or "").startswith("fp8") else dtype,
        context=engine.context_tokens or facts.context or 1,
        share=given.share,
        weights=weights,
        expert=shards.expert,
        activations=activation_bytes(
            shape,
            tokens=scheduler.max_batched_tokens,
            sequences=scheduler.max_sequences,
            tensor=shards.tensor,
            dtype=dtype,
        ),
    )
    if not found.fits or found.kv_tokens < 1:
        raise TandemError(
            "bad_setting",
            f"{given.name} does not fit {', '.join(map(str, given.gpus))}: {found.reason}. Give it more GPUs "
            "(parallelism), a larger gpuMemoryShare, fewer contextTokens, or run fewer workers",
            param="gpu_memory_share",
        )
    asked = None if engine.kv_memory is None else quantity(engine.kv_memory)
    beside = "" if asked is None else f"; kvMemory asks for {asked / 1e9:.2f} GB of KV"
    return f"{found.reason}{beside}"


def weight_file_bytes(directory: Path) -> int:
    """Total bytes of all safetensors files in the directory, quantized or not."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
