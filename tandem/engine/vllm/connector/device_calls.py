"""The few calls to CUDA that copies need, in one place, so that tests can put a stub there. Imported on devices only.

HIP answers to the same names in torch's builds for ROCm.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch

from tandem.core.errors import TandemError

_REGISTERED_MAX: Final = 32 << 30
"""Bytes registered in one call; drivers have refused more than some tens of GiB."""
_PAGE: Final = 4096
_CUDA: Final[Any] = torch.cuda
"""Torch annotates few of its calls."""


class Event(Protocol):
    """A mark in a stream (`torch.cuda.Event`)."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float: ...


class DeviceCalls(Protocol):
    """The calls that `DeviceCopies` makes to a device. A stream is whatever `side_stream` and `current_stream`
    give."""

    def side_stream(self) -> Any:
        """A new stream that yields to the engine's."""
        ...

    def current_stream(self) -> Any:
        """The one on which the engine computes."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Launch there."""
        ...

    def wait(self, stream: Any, event: Event) -> None:
        """Make everything launched on the stream from now on come after the event."""
        ...

    def event(self) -> Event: ...

    def pin(self, address: int, size_bytes: int) -> None:
        """Lock host memory and let the device reach it. Raises `bad_setting`."""
        ...

    def unpin(self, address: int) -> None: ...

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        """The values on the device, copied on the stream of now without waiting."""
        ...

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        """Copy pieces by their addresses, in one call, on the stream of now. `steady`: nothing writes to the sources
        meanwhile, so that they may be read early."""
        ...


class BatchedCopy(Protocol):
    """`DeviceCalls.copy` on the current stream of torch."""

    def __call__(
        self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool
    ) -> None: ...


def copy_by_vllm(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
    """`BatchedCopy` of vLLM's kernels: one `cuMemcpyBatchAsync`, where the driver has it."""
    # Imported on use: it loads vLLM's kernels.
    from tandem.engine.vllm.internals import swap_blocks_batch

    swap_blocks_batch(sources, targets, sizes, is_src_access_order_any=steady)


class CudaCalls:
    """`DeviceCalls` of the device that tensors of this rank are on. `batched` copies, where vLLM is not installed."""

    def __init__(self, device: torch.device, batched: BatchedCopy = copy_by_vllm) -> None:
        self._device = device
        self._batched = batched

    def side_stream(self) -> Any:
        # By default of the lowest priority there is.
        return _CUDA.Stream(self._device)

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def wait(self, stream: torch.cuda.Stream, event: Any) -> None:
        stream.wait_event(event)

    def event(self) -> Event:
        event: Event = _CUDA.Event(enable_timing=True)
        return event

    def pin(self, address: int, size_bytes: int) -> None:
        status = _CUDA.cudart().cudaHostRegister(address, size_bytes, 0)
        if int(status) != 0:
            problem = f"the stage's memory cannot be pinned ({size_bytes >> 20} MiB): {status}"
            hint = "give the pod more memory or make tiers.dram smaller"
            raise TandemError("bad_setting", f"{problem}; {hint}", param="tiers.dram_bytes")

    def unpin(self, address: int) -> None:
        _CUDA.cudart().cudaHostUnregister(address)

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, pin_memory=True).to(self._device, non_blocking=True)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        self._batched(sources, targets, sizes, steady=steady)


def pinned_pieces(size_bytes: int, slot_bytes: int, limit: int = _REGISTERED_MAX) -> list[tuple[int, int]]:
    """(offset, bytes) of the pieces in which slots are registered: they begin on pages, and no slot lies in two."""
    step = slot_bytes
    while step % _PAGE:
        step *= 2
    piece = max(1, limit // step) * step
    return [(offset, min(piece, size_bytes - offset)) for offset in range(0, size_bytes, piece)]
