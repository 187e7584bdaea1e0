"""Preparation of what a runner loads from the settings: resolved model, layout, number of blocks, memory. Makes no
tensors."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.core.messages import ITL_TARGET
from tandem.engine.digest import DIGEST
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import EngineInfo
from tandem.engine.torch.gpu_memory import GpuMemory, host_free, kv_bytes, read_gpu_memory
from tandem.engine.torch.settings import TorchSettings
from tandem.engine.torch.spec import STORED, ComputeSpec
from tandem.model.config import DTYPES, ModelConfig
from tandem.model.directory import ModelDirectory, open_model
from tandem.process.logs import event

ENGINE = "tandem-torch"
PACKING = "block-major"
_log = logging.getLogger(__name__)
_CPU_BYTES: Final = 256 << 20
_MEANT_FOR: Final = "tests and small models: it launches every operation by itself; serve with engine vllm"
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Prepared:
    """Ready to load."""

    spec: ComputeSpec
    info: EngineInfo
    memory: HostMemory


def prepare(settings: TorchSettings, card: Callable[[str], GpuMemory] = read_gpu_memory) -> Prepared:
    """Resolve the settings to what a runner loads. Blocks while a hub model is downloaded and the weights are hashed.
    `card` gives the memory of a GPU. Raises `bad_model`, `bad_setting`."""
    directory = open_model(settings.model, name=settings.name, cache=settings.cache)
    layout = make_layout(directory.config, settings)
    if settings.device != "cpu":
        event(_log, "torch_on_gpu", level=logging.WARNING, device=settings.device, meant_for=_MEANT_FOR)
    blocks = _blocks(settings, layout, directory, card)
    spec = ComputeSpec(
        directory=directory,
        layout=layout,
        blocks=blocks,
        device=settings.device,
        threads=settings.threads or max(1, len(os.sched_getaffinity(0)) - 1),
        mirrored=settings.device != "cpu",
    )
    info = EngineInfo(
        model=directory.name,
        model_hash=directory.content_hash(directory.checkpoint(STORED)),
        vocab_size=directory.config.vocab_size,
        context_tokens=_context(settings, directory.config),
        eos_token_ids=directory.config.eos_token_ids,
        blocks=blocks,
        layout=layout,
        features=(ITL_TARGET,),
    )
    return Prepared(spec, info, HostMemory(layout.block_bytes, blocks))


def make_layout(config: ModelConfig, settings: TorchSettings) -> Layout:
    """The physical shape of a block. Raises `bad_setting`."""
    dtype = config.dtype if settings.dtype == "auto" else settings.dtype
    if dtype not in DTYPES:
        raise _bad("dtype", settings.dtype, f"expected auto, {', '.join(DTYPES)}")
    if settings.block_tokens < 1:
        raise _bad("block_tokens", settings.block_tokens, "expected at least 1")
    return Layout(
        engine=ENGINE,
        packing=PACKING,
        dtype=dtype,
        item_bytes=_ITEM_BYTES[dtype],
        layers=config.layers,
        block_tokens=settings.block_tokens,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        digest=DIGEST,
    )


def _blocks(
    settings: TorchSettings, layout: Layout, directory: ModelDirectory, card: Callable[[str], GpuMemory]
) -> int:
    if settings.blocks is not None:
        if settings.blocks < 1:
            raise _bad("blocks", settings.blocks, "expected at least 1")
        return settings.blocks
    size = settings.kv_memory_bytes
    if size is None:
        size = _CPU_BYTES
        if settings.device.startswith("cuda"):
            weights = _weight_bytes(directory, layout)
            size = kv_bytes(card(settings.device), settings.gpu_memory_share, weights, host_free())
    blocks = size // layout.block_bytes
    if blocks < 1:
        raise _bad("kv_memory_bytes", size, f"one block needs {layout.block_bytes} bytes")
    return blocks


def _weight_bytes(directory: ModelDirectory, layout: Layout) -> int:
    """Bytes of the weights on the device: in the layout's type, and the head in float32."""
    stored = directory.checkpoint(STORED).data_bytes * layout.item_bytes // _ITEM_BYTES[directory.config.dtype]
    return stored + directory.config.vocab_size * directory.config.hidden * 4


def _context(settings: TorchSettings, config: ModelConfig) -> int:
    if settings.context_tokens is None:
        return config.context_tokens
    if not 1 <= settings.context_tokens <= config.context_tokens:
        raise _bad("context_tokens", settings.context_tokens, f"the model reaches 1 to {config.context_tokens}")
    return settings.context_tokens


def _bad(key: str, value: object, why: str) -> TandemError:
    return TandemError("bad_setting", f"{key} = {value!r}: {why}", param=key)
