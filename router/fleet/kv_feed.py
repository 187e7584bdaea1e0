"""Turns a worker's KV events into actions on the index: snapshots are swapped in whole, deltas apply only without a
gap.

Pure; the fleet carries the actions out in slices. Names stay packed (16 bytes each) until then.
"""

from collections.abc import Iterator

import msgspec

from tandem.core.kv import NAME_BYTES
from tandem.core.messages import KvDelta, KvSnapshot

_HELD_DELTAS_MAX = 4096


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some of the names that a tier has, packed."""

    tier: str
    names: bytes


class Replace(msgspec.Struct, frozen=True):
    """The worker has exactly these names, and no others in any tier."""

    pieces: tuple[Piece, ...]


class Change(msgspec.Struct, frozen=True):
    """A tier of the worker has gained and lost these names."""

    stored: bytes
    removed: bytes
    tier: str = "hbm"


class Forget(msgspec.Struct, frozen=True):
    """What the index knows of the worker is unusable: drop it and ask for a snapshot."""

    reason: str


Action = Replace | Change | Forget


class KvFeed:
    """One worker incarnation's stream of KV events. Until the first snapshot is complete nothing is known.

    One count runs through the events of all tiers, and one snapshot has the pieces of all of them. Deltas that
    arrive between its pieces are held until it is complete.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._count: int | None = None
        self._snapshot: int | None = None
        self._pieces: list[Piece] = []
        self._held: list[KvDelta] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is known and no snapshot has begun to arrive."""
        return self._count is None and self._snapshot is None

    @property
    def last(self) -> tuple[int, int] | None:
        """Epoch and number of the event up to which everything is known; None while that is not so."""
        return None if self._count is None or self._snapshot is not None else (self._epoch, self._count)

    def take(self, update: KvDelta | KvSnapshot) -> tuple[Action, ...]:
        """The actions that an event requires, in order."""
        if update.epoch != self._epoch:
            return self._lost(f"an event of epoch {update.epoch:x} came from epoch {self._epoch:x}")
        if isinstance(update, KvSnapshot):
            return self._piece(update) if len(update.names) % NAME_BYTES == 0 else self._torn()
        if len(update.stored) % NAME_BYTES or len(update.removed) % NAME_BYTES:
            return self._torn()
        return self._delta(update)

    def _delta(self, delta: KvDelta) -> tuple[Action, ...]:
        if self._snapshot is not None:
            if delta.count > self._snapshot:
                self._held.append(delta)
            return self._lost("too many events inside a snapshot") if len(self._held) > _HELD_DELTAS_MAX else ()
        if self._count is None or delta.count <= self._count:
            return ()
        if delta.count != self._count + 1:
            return self._lost(f"event {delta.count} came after event {self._count}")
        self._count = delta.count
        return (Change(delta.stored, delta.removed, delta.tier),)

    def _piece(self, piece: KvSnapshot) -> tuple[Action, ...]:
        if self._snapshot is None and self._count is not None and piece.count <= self._count:
            return ()  # Nobody asked for it: it is a repeat, and part of it would be taken for the whole.
        if self._snapshot != piece.count:
            self._snapshot = piece.count
            self._pieces = []
        self._pieces.append(Piece(piece.tier, piece.names))
        if not piece.last:
            return ()
        actions: list[Action] = [Replace(tuple(self._pieces))]
        held, self._held, self._pieces = self._held, [], []
        self._snapshot, self._count = None, piece.count
        for delta in held:
            actions.extend(self._delta(delta))
        return tuple(actions)

    def _torn(self) -> tuple[Action, ...]:
        return self._lost("an event holds a piece of a name")

    def _lost(self, reason: str) -> tuple[Action, ...]:
        self._count = self._snapshot = None
        self._pieces, self._held = [], []
        return (Forget(reason),)


def slices(packed: bytes, names: int) -> Iterator[bytes]:
    """Packed names in parts of at most `names`."""
    step = names * NAME_BYTES
    for start in range(0, len(packed), step):
        yield packed[start : start + step]
