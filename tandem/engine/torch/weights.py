"""Weights from memory-mapped safetensors into the form the forward pass wants.

Matrices that are always multiplied together are fused once at load (Q, K and V; gate and up). The rest stay
views of the mapped file where dtype, device and speed allow it, so their pages are shared and come in on demand.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from tandem.core.errors import TandemError
from tandem.engine.torch.moe import DenseMlp, ExpertMlp
from tandem.engine.torch.norm import RmsNorm
from tandem.model.checkpoint import Checkpoint
from tandem.model.config import ModelConfig

DTYPES: Final = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})
_STORED: Final = MappingProxyType({"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16})


@dataclass(frozen=True)
class LayerWeights:
    """One block. Matrices are stored [in, out], ready for `mm`; a bias that does not exist is None."""

    input_norm: RmsNorm
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: RmsNorm | None
    """The norm over query and key heads stacked [heads + kv_heads, head_dim]."""
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: RmsNorm
    mlp: DenseMlp | ExpertMlp


@dataclass(frozen=True)
class Weights:
    """A whole model. `head` is float32, so that logits are."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: RmsNorm
    head: torch.Tensor


class TensorSource:
    """Named tensors of a checkpoint, mapped, checked for shape, cast; knows which were never asked for."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._maps = {path: _map(path) for path in checkpoint.files}
        self._left = dict.fromkeys(checkpoint.tensors)

    def has(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`, which must have `shape`. Raises `bad_model`."""
        stored = self._checkpoint.tensors.get(name)
        if stored is None:
            raise TandemError("bad_model", f"tensor {name} is missing from the checkpoint", param=name)
        if stored.shape != shape:
            raise TandemError(
                "bad_model",
                f"{stored.file.name}: {name} has shape {list(stored.shape)}, config.json implies {list(shape)}",
                param=name,
            )
        self._left.pop(name, None)
        count = (stored.end - stored.start) // _STORED[stored.dtype].itemsize
        flat = torch.frombuffer(
            self._maps[stored.file], dtype=_STORED[stored.dtype], count=count, offset=stored.start
        )
        return flat.view(shape).to(self._device, self._dtype)

    def joined(self, names: Sequence[str], rows: Sequence[int], *rest: int) -> torch.Tensor:
        """Several tensors one below the other."""
        return torch.cat([self.take(name, count, *rest) for name, count in zip(names, rows, strict=True)])

    def finish(self, harmless: tuple[str, ...]) -> None:
        """Refuse a checkpoint with tensors that this model would ignore."""
        for name in self._left:
            if not name.endswith(harmless):
                raise TandemError("bad_model", f"tensor {name} has no place in this architecture", param=name)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        # A private mapping: torch wants writable memory, and nothing here ever writes to the file.
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def load_weights(config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read a checkpoint. Raises `bad_model` for missing, misshapen or left-over tensors."""
    source = TensorSource(checkpoint, dtype, device)
    embedding = source.take("model.embed_tokens.weight", config.vocab_size, config.hidden)
    layers = tuple(_layer(config, source, index) for index in range(config.layers))
    norm = RmsNorm(source.take("model.norm.weight", config.hidden), config.norm_eps)
    head = embedding if config.tied_embeddings else source.take("lm_head.weight", config.vocab_size, config.hidden)
    source.finish(("rotary_emb.inv_freq", "lm_head.weight") if config.tied_embeddings else ("rotary_emb.inv_freq",))
    return Weights(embedding, layers, norm, product_form(head.to(torch.float32)))


def product_form(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix stored [out, in] as [in, out], laid out as `mm` is fastest on it.

    float32 products of a few rows on a CPU run 1.6 times as fast on a matrix that is contiguous this way round;
    bfloat16 products and other devices do not care, and keep the stored bytes.
    """
    turned = matrix.t()
    return turned.contiguous() if matrix.device.type == "cpu" and matrix.dtype == torch.float32 else turned


def _layer(config: ModelConfig, source: TensorSource, index: int) -> LayerWeights:
    at = f"model.layers.{index}."
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    names = [f"{at}self_attn.{name}_proj" for name in ("q", "k", "v")]
    rows = (queries, keys, keys)
    bias = source.joined([f"{name}.bias" for name in names], rows) if config.qkv_bias else None
    output = f"{at}self_attn.o_proj"
    return LayerWeights(
        input_norm=RmsNorm(source.take(f"{at}input_layernorm.weight", config.hidden), config.norm_eps),
        qkv=product_form(source.joined([f"{name}.weight" for name in names], rows, config.hidden)),
        qkv_bias=bias,
        qk_norm=_qk_norm(config, source, at) if config.qk_norm else None,
        output=product_form(source.take(f"{output}.weight", config.hidden, queries)),
        output_bias=source.take(f"{output}.bias", config.hidden) if config.output_bias else None,
        post_norm=RmsNorm(source.take(f"{at}post_attention_layernorm.weight", config.hidden), config.norm_eps),
        mlp=_experts(config, source, at) if config.sparse_layers[index] else _dense(config, source, f"{at}mlp."),
    )


def _qk_norm(config: ModelConfig, source: TensorSource, at: str) -> RmsNorm:
    query = source.take(f"{at}self_attn.q_norm.weight", config.head_dim)
    key = source.take(f"{at}self_attn.k_norm.weight", config.head_dim)
    return RmsNorm(torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1))), config.norm_eps)


def _dense(config: ModelConfig, source: TensorSource, at: str) -> DenseMlp:
    gate_up, width, biased = [f"{at}gate_proj", f"{at}up_proj"], config.mlp_width, config.mlp_bias
    return DenseMlp(
        gate_up=product_form(source.joined([f"{name}.weight" for name in gate_up], (width, width), config.hidden)),
        gate_up_bias=source.joined([f"{name}.bias" for name in gate_up], (width, width)) if biased else None,
        down=product_form(source.take(f"{at}down_proj.weight", config.hidden, width)),
        down_bias=source.take(f"{at}down_proj.bias", config.hidden) if biased else None,
    )


def _experts(config: ModelConfig, source: TensorSource, at: str) -> ExpertMlp:
    experts = config.experts
    assert experts is not None
    old = source.has(f"{at}block_sparse_moe.gate.weight")
    block = f"{at}block_sparse_moe." if old else f"{at}mlp."
    gate = source.take(f"{block}gate.weight", experts.count, config.hidden).t()
    hidden, width = config.hidden, experts.width
    if source.has(f"{block}experts.gate_up_proj"):
        gate_up = source.take(f"{block}experts.gate_up_proj", experts.count, 2 * width, hidden).unbind(0)
        down = source.take(f"{block}experts.down_proj", experts.count, hidden, width).unbind(0)
    else:
        first, second, third = ("w1", "w3", "w2") if old else ("gate_proj", "up_proj", "down_proj")
        each = [f"{block}experts.{index}." for index in range(experts.count)]
        gate_up = tuple(
            source.joined((f"{name}{first}.weight", f"{name}{second}.weight"), (width, width), hidden)
            for name in each
        )
        down = tuple(source.take(f"{name}{third}.weight", hidden, width) for name in each)
    return ExpertMlp(
        gate=gate,
        gate_up=tuple(map(product_form, gate_up)),
        down=tuple(map(product_form, down)),
        per_token=experts.per_token,
        normalise=experts.normalise,
    )
