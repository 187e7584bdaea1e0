"""The number of bits of a quantized checkpoint's weights, from the names that its `config.json` and vLLM use. Pure.

The type is that of most of the weights: the other weights, and the scales, make a checkpoint larger, never smaller.
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
    if method == "bitsandbytes":
        return "int8" if found.get("load_in_8bit") or found.get("_load_in_8bit") else "int4"
    bits = found.get("bits", found.get("w_bit"))
    if isinstance(bits, int) and not method.startswith(("fp8", "mxfp4")):
        return _BY_BITS.get(bits)
    return type_of_method(method)


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


def _grouped(found: Mapping[str, Any]) -> str | None:
    """The weight type of a compressed-tensors checkpoint: the smallest type of its groups' weights."""
    groups = found.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    bits = [each.get("num_bits") for each in weights if isinstance(each, Mapping)]
    known = [each for each in bits if isinstance(each, int)]
    return _BY_BITS.get(min(known)) if known else None
