"""Step 1: the ceilings of the machine, without any code of ours: copies and a matrix product."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target

TITLE = "Ceilings"


def measure(target: Target) -> Iterator[Measurement]:
    """GB/s of plain copies; those on the device count bytes read and bytes written."""
    size = target.sized(8 << 30, 4 << 20)
    words = size // 8
    on_device = torch.randint(1 << 40, (words,), device=target.device)
    other = torch.empty_like(on_device)
    yield _rate(target, "device to device, read and written", other, on_device, 2 * size)
    for kind, pinned in (("pageable", False), ("pinned", True)):
        if pinned and not target.on_gpu:
            continue
        host = torch.empty(words, dtype=on_device.dtype, pin_memory=pinned)
        yield _rate(target, f"device to {kind} host", host, on_device, size)
        yield _rate(target, f"{kind} host to device", other, host, size)
    del other
    rows = target.sized(8192, 128)
    dtype = torch.bfloat16 if target.on_gpu else torch.float32
    left, right = (torch.randn(rows, rows, device=target.device, dtype=dtype) for _ in range(2))
    taken = target.seconds(lambda: left @ right)
    yield Measurement(f"matrix product of {rows} rows, {dtype}", 2 * rows**3 / taken / 1e12, "TFLOP/s")


def _rate(target: Target, name: str, to: torch.Tensor, source: torch.Tensor, size: int) -> Measurement:
    return Measurement(name, size / target.seconds(lambda: to.copy_(source, non_blocking=True)) / 1e9, "GB/s")
