"""An engine specification as vLLM's settings; what they refuse is refused before a worker starts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tandem.core.config_facts import CacheKinds, Windows, cache_kinds, facts_of
from tandem.core.errors import TandemError
from tandem.engine.vllm.arguments import refuse_unfit
from tandem.engine.vllm.extra_args import read_extra
from tandem.engine.vllm.settings import Parallelism as RankCounts
from tandem.engine.vllm.settings import Speculative, VllmSettings
from tandem.spec.engine import EngineSpec

_REWRITING: Final = ("disable_sliding_window", "hf_overrides")
"""Extra arguments after which the windows are not those of the file."""


def vllm_problem(engine: EngineSpec) -> str | None:
    """What vLLM would not start with, in one sentence, or None."""
    if engine.type != "vllm":
        return None
    try:
        refuse_unfit(vllm_settings(engine))
        read_extra({name: plain(value) for name, value in engine.extra_args.items()})
    except TandemError as error:
        return error.message
    return None


def vllm_settings(engine: EngineSpec) -> VllmSettings:
    """Raises `bad_setting`."""
    given = {
        "dtype": engine.dtype,
        "device": engine.device,
        "block_tokens": engine.block_tokens,
        "context_tokens": engine.context_tokens,
        "quantization": engine.quantization,
        "kv_dtype": engine.kv_dtype,
        "kv_transfer": engine.kv_transfer,
        "images_per_prompt": engine.images_per_prompt,
        "speculative": _speculative(engine),
        "eager": engine.eager,
        "gpu_memory_share": engine.gpu_memory_share,
    }
    shards = engine.parallelism
    return VllmSettings(
        parallelism=RankCounts(shards.tensor, shards.pipeline, shards.data, shards.expert),
        adapters=engine.adapters,
        **{key: value for key, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def kinds_served(config: Mapping[str, Any], engine: EngineSpec) -> CacheKinds:
    """What layers keep of a model with this `config.json`, served as `engine` says. A sliding window that is not
    smaller than the served context is none, and neither is one that an extra argument may take away."""
    found = cache_kinds(config, engine.context_tokens or facts_of(config).context_tokens)
    if any(name in engine.extra_args for name in _REWRITING):
        return replace(found, windows=Windows.NONE)
    return found


def _speculative(engine: EngineSpec) -> Speculative | None:
    given = engine.speculative
    return None if given is None else Speculative(given.method, given.model, given.tokens)


def plain(value: str | int | float | bool) -> str:
    """An argument as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
