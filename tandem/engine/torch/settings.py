"""Settings of the embedded engine."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TorchSettings:
    """What to load and how to run it. `bad_setting` errors name these fields."""

    model: str = "demo"
    """`demo`, a model directory or a hub id."""
    name: str | None = None
    """What clients call the model; by default the directory's name or the hub id."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto` for what the model's configuration declares."""
    block_tokens: int = 16
    blocks: int | None = None
    """Number of KV blocks; overrides `kv_memory_bytes`."""
    kv_memory_bytes: int | None = None
    """How much KV memory to map; pages are backed when first used. By default 256 MiB on a CPU, and on a GPU what
    `gpu_memory_share` of it leaves after weights and activations."""
    gpu_memory_share: float = 0.9
    """Of the GPU's memory."""
    context_tokens: int | None = None
    """Serve at most this context; by default what the model's configuration reaches."""
    device: str = "cpu"
    mode: str = "process"
    """`process` keeps inter-token times steady beside a busy event loop; `thread` starts quicker."""
    threads: int | None = None
    """Torch threads; by default one less than the cores this process may use, at least one."""
    cache: Path | None = None
    """Where hub downloads go; by default the hub's own place."""
    load_timeout_s: float = 600.0
    step_timeout_s: float = 120.0
