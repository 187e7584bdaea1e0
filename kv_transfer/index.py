"""The `BlockIndex` seam: which worker holds which named blocks."""

from collections.abc import Sequence
from typing import Protocol


class BlockIndex(Protocol):
    """Exact knowledge fed by workers' events.

    A worker whose stream has a gap has no entries until its next snapshot.
    """

    def stored(self, worker: str, names: Sequence[bytes]) -> None: ...

    def removed(self, worker: str, names: Sequence[bytes]) -> None: ...

    def replace(self, worker: str, names: Sequence[bytes]) -> None:
        """Swap in a whole snapshot."""
        ...

    def drop(self, worker: str) -> None:
        """Forget a worker: link lost, gap or new incarnation."""
        ...

    def longest(self, names: Sequence[bytes]) -> dict[str, int]:
        """For each worker that has at least the first name: how many leading names it has."""
        ...
