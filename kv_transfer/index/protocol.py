"""The `BlockIndex` seam: which worker holds which named blocks, in which tier."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

TIERS: Final = ("hbm", "dram", "nvme")
"""Where a block can lie, the fastest first."""


class Held(NamedTuple):
    """How many leading blocks of a prompt a holder has. `total` of them without a gap, each in some tier; of these
    `hbm` from the first on in the engine's pool itself. `dram` and `nvme` count those that have to be read from
    there, because no faster tier of the holder has them: `total - hbm = dram + nvme + scattered`, where blocks in the
    pool behind a gap of it are `scattered`."""

    total: int
    hbm: int
    dram: int = 0
    nvme: int = 0
    known_by: str = "events"
    """`events` of the holder itself; `redis`: a holder or a feed that no link tells of; `approximate`: what was
    computed there, of a worker that tells of nothing."""

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
        """Swap in a whole snapshot of the pool; other tiers are empty until told."""
        ...

    def drop(self, worker: str) -> None:
        """Forget a worker: link lost, gap or new incarnation."""
        ...

    def longest(self, names: Sequence[bytes]) -> dict[str, Held]:
        """For each worker that has at least the first name: how many leading names it has, and where."""
        ...

    def tend(self) -> bool:
        """Do a part, of at most a millisecond or so, of what is put off; whether there is more of it."""
        ...
