"""Finds out what vLLM knows of a model before anything of it is loaded: its own model config, read in the worker.

Nothing of it is kept: vLLM reads it once more when it is built.
"""

from typing import Any

from tandem.core.config_facts import CacheKinds, cache_kinds
from tandem.engine.vllm.arguments import EngineArguments
from tandem.engine.vllm.client import engine_args
from tandem.engine.vllm.exchange import wrong_rotation


def probe(arguments: EngineArguments) -> CacheKinds:
    """The kinds of cache that the model's layers have. Raises what vLLM raises for a model or an argument that it
    does not take."""
    config: Any = engine_args(arguments.keywords).create_model_config()
    found = cache_kinds(config.hf_config.to_dict(), int(config.max_model_len))
    return CacheKinds(_other(config) or found.other, found.windows, _inexact(config, arguments))


def _inexact(config: Any, arguments: EngineArguments) -> str:
    # Imported on use: it decides for which device this process is.
    from tandem.engine.vllm.internals import current_platform

    if not (config.use_mla and current_platform.is_cpu()):
        return ""
    rope = getattr(config.hf_text_config, "rope_parameters", None)
    return wrong_rotation(rope, arguments.keywords.get("compilation_config"))


def _other(config: Any) -> str:
    """The feature that the architecture adds to its configuration file, in words; empty where there is none."""
    if config.is_hybrid or config.has_inner_state:
        return "layers of recurrent state"
    if config.is_attention_free:
        return "no keys and values"
    if config.is_encoder_decoder:
        return "attention to an encoder"
    if config.has_noops or config.model_arch_config.per_layer_overrides is not None:
        return "layers with heads of other sizes"
    if config.rswa_window is not None:
        return "attention to a reference window"
    return ""
