"""`BlockIndex` in dictionaries: for each tier and name a set of workers, for each worker its names.

For small worlds, such as the simulator's: a look-up costs a dictionary access per name and tier, a name some 400
bytes. A worker is one bit of a Python integer, so intersecting the workers that have all names so far with those that
have this name is a single `&` for any realistic number of workers. Dropping a worker masks its bit at once; the
updates that follow clear its entries little by little, so that losing a worker with a million names delays no caller.
"""

from collections import deque
from collections.abc import KeysView, Sequence
from typing import Final

from kv_transfer.index.leading import leading
from kv_transfer.index.protocol import TIERS, Held
from tandem.core.kv import NAME_BYTES

_SWEEP_FLOOR: Final = 64
_TENDED: Final = 1000

Names = dict[str, dict[bytes, None]]
"""One worker's names by tier."""


class MemoryIndex:
    """Exact and synchronous."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[bytes, int]] = {tier: {} for tier in TIERS}
        self._names: dict[str, Names] = {}
        self._bits: dict[str, int] = {}
        self._workers: list[str | None] = []
        self._live = 0
        self._dropped: deque[tuple[int, Names]] = deque()

    def stored(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None:
        if tier not in TIERS:
            return
        bit = self._bit(worker)
        own, holders = self._names[worker][tier], self._holders[tier]
        for name in names:
            own[name] = None
            holders[name] = holders.get(name, 0) | bit
        self._sweep(2 * len(names) + _SWEEP_FLOOR)

    def removed(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None:
        if worker not in self._names or tier not in TIERS:
            return
        bit, own, holders = self._bits[worker], self._names[worker][tier], self._holders[tier]
        for name in names:
            if name in own:
                del own[name]
                _clear(holders, name, bit)
        self._sweep(2 * len(names) + _SWEEP_FLOOR)

    def change(self, worker: str, stored: bytes, removed: bytes, tier: str = "hbm") -> None:
        if stored:
            self.stored(worker, _unpacked(stored), tier)
        if removed:
            self.removed(worker, _unpacked(removed), tier)

    def replace(self, worker: str, names: Sequence[bytes]) -> None:
        self.drop(worker)
        self.stored(worker, names)

    def drop(self, worker: str) -> None:
        own = self._names.pop(worker, None)
        if own is not None:
            bit = self._bits.pop(worker)
            self._live &= ~bit
            self._dropped.append((bit, own))

    def names(self, worker: str, tier: str = "hbm") -> KeysView[bytes]:
        """Names that one worker is known to have in a tier."""
        own = self._names.get(worker)
        return own[tier].keys() if own is not None else {}.keys()

    def longest(self, names: Sequence[bytes]) -> dict[str, Held]:
        hbm, dram, nvme = (self._holders[tier].get for tier in TIERS)
        found: dict[str, Held] = {}
        rows = ((hbm(name, 0), dram(name, 0), nvme(name, 0)) for name in names)
        for number, held in leading(rows, self._live).items():
            worker = self._workers[number]
            assert worker is not None, "a live bit belongs to no worker"
            found[worker] = held
        return found

    def tend(self) -> bool:
        self._sweep(_TENDED)
        return bool(self._dropped)

    def _bit(self, worker: str) -> int:
        bit = self._bits.get(worker)
        if bit is None:
            place = self._workers.index(None) if None in self._workers else len(self._workers)
            self._workers[place : place + 1] = [worker]
            bit = self._bits[worker] = 1 << place
            self._names[worker] = {tier: {} for tier in TIERS}
            self._live |= bit
        return bit

    def _sweep(self, budget: int) -> None:
        """Clear up to `budget` entries of dropped workers; a bit is free again when its last entry is gone."""
        while self._dropped and budget > 0:
            bit, by_tier = self._dropped[0]
            for tier, names in by_tier.items():
                while names and budget > 0:
                    _clear(self._holders[tier], names.popitem()[0], bit)
                    budget -= 1
            if not any(by_tier.values()):
                self._dropped.popleft()
                self._workers[bit.bit_length() - 1] = None


def _clear(holders: dict[bytes, int], name: bytes, bit: int) -> None:
    left = holders[name] & ~bit
    if left:
        holders[name] = left
    else:
        del holders[name]


def _unpacked(packed: bytes) -> list[bytes]:
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]
