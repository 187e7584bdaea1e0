"""Which blocks a worker has, told to every router: snapshots in pieces, then counted deltas (DESIGN §4)."""

from collections.abc import Callable, Sequence

from tandem.core.kv import NAME_BYTES
from tandem.core.messages import KvDelta, KvSnapshot
from tandem.engine.protocol import KvChange

NAMES_PER_MESSAGE = 32_768
"""512 KiB of names."""


class BlockEvents:
    """Counts the changes of one incarnation. Both counters start again with a new epoch."""

    def __init__(self, epoch: int, names: Callable[[], tuple[bytes, ...]]) -> None:
        self._epoch = epoch
        self._names = names
        self._count = 0

    @property
    def last(self) -> tuple[int, int]:
        """Epoch and number of the last delta; 0 before the first."""
        return self._epoch, self._count

    def change(self, change: KvChange) -> tuple[KvDelta, ...]:
        """The deltas that tell of a change, usually one."""
        pieces = max(_pieces(change.stored), _pieces(change.removed))
        return tuple(
            self._delta(_part(change.stored, index), _part(change.removed, index)) for index in range(pieces)
        )

    def snapshot(self) -> tuple[KvSnapshot, ...]:
        """Everything there is now, as of the last delta; the next delta follows it."""
        names = self._names()
        pieces = max(1, _pieces(names))
        return tuple(
            KvSnapshot(self._epoch, self._count, _part(names, index), index == pieces - 1) for index in range(pieces)
        )

    def _delta(self, stored: bytes, removed: bytes) -> KvDelta:
        self._count += 1
        return KvDelta(self._epoch, self._count, stored, removed)


def _pieces(names: Sequence[bytes]) -> int:
    return -(-len(names) // NAMES_PER_MESSAGE)


def _part(names: Sequence[bytes], index: int) -> bytes:
    part = names[index * NAMES_PER_MESSAGE : (index + 1) * NAMES_PER_MESSAGE]
    assert all(len(name) == NAME_BYTES for name in part), "a block name has 16 bytes"
    return b"".join(part)
