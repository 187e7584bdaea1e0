"""Report to every router which blocks a worker has: snapshots in pieces, then counted deltas."""

from collections.abc import Callable, Mapping, Sequence

from tandem.core.kv import NAME_BYTES
from tandem.core.messages import KvDelta, KvSnapshot
from tandem.engine.protocol import KvChange

NAMES_PER_MESSAGE = 32_768
"""512 KiB of names."""

POOL = "hbm"
"""The tier that is the engine's own pool."""


class BlockEvents:
    """Counts the changes of one incarnation, those of all tiers together. Both counters start again with a new epoch.

    `names` gives what the engine's pool has, `lower` what each tier below it has.
    """

    def __init__(
        self,
        epoch: int,
        names: Callable[[], tuple[bytes, ...]],
        lower: Callable[[], Mapping[str, tuple[bytes, ...]]] | None = None,
    ) -> None:
        self._epoch = epoch
        self._names = names
        self._lower = lower
        self._count = 0

    @property
    def last(self) -> tuple[int, int]:
        """Epoch and number of the last delta; 0 before the first."""
        return self._epoch, self._count

    def change(self, change: KvChange, tier: str = POOL) -> tuple[KvDelta, ...]:
        """The deltas that report a change of one tier; usually one delta."""
        if not (change.stored or change.removed):
            return ()
        pieces = max(_pieces(change.stored), _pieces(change.removed))
        return tuple(
            self._delta(_part(change.stored, index), _part(change.removed, index), tier) for index in range(pieces)
        )

    def snapshot(self) -> tuple[KvSnapshot, ...]:
        """Everything there is now in all tiers, as of the last delta; the next delta follows it."""
        tiers = {POOL: self._names(), **(self._lower() if self._lower is not None else {})}
        parts = [(tier, _part(names, index)) for tier, names in tiers.items() for index in range(_pieces(names))]
        parts = parts or [(POOL, b"")]
        return tuple(
            KvSnapshot(self._epoch, self._count, packed, number == len(parts), tier)
            for number, (tier, packed) in enumerate(parts, start=1)
        )

    def _delta(self, stored: bytes, removed: bytes, tier: str) -> KvDelta:
        self._count += 1
        return KvDelta(self._epoch, self._count, stored, removed, tier)


def _pieces(names: Sequence[bytes]) -> int:
    return -(-len(names) // NAMES_PER_MESSAGE)


def _part(names: Sequence[bytes], index: int) -> bytes:
    part = names[index * NAMES_PER_MESSAGE : (index + 1) * NAMES_PER_MESSAGE]
    assert all(len(name) == NAME_BYTES for name in part), "a block name has 16 bytes"
    return b"".join(part)
