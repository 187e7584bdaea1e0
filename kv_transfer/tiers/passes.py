"""One pass over a block for everything that reads it: it goes through piece by piece, each while it is in the cache.

Going over a large block once to copy it and again for each checksum would wait for memory every time.
"""

from collections.abc import Callable
from typing import Final

from tandem.engine.digest import Digester

PIECE_BYTES: Final = 512 << 10


class Passes:
    """Cuts blocks of one layout into pieces. `pieces` is where they are."""

    def __init__(self, digester: Digester, block_bytes: int) -> None:
        self.digester = digester
        starts = range(0, block_bytes, PIECE_BYTES)
        self.pieces = tuple(slice(start, min(start + PIECE_BYTES, block_bytes)) for start in starts)

    def words_while(self, work: Callable[[slice], memoryview]) -> bytes:
        """Do `work` on each piece and give the content words of what it returns."""
        if len(self.pieces) == 1:
            return self.digester.content_words(work(self.pieces[0]))
        running = self.digester.begin()
        for piece in self.pieces:
            running.add(work(piece))
        return running.words()
