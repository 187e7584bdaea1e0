"""The `BlockIndex` seam: which worker holds which named blocks, in which tier."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

TIERS: Final = ("hbm", "dram", "nvme")
"""Tiers in which a block can lie, the fastest first."""


class Held(NamedTuple):
    """Counts of the leading blocks of a prompt that a holder has. `total` counts the blocks without a gap, each in
    some tier. Of these, `hbm` counts the blocks, from the first on, that are in the engine's pool itself. `dram` and
    `nvme` count the blocks that must be read from that tier, because no faster tier of the holder has them: `total -
    hbm = dram + nvme + scattered`, where `scattered` blocks are in the pool behind a gap in it."""

    total: int
    hbm: int
    dram: int = 0
    nvme: int = 0
    known_by: str = "events"
    """Source of the counts: `events` of the holder itself; `redis` for a holder or a feed that no link reports;
    `approximate` for what was computed on a worker that reports nothing."""

    def times(self, blocks: int) -> "Held":
        """Each block counted as so many."""
        return self._replace(
            total=self.total * blocks, hbm=self.hbm * blocks, dram=self.dram * blocks, nvme=self.nvme * blocks
        )


class BlockIndex(Protocol):
    """Exact knowledge fed by workers' events. `tests/contract/test_block_index.py` defines the behaviour.

    A worker whose stream has a gap has no entries until its next snapshot. Names have 16 bytes. A tier that is not
    in `TIERS` is not indexed.
    """

    def stored(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None: ...

    def removed(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None: ...

    def change(self, worker: str, stored: bytes, removed: bytes, tier: str = "hbm") -> None:
        """Apply changes given as packed names: first the stored names, then the removed ones."""
        ...

    def replace(self, worker: str, names: Sequence[bytes]) -> None:
        """Replace a worker's entries by a whole snapshot of its pool; its other tiers are empty until they are
        reported."""
        ...

    def drop(self, worker: str) -> None:
        """Forget a worker: link lost, gap or new incarnation."""
        ...

    def longest(self, names: Sequence[bytes]) -> dict[str, Held]:
        """The number of leading names that each worker has, and where, for the workers that have at least the first
        name."""
        ...

    def tend(self) -> bool:
        """Do a part, of at most a millisecond or so, of what is put off; whether there is more of it."""
        ...
