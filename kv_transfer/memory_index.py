"""`kv_transfer.index.BlockIndex` in memory: for each name a bit set of workers, for each worker its names.

A worker is one bit of a Python integer, so intersecting "who has all names so far" with "who has this name" is a
single `&` for any realistic number of workers. Dropping a worker masks its bit at once; its entries are cleared
little by little by the updates that follow, so that losing a worker with a million names holds nobody up.
"""

from collections import deque
from collections.abc import KeysView, Sequence
from typing import Final

_SWEEP_FLOOR: Final = 64


class MemoryIndex:
    """Exact and synchronous. `longest` costs one dictionary look-up per name that some worker still has."""

    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}
        self._names: dict[str, dict[bytes, None]] = {}
        self._bits: dict[str, int] = {}
        self._workers: list[str | None] = []
        self._live = 0
        self._dropped: deque[tuple[int, dict[bytes, None]]] = deque()

    def stored(self, worker: str, names: Sequence[bytes]) -> None:
        bit = self._bit(worker)
        own, holders = self._names[worker], self._holders
        for name in names:
            own[name] = None
            holders[name] = holders.get(name, 0) | bit
        self._sweep(2 * len(names) + _SWEEP_FLOOR)

    def removed(self, worker: str, names: Sequence[bytes]) -> None:
        own = self._names.get(worker)
        if own is None:
            return
        bit = self._bits[worker]
        for name in names:
            if name in own:
                del own[name]
                self._clear(name, bit)
        self._sweep(2 * len(names) + _SWEEP_FLOOR)

    def replace(self, worker: str, names: Sequence[bytes]) -> None:
        self.drop(worker)
        self.stored(worker, names)

    def drop(self, worker: str) -> None:
        own = self._names.pop(worker, None)
        if own is not None:
            bit = self._bits.pop(worker)
            self._live &= ~bit
            self._dropped.append((bit, own))

    def names(self, worker: str) -> KeysView[bytes]:
        """What is known of one worker."""
        return self._names.get(worker, {}).keys()

    def longest(self, names: Sequence[bytes]) -> dict[str, int]:
        holders, found = self._holders, dict[str, int]()
        alive = self._live & holders.get(names[0], 0) if names else 0
        count = 1
        while alive and count < len(names):
            left = alive & holders.get(names[count], 0)
            if left != alive:
                self._note(found, alive & ~left, count)
                alive = left
            count += 1
        self._note(found, alive, len(names))
        return found

    def _note(self, found: dict[str, int], bits: int, count: int) -> None:
        while bits:
            lowest = bits & -bits
            worker = self._workers[lowest.bit_length() - 1]
            assert worker is not None, "a live bit belongs to no worker"
            found[worker] = count
            bits ^= lowest

    def _bit(self, worker: str) -> int:
        bit = self._bits.get(worker)
        if bit is None:
            place = self._workers.index(None) if None in self._workers else len(self._workers)
            self._workers[place : place + 1] = [worker]
            bit = self._bits[worker] = 1 << place
            self._names[worker] = {}
            self._live |= bit
        return bit

    def _sweep(self, budget: int) -> None:
        """Clear up to `budget` entries of dropped workers; a bit is free again when its last entry is gone."""
        while self._dropped and budget > 0:
            bit, names = self._dropped[0]
            while names and budget > 0:
                self._clear(names.popitem()[0], bit)
                budget -= 1
            if not names:
                self._dropped.popleft()
                self._workers[bit.bit_length() - 1] = None

    def _clear(self, name: bytes, bit: int) -> None:
        left = self._holders[name] & ~bit
        if left:
            self._holders[name] = left
        else:
            del self._holders[name]
