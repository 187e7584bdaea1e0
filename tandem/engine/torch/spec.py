"""What a `Computer` receives, as plain values. Torch-free, so that the process beside it can stay torch-free."""

from dataclasses import dataclass
from typing import Final

from tandem.core.kv import Layout
from tandem.model.directory import ModelDirectory

STORED: Final = ("F32", "BF16", "F16")
"""Types of stored weights that are read, as safetensors files spell them."""


@dataclass(frozen=True)
class ComputeSpec:
    """The model to load, and where to load it. Plain values: the spec travels to another process."""

    directory: ModelDirectory
    layout: Layout
    blocks: int
    device: str
    threads: int
    mirrored: bool
    """Whether the pool is apart from host memory, as on any device but the CPU."""
