"""Packs weights as quantized checkpoints have them: AWQ, GPTQ, and the formats of compressed-tensors.

Every function takes a linear layer's weight as `[outputs, inputs]` in float32 and gives the tensors that stand for it
in the file, by the suffix of their names.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

GROUP: Final = 32
"""Inputs that share a scale."""
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]


def awq(weight: torch.Tensor) -> Tensors:
    """Four bits with a zero point per group; eight outputs in a word, interleaved."""
    values, scales, zeros = _unsigned(weight)
    return {
        "qweight": _packed(values.t(), _AWQ_ORDER),
        "qzeros": _packed(zeros.t(), _AWQ_ORDER),
        "scales": scales.t().contiguous().to(torch.float16),
    }


def gptq(weight: torch.Tensor) -> Tensors:
    """Four bits around the middle; eight inputs in a word. Zero points are stored less one."""
    values, scales = _centred(weight)
    groups, outputs = scales.shape[1], scales.shape[0]
    middle = torch.full((groups, outputs), 7, dtype=torch.int32)
    return {
        "qweight": _packed(values, tuple(range(8))).t().contiguous(),
        "qzeros": _packed(middle, tuple(range(8))),
        "scales": scales.t().contiguous().to(torch.float16),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }


def w4a16(weight: torch.Tensor) -> Tensors:
    """As GPTQ's values, with inputs in the last dimension."""
    values, scales = _centred(weight)
    return {
        "weight_packed": _packed(values, tuple(range(8))),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }


def int8(weight: torch.Tensor) -> Tensors:
    """One byte, a scale per output."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale.to(torch.float32)}


def fp8_channel(weight: torch.Tensor) -> Tensors:
    """One byte of e4m3, a scale per output."""
    scale = weight.abs().amax(1, keepdim=True) / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale.to(torch.float32)}


def _unsigned(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values 0 to 15 as `[outputs, inputs]`, scales and zero points as `[outputs, groups]`."""
    grouped = weight.reshape(weight.shape[0], -1, GROUP)
    low, high = grouped.amin(2, keepdim=True).clamp(max=0), grouped.amax(2, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-6)
    zero = (-low / scale).round().clamp(0, 15)
    values = ((grouped / scale).round() + zero).clamp(0, 15)
    return values.reshape(weight.shape).to(torch.int32), scale[..., 0], zero[..., 0].to(torch.int32)


def _centred(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values 0 to 15 around 8 as `[outputs, inputs]`, scales as `[outputs, groups]`."""
    grouped = weight.reshape(weight.shape[0], -1, GROUP)
    scale = (grouped.abs().amax(2, keepdim=True) / 7).clamp(min=1e-6)
    values = ((grouped / scale).round() + 8).clamp(0, 15)
    return values.reshape(weight.shape).to(torch.int32), scale[..., 0]


def _packed(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Eight neighbours of the last dimension in one word; `order[i]` is which of them has the bits `4 i`."""
    eights = values.reshape(*values.shape[:-1], -1, 8).to(torch.int64)
    word = torch.zeros(eights.shape[:-1], dtype=torch.int64)
    for place, which in enumerate(order):
        word |= eights[..., which] << (4 * place)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32).contiguous()


PACKERS: Final[dict[str, Callable[[torch.Tensor], Tensors]]] = {
    "awq": awq,
    "gptq": gptq,
    "int8": int8,
    "w4a16": w4a16,
    "fp8-channel": fp8_channel,
}


def _compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _numbers(
    kind: str, bits: int, strategy: str, *, dynamic: bool = False, group: int | None = None
) -> dict[str, Any]:
    return {
        "type": kind,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": dynamic,
        "group_size": group,
        "observer": None if dynamic else "minmax",
        "observer_kwargs": {},
        "actorder": None,
        "block_structure": None,
    }


SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    "gptq-moe": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    "int8": _compressed("int-quantized", _numbers("int", 8, "channel"), _numbers("int", 8, "token", dynamic=True)),
    "w4a16": _compressed("pack-quantized", _numbers("int", 4, "group", group=GROUP), None),
    "fp8-channel": _compressed(
        "float-quantized", _numbers("float", 8, "channel"), _numbers("float", 8, "token", dynamic=True)
    ),
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "block-fp8": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    },
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
}
"""The `quantization_config` of each."""
