"""Memory for an array that grows in place: rows of equal unsigned integers, zero until written."""

import mmap
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]

Item = TypeVar("Item", np.uint64, np.uint32)


class Arena(Generic[Item]):
    """Anonymous private memory, seen as `array[rows, columns]` and, for single items, as the flat memoryview `flat`.

    Pages that have never been written take no memory, and `reserve` moves page tables instead of bytes where the
    system can (Linux). The caller of `reserve` must hold no view of the old memory.
    """

    def __init__(self, item: type[Item], columns: int, rows: int) -> None:
        self._item: type[Item] = item
        self._columns = columns
        self._row_bytes = columns * np.dtype(item).itemsize
        self._memory = _map(self._row_bytes * rows)
        self._look()

    def __len__(self) -> int:
        return len(self.array)

    def reserve(self, rows: int) -> None:
        """Have room for at least so many rows; at least doubles when there is too little."""
        if rows <= len(self.array):
            return
        size = max(rows, 2 * len(self.array)) * self._row_bytes
        del self.array
        self.flat.release()
        try:
            self._memory.resize(size)
        except SystemError:  # No mremap here.
            old, self._memory = self._memory, _map(size)
            self._memory[: len(old)] = old[:]
            old.close()
        self._look()

    def _look(self) -> None:
        items: NDArray[Any] = np.frombuffer(self._memory, dtype=self._item)
        self.array: NDArray[Item] = items.reshape(-1, self._columns)
        octets = memoryview(self._memory).cast("B")
        self.flat: memoryview[int] = octets.cast("Q") if self._item is np.uint64 else octets.cast("I")


def _map(size: int) -> mmap.mmap:
    """Map memory in ordinary pages: zeroing a huge page takes milliseconds on some machines, and the first write
    waits for it."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
