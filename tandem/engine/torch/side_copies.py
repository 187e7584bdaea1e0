"""Copies of whole blocks between a device and host memory, beside the computing.

The host learns by events that copies have ended: it never waits for the device as a whole.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Target and source of each copy."""


class SideCopies(Protocol):
    """Copies start after all that was queued for computing before, and run in the order in which they were asked
    for. Until `wait` has returned they may read their sources and write their targets."""

    def copy(self, pairs: Pairs) -> None:
        """Ask for copies between host and device."""
        ...

    def fence(self) -> None:
        """Make all computation that is queued from now on see the copies asked for so far."""
        ...

    def wait(self) -> None:
        """Return once all copies asked for have ended; the host may then change or read their host memory."""
        ...


class PlainCopies:
    """Side copies for devices without streams: a copy has ended when `copy` returns."""

    def copy(self, pairs: Pairs) -> None:
        for target, source in pairs:
            target.copy_(source)

    def fence(self) -> None:
        """Nothing is under way."""

    def wait(self) -> None:
        """Nothing is under way."""


class StreamCopies:
    """Side copies on a CUDA stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ended: torch.cuda.Event | None = None

    def copy(self, pairs: Pairs) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        # Who waits for it sleeps: the cores belong to the event loops.
        self._ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._ended.record(self._stream)

    def fence(self) -> None:
        if self._ended is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ended)

    def wait(self) -> None:
        if self._ended is not None:
            self._ended.synchronize()
            self._ended = None


def side_copies(device: torch.device) -> SideCopies:
    """The kind of copies that the device supports."""
    return StreamCopies(device) if device.type == "cuda" else PlainCopies()
