"""The number of bits of a quantized checkpoint's weights, from the names that its `config.json` and vLLM use. Pure.

The type is that of most of the weights: the other weights, and the scales, make a checkpoint larger, never smaller
(`weight_format`).
"""

from collections.abc import Mapping
from typing import Any, Final

from tandem.core.config_facts import quantization

_TYPES: Final[Mapping[str, str]] = {
    "awq": "int4",
    "awq_marlin": "int4",
    "auto-round": "int4",
    "bitsandbytes": "int4",
    "experts_int8": "int8",
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "gpt_oss_mxfp4": "mxfp4",
    "inc": "int4",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "ptpc_fp8": "fp8",
    "petit_nvfp4": "nvfp4",
}
"""The weight type by vLLM's name of the quantization method, for checkpoints that say no more."""
_BY_ALGORITHM: Final[Mapping[str, str]] = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
}
"""Of NVIDIA's Model Optimizer, whose method has the same name for all of them."""
_BY_BITS: Final[Mapping[int, str]] = {4: "int4", 8: "int8"}


def weight_type(config: Mapping[str, Any]) -> str | None:
    """The type of a checkpoint's weights: as they were trained, or as they are quantized; None where that is not
    known."""
    found = quantization(config)
    if found is None:
        return _stated(config)
    method = str(found.get("quant_method", "")).lower().replace("compressed_tensors", "compressed-tensors")
    if method == "compressed-tensors":
        return _grouped(found)
    if method.startswith("modelopt") and found.get("quant_algo"):
        return _BY_ALGORITHM.get(str(found["quant_algo"]).upper())
    if method == "bitsandbytes":
        return "int8" if found.get("load_in_8bit") or found.get("_load_in_8bit") else "int4"
    if found.get("dynamic"):
        # Of GPTQModel: other bits for some of the layers.
        return None
    bits = found.get("bits", found.get("w_bit"))
    if isinstance(bits, int) and not method.startswith(("fp8", "mxfp4")):
        return _BY_BITS.get(bits)
    return type_of_method(method)


def kv_type(config: Mapping[str, Any]) -> str | None:
    """The type of KV that a checkpoint comes with scales for, which vLLM then takes by itself; None where it has
    none."""
    found = quantization(config) or {}
    scheme = found.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    stated = str(found.get("kv_cache_quant_algo") or "").upper()
    if bits == 4 or stated == "NVFP4":
        return "nvfp4"
    return "fp8" if bits == 8 or stated in ("FP8", "INT8") else None


def type_of_method(method: str) -> str | None:
    """The type of weights that one of vLLM's quantization methods produces, from its name alone; None for a method
    that is not listed here."""
    return _TYPES.get(method)


def _stated(config: Mapping[str, Any]) -> str:
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            stated = part.get("dtype") or part.get("torch_dtype")
            if stated:
                return str(stated)
    return "bfloat16"


def grouped_weights(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How the weights of each group of a compressed-tensors checkpoint are quantized."""
    groups = found.get("config_groups")
    all_ = groups.values() if isinstance(groups, Mapping) else ()
    weights = (group.get("weights") for group in all_ if isinstance(group, Mapping))
    return [each for each in weights if isinstance(each, Mapping)]


def _grouped(found: Mapping[str, Any]) -> str | None:
    """The weight type of a compressed-tensors checkpoint: the smallest type of its groups' weights. Sparse weights
    are stored without their zeros, in a size that is not known."""
    sparse = found.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format", "dense") != "dense":
        return None
    known = [each for each in grouped_weights(found) if isinstance(each.get("num_bits"), int)]
    smallest = min(known, key=lambda each: int(each["num_bits"]), default=None)
    if smallest is None:
        return None
    if (smallest["num_bits"], smallest.get("type")) == (4, "float"):
        return {16: "nvfp4", 32: "mxfp4"}.get(smallest.get("group_size", 0), "int4")
    return _BY_BITS.get(smallest["num_bits"])
