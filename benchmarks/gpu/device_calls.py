"""What the connector's `DeviceCopies` ask of a device, without vLLM: CUDA's own batched copy, or the processor's."""

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from benchmarks.gpu.target import Target
from tandem.engine.vllm.connector.device_calls import BatchedCopy, CudaCalls, DeviceCalls, Event

_ANY_KIND: Final = 4
"""`cudaMemcpyDefault`: which side is the host follows from the addresses."""
_IN_STREAM_ORDER, _ANY_ORDER = 1, 3
"""Of `cudaMemcpySrcAccessOrder`."""
_BATCH_SINCE: Final = (12, 8)
_NO_FAILED_INDEX_SINCE: Final = 13


def device_calls(target: Target) -> tuple[DeviceCalls, str]:
    """The calls, and by what they copy a batch."""
    if not target.on_gpu:
        return HostCalls(), "memmove"
    cuda = tuple(int(part) for part in (torch.version.cuda or "0.0").split("."))
    runtime = ctypes.CDLL(f"libcudart.so.{cuda[0]}")
    if cuda >= _BATCH_SINCE:
        batched: BatchedCopy = _Batch(runtime, cuda[0])
        return CudaCalls(target.device, batched), "cudaMemcpyBatchAsync"
    return CudaCalls(target.device, _Loop(runtime)), "cudaMemcpyAsync in a loop"


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (("order", ctypes.c_int), ("source", _Location), ("target", _Location), ("flags", ctypes.c_uint))


class _Batch:
    """One call for all pieces."""

    def __init__(self, runtime: ctypes.CDLL, major: int) -> None:
        self._call = runtime.cudaMemcpyBatchAsync
        self._failed = () if major >= _NO_FAILED_INDEX_SINCE else (ctypes.byref(ctypes.c_size_t()),)

    def __call__(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        attributes = _Attributes(order=_ANY_ORDER if steady else _IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)
        _check(
            self._call(
                ctypes.c_void_p(targets.data_ptr()),
                ctypes.c_void_p(sources.data_ptr()),
                ctypes.c_void_p(sizes.data_ptr()),
                ctypes.c_size_t(len(sizes)),
                ctypes.byref(attributes),
                ctypes.byref(first),
                ctypes.c_size_t(1),
                *self._failed,
                _stream(),
            )
        )


class _Loop:
    """A call for each piece, where CUDA has none for all of them."""

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self._call = runtime.cudaMemcpyAsync

    def __call__(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        stream = _stream()
        for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
            to, at, count = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size)
            _check(self._call(to, at, count, ctypes.c_int(_ANY_KIND), stream))


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA refuses a copy: error {status}")


class _Now:
    """An event on a processor: everything before it is over."""

    def record(self, stream: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class HostCalls:
    """`DeviceCalls` where the device is this processor: one stream, on which everything happens at once."""

    def side_stream(self) -> Any:
        return None

    def current_stream(self) -> Any:
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self, stream: Any, event: Event) -> None:
        return None

    def event(self) -> Event:
        return _Now()

    def pin(self, address: int, size_bytes: int) -> None:
        return None

    def unpin(self, address: int) -> None:
        return None

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(target, source, size)
