"""What a `Computer` is told, as plain values. Torch-free, so that the process beside it can stay so."""

from dataclasses import dataclass

from tandem.core.kv import Layout
from tandem.engine.model_directory import ModelDirectory


@dataclass(frozen=True)
class ComputeSpec:
    """What to load and where. Plain values: it travels to another process."""

    directory: ModelDirectory
    layout: Layout
    blocks: int
    device: str
    threads: int
    mirrored: bool
    """Whether the pool is apart from host memory, as on any device but the CPU."""
