"""The KV memory that a GPU has left for the embedded engine.

`python -m tandem.engine.torch.gpu_memory DEVICE` prints the GPU's free and total bytes. It is a process of its own,
because only a program that has loaded torch can ask for them, and the program that sizes the pool has not.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.process.parent_death import die_with

_BOUND_S: Final = 120.0
_RESERVE: Final = 1 << 30
"""Bytes reserved for CUDA's context, activations and the gathered K and V of a layer."""
_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True)
class GpuMemory:
    """A GPU's memory in bytes."""

    free: int
    total: int


def read_gpu_memory(device: str) -> GpuMemory:
    """Ask the driver; takes seconds. Raises `bad_setting` where there is no such GPU."""
    command = [sys.executable, "-m", "tandem.engine.torch.gpu_memory", device]
    try:
        # This thread waits for it, so it does not end before.
        end = die_with(os.getpid())
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=True, preexec_fn=end)
        return GpuMemory(*json.loads(done.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise _unusable(device, last) from error
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise _unusable(device, f"its memory could not be read: {error}") from error


def kv_bytes(card: GpuMemory, share: float, weights: int, host_free: int) -> int:
    """Bytes of the KV pool: what `share` of the GPU leaves after the weights and a reserve, no more than is free.

    At most half of the free host memory, where the pool's mirror lies. Raises `bad_setting` where nothing is left.
    """
    room = min(int(card.total * share), card.free) - weights - _RESERVE
    if room <= 0:
        raise TandemError(
            "bad_setting",
            f"device cuda: {share:g} of {_gb(card.total)} (free {_gb(card.free)}) is less than the weights, "
            f"{_gb(weights)}, and {_gb(_RESERVE)} for computing: raise gpu_memory_share, or take a smaller model",
            param="gpu_memory_share",
        )
    return min(room, host_free // 2)


def host_free() -> int:
    """Bytes of host memory that are available without swapping; a large number where the system does not report
    them."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return 1 << 40
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return next(found, 1 << 40)


def _unusable(device: str, why: str) -> TandemError:
    return TandemError("bad_setting", f"device = {device!r}: {why}", param="device")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def main(device: str) -> None:
    """Print the memory of a GPU, as JSON."""
    # Imported here: whoever imports this module has no torch.
    import torch

    print(json.dumps(torch.cuda.mem_get_info(torch.device(device))))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
