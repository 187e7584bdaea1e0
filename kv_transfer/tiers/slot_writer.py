"""Putting bytes into slots from a thread, in a way that can be called off at any time."""

import threading
from collections.abc import Sequence

import numpy as np

Bytes = bytes | bytearray | memoryview


def copy_bytes(target: memoryview, source: Bytes) -> None:
    """Copy as `target[:] = source` does, but let other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class SlotWriter:
    """The right of one job to write into slots, until `call_off`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called_off = False

    def bring(self, target: memoryview, source: Bytes) -> memoryview:
        """Copy a piece, unless it was called off before. Gives `target`, whatever it has now."""
        with self._lock:
            if not self._called_off:
                copy_bytes(target, source)
        return target

    def call_off(self) -> None:
        """Stop writing: when this returns, nothing is written any more. Waits for the copy of one piece at most."""
        with self._lock:
            self._called_off = True


def call_off(landings: Sequence[SlotWriter]) -> None:
    """Call off all of them."""
    for landing in landings:
        landing.call_off()
