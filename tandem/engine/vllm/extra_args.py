"""The engine arguments of vLLM that a service may set besides those that `VllmSettings` has, and their types.

This is an allow-list: an argument that is not here has a setting of its own, is decided by Tandem, or would break a
promise.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from tandem.core.errors import TandemError


def _flag(text: str) -> bool:
    found = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())
    if found is None:
        raise ValueError(text)
    return found


def _object(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_KINDS: Final[dict[Callable[[str], object], str]] = {
    int: "a whole number",
    float: "a number",
    _flag: "true or false",
    str: "text",
    _object: "a JSON object",
}

ALLOWED: Final[dict[str, Callable[[str], object]]] = {
    "attention_backend": str,
    "code_revision": str,
    "compilation_config": _object,
    "cpu_offload_gb": float,
    "disable_cascade_attn": _flag,
    "disable_custom_all_reduce": _flag,
    "disable_sliding_window": _flag,
    "distributed_executor_backend": str,
    "enable_chunked_prefill": _flag,
    "enable_eplb": _flag,
    "hf_overrides": _object,
    "language_model_only": _flag,
    "load_format": str,
    "long_prefill_token_threshold": int,
    "max_loras": int,
    "max_logprobs": int,
    "model_loader_extra_config": _object,
    "moe_backend": str,
    "numa_bind": _flag,
    "optimization_level": int,
    "quantization_config": _object,
    "revision": str,
    "safetensors_load_strategy": str,
    "seed": int,
    "tokenizer": str,
    "trust_remote_code": _flag,
}

_SETTINGS: Final[Mapping[str, str]] = {
    "block_size": "block_tokens",
    "data_parallel_size": "parallelism.data",
    "dtype": "dtype",
    "enable_expert_parallel": "parallelism.expert",
    "enable_lora": "adapters",
    "enforce_eager": "eager",
    "gpu_memory_utilization": "gpu_memory_share (gpuMemoryShare in a ModelService)",
    "kv_cache_dtype": "kv_dtype",
    "kv_cache_memory_bytes": "kv_memory_bytes",
    "limit_mm_per_prompt": "images_per_prompt (imagesPerPrompt in a ModelService)",
    "master_addr": "nodes.leader",
    "master_port": "nodes.port",
    "max_lora_rank": "adapter_rank_max",
    "max_model_len": "context_tokens",
    "max_num_batched_tokens": "scheduler.max_batched_tokens",
    "max_num_seqs": "scheduler.max_sequences",
    "model": "model",
    "nnodes": "nodes.count",
    "node_rank": "nodes.rank",
    "num_gpu_blocks_override": "blocks",
    "pipeline_parallel_size": "parallelism.pipeline",
    "quantization": "quantization",
    "served_model_name": "name",
    "speculative_config": "speculative",
    "tensor_parallel_size": "parallelism.tensor",
}
"""Arguments that have a setting of their own."""

NUMERIC: Final = ("hf_overrides", "quantization_config", "revision", "code_revision", "load_format")
"""Arguments that change the model's numbers, and with them the content of its KV blocks."""


def read_extra(extra: Mapping[str, str]) -> dict[str, object]:
    """The arguments as values of their types. Raises `bad_setting` naming the one that cannot be, and what to do."""
    return {name: _read(name, text) for name, text in extra.items()}


def _read(name: str, text: str) -> object:
    kind = ALLOWED.get(name)
    if kind is None:
        raise TandemError("bad_setting", _refusal(name), param=f"extra.{name}")
    try:
        return kind(text)
    except ValueError as error:
        what = f"extra.{name} = {text!r}: expected {_KINDS[kind]}"
        raise TandemError("bad_setting", what, param=f"extra.{name}") from error


def _refusal(name: str) -> str:
    own = _SETTINGS.get(name)
    if own is not None:
        return f"extra.{name}: set {own} instead"
    close = [allowed for allowed in sorted(ALLOWED) if allowed.split("_")[0] == name.replace("-", "_").split("_")[0]]
    hint = f"; near to it are {', '.join(close)}" if close else ""
    return f"extra.{name} is not among the vLLM arguments that can be passed on{hint}"
