"""Content words of KV blocks: what a block hashes to, and how that is bound to the copy it was taken from.

The content words of a block are the 128 bits of XXH3 over its bytes, in canonical (big-endian) order. XXH3 reads
memory faster than `memcpy` copies it. A block is hashed once where it becomes complete and once wherever it arrives.
That finds accidents, not attackers: damaged, torn, late, exchanged bytes. `DIGEST` names the algorithm in
every layout, so that workers which hash differently never exchange blocks.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128, xxh3_128_digest

from tandem.core.kv import Layout

Bytes = bytes | bytearray | memoryview

DIGEST: Final = "xxh3-128"
"""`Layout.digest` of every engine whose blocks have these content words."""

RELEASING_BYTES: Final = 64 << 10
"""The size in bytes above which the library releases the interpreter while it hashes, so that other threads run
meanwhile."""

_U64: Final = (1 << 64) - 1
_packed: Final = Struct("<QQ").pack
_number: Final = int.from_bytes
"""Big-endian, as the words themselves."""
_WORDS_BYTES: Final = 16


class Digester:
    """Computes content words for blocks of one layout. Safe to be shared between threads."""

    def __init__(self, layout: Layout) -> None:
        self.block_bytes = layout.block_bytes

    def content_words(self, block: Bytes) -> bytes:
        """The unbound content words, 16 bytes, of one block's bytes."""
        assert len(block) == self.block_bytes, f"a block has {self.block_bytes} bytes, got {len(block)}"
        return xxh3_128_digest(block)

    def begin(self) -> "RunningWords":
        """The content words of one block that comes piece by piece."""
        return RunningWords(self.block_bytes)

    def content_words_each(self, blocks: Sequence[Bytes]) -> list[bytes]:
        """The content words of several blocks."""
        return [self.content_words(block) for block in blocks]

    def content_words_of(self, blocks: NDArray[np.generic]) -> list[bytes]:
        """The content words of each block, for blocks that are rows of one array; each row is contiguous."""
        rows = blocks.view(np.uint8).reshape(len(blocks), -1)
        return [self.content_words(row.data) for row in rows]


class RunningWords:
    """Content words of a block that comes piece by piece (`Digester.begin`)."""

    def __init__(self, block_bytes: int) -> None:
        self._hasher = xxh3_128()
        self._left = block_bytes

    def add(self, piece: Bytes) -> None:
        """The next bytes."""
        self._hasher.update(piece)
        self._left -= len(piece)

    def words(self) -> bytes:
        """The content words of the block, once all its pieces have come: the same as `Digester.content_words` of all
        of them."""
        assert self._left == 0, f"{self._left} bytes of the block have not come"
        return self._hasher.digest()


def bind(words: bytes, epoch: int, name: bytes, generation: int) -> bytes:
    """Tie content words to one copy: a stale handle then fails even where the bytes happen to be equal."""
    mask = xxh3_128_digest(_packed(epoch & _U64, generation) + name)
    return (_number(words) ^ _number(mask)).to_bytes(_WORDS_BYTES)


def unbind(bound: bytes, epoch: int, name: bytes, generation: int) -> bytes:
    """The content words that `bind` was given."""
    return bind(bound, epoch, name, generation)
