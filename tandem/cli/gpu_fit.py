"""Whether a worker fits the GPUs it is given, before it starts: the arithmetic in words, or why there is none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.core.quantization import type_of_method
from tandem.core.sizing import ITEM_BYTES, Shape, activation_bytes, fit, indivisible
from tandem.devices.assigning import Assignment
from tandem.engine.hub import is_hub_id
from tandem.engine.model_directory import DEMO, open_model
from tandem.engine.settings import SchedulerSettings
from tandem.spec.engine import EngineSpec
from tandem.spec.quantity import quantity

_CONFIG: Final = "config.json"
_PLAIN: Final = ("float32", "bfloat16", "float16")
"""Types that are computed with; weights of others are quantized."""


def check_fit(source: str, engine: EngineSpec, given: Assignment) -> str:
    """One line on what the worker needs and has. Raises `bad_setting` where it cannot fit."""
    directory = model_directory(source)
    config = None if directory is None else _config(directory)
    if directory is None or config is None:
        return f"memory not checked: {_CONFIG} of {source} is not on this machine yet"
    return fit_of(config, weight_file_bytes(directory), engine, given)


def fit_of(config: Mapping[str, Any], file_bytes: int, engine: EngineSpec, given: Assignment) -> str:
    """As `check_fit`, of a model's `config.json` and the size of its weights' files; 0 where they are not there."""
    sizes = [gpu.memory for gpu in given.gpus]
    if any(size is None for size in sizes):
        return "memory not checked: the driver does not say how much the GPU has"
    # Imported on use: most platforms have no GPU, and the control plane takes a while to load.
    from control_plane.operator.model_facts import facts_of

    facts = facts_of(config)
    shape, shards = facts.shape, engine.parallelism
    if shape is None:
        return f"memory not checked: {facts.unread}"
    if problem := indivisible(shape, shards.tensor, shards.pipeline):
        raise TandemError("bad_setting", f"{given.name}: {problem}", param="parallelism")
    weights = _weight_bytes(shape, engine, facts.dtype, file_bytes)
    if weights is None:
        return "memory not checked: the weights are not here yet, and quantized ones cannot be computed"
    dtype = next((each for each in (engine.dtype, facts.dtype) if each in _PLAIN), "bfloat16")
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
    """Of all safetensors files, quantized or not."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _weight_bytes(shape: Shape, engine: EngineSpec, stated: str | None, file_bytes: int) -> float | None:
    """As they lie in memory: the files', unless they are turned into another type when they are loaded. None where
    that is not known."""
    quantized = stated not in _PLAIN
    if file_bytes and engine.quantization is None and (quantized or engine.dtype in (None, "auto", stated)):
        return float(file_bytes)
    if engine.quantization is not None:
        dtype = type_of_method(engine.quantization)
    else:
        dtype = stated if quantized or engine.dtype in (None, "auto") else engine.dtype
    return None if dtype not in ITEM_BYTES else float(shape.weight_bytes(str(dtype)))


def model_directory(source: str) -> Path | None:
    """Where the model lies; None where it has yet to be downloaded."""
    if source == DEMO:
        return open_model(DEMO, weights=False).path
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(source):
        return None
    # Imported on use: it takes longer than all the rest.
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = source.partition("@")
    found = try_to_load_from_cache(name, _CONFIG, revision=revision or None)
    return Path(found).parent if isinstance(found, str) else None


def _config(directory: Path) -> Mapping[str, Any] | None:
    try:
        config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
