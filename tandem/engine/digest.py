"""Content words of KV blocks: what a block hashes to, and how that is bound to the copy it was taken from.

A block `[layers, 2, block_tokens, kv_heads, head_dim]` is read as signed little-endian words `x[r, h, c]` with
r over layers * 2 * block_tokens, h over heads and c over the words of one head. The content word of head h is

    sum over c of v[c] * (sum over r of w[r] * x[r, h, c])     modulo 2**64

with odd weights. An odd factor has an inverse modulo 2**64, so changing any single word always changes the
result; two words that change places do so unless their difference is a multiple of a high power of two. It
finds accidents, not attackers (DESIGN §5). Any tensor library with wrapping int64 arithmetic computes the same.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.core.kv import Layout

Words = NDArray[np.int64]
Bytes = bytes | bytearray | memoryview

_ROW_SEED: Final = 0x74616E64656D2D72
_WORD_SEED: Final = 0x74616E64656D2D63
_GOLDEN: Final = 0x9E3779B97F4A7C15
_U64: Final = (1 << 64) - 1
_COPY: Final = Struct("<QQ")
_SMALL_BYTES: Final = 4096
"""Up to this size, what a call costs is more than what the bytes cost."""


def row_weights(count: int) -> Words:
    """The weights w[0 … count-1], odd, as int64."""
    return _odd_words(_ROW_SEED, count)


def word_weights(count: int) -> Words:
    """The weights v[0 … count-1], odd, as int64."""
    return _odd_words(_WORD_SEED, count)


def word_bytes(layout: Layout) -> int:
    """The largest of 8, 4, 2 and 1 bytes that divides one head's vector."""
    head = layout.head_dim * layout.item_bytes
    return next(size for size in (8, 4, 2, 1) if head % size == 0)


def _odd_words(seed: int, count: int) -> Words:
    """`splitmix64` over a counter, with the lowest bit set."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) | np.uint64(1)).view(np.int64)


class Digester:
    """Computes content words for blocks of one layout."""

    def __init__(self, layout: Layout) -> None:
        size = word_bytes(layout)
        self._dtype = np.dtype(f"<i{size}")
        self._block_bytes = layout.block_bytes
        self._rows = layout.layers * 2 * layout.block_tokens
        self._heads = layout.kv_heads
        self._words = layout.head_dim * layout.item_bytes // size
        self._row_weights = row_weights(self._rows)
        self._word_weights = word_weights(self._words)

    def content_words(self, block: Bytes) -> bytes:
        """One unbound 64-bit word per KV head, little-endian, of one block's bytes."""
        assert len(block) == self._block_bytes, f"a block has {self._block_bytes} bytes, got {len(block)}"
        words = np.frombuffer(block, dtype=self._dtype).reshape(self._rows, -1)
        if self._dtype.itemsize != 8:
            words = words.astype(np.int64)
        # einsum runs down the rows with one pass over memory; multiply-then-sum costs two.
        columns = np.einsum("rc,r->c", words, self._row_weights).reshape(self._heads, self._words)
        digests: Words = columns @ self._word_weights
        return digests.astype("<i8").tobytes()

    def begin(self) -> "RunningWords":
        """The content words of one block that comes piece by piece."""
        return RunningWords(self._dtype, self._row_weights, self._heads, self._word_weights)

    @property
    def row_bytes(self) -> int:
        """Pieces for `begin` have whole rows: all heads of one position of K or V of one layer."""
        return self._heads * self._words * self._dtype.itemsize

    def content_words_each(self, blocks: Sequence[Bytes]) -> list[bytes]:
        """The content words of several blocks; small ones are put together first."""
        if len(blocks) == 1 or self._block_bytes > _SMALL_BYTES:
            return [self.content_words(block) for block in blocks]
        joined = b"".join(blocks)
        assert len(joined) == self._block_bytes * len(blocks), "a block has another size"
        return self.content_words_of(np.frombuffer(joined, dtype=self._dtype).reshape(len(blocks), -1))

    def content_words_of(self, blocks: NDArray[np.generic]) -> list[bytes]:
        """The same for many small blocks at once, given as rows of one contiguous array."""
        words = blocks.view(self._dtype).reshape(len(blocks), self._rows, -1).astype(np.int64, copy=False)
        columns = np.einsum("brc,r->bc", words, self._row_weights).reshape(len(blocks), self._heads, self._words)
        digests: Words = columns @ self._word_weights
        packed, size = digests.astype("<i8").tobytes(), 8 * self._heads
        return [packed[start : start + size] for start in range(0, len(packed), size)]


class RunningWords:
    """Content words of a block that comes piece by piece (`Digester.begin`)."""

    def __init__(
        self, dtype: "np.dtype[np.signedinteger]", row_weights: Words, heads: int, word_weights: Words
    ) -> None:
        self._dtype = dtype
        self._row_weights = row_weights
        self._heads = heads
        self._word_weights = word_weights
        self._columns = np.zeros(heads * len(word_weights), dtype=np.int64)
        self._row = 0

    def add(self, piece: Bytes) -> None:
        """The next rows."""
        words = np.frombuffer(piece, dtype=self._dtype).reshape(-1, len(self._columns))
        if self._dtype.itemsize != 8:
            words = words.astype(np.int64)
        weights = self._row_weights[self._row : self._row + len(words)]
        self._columns += np.einsum("rc,r->c", words, weights)
        self._row += len(words)

    def words(self) -> bytes:
        """The same as `Digester.content_words` of all pieces, once all rows have come."""
        assert self._row == len(self._row_weights), f"{self._row} rows came, a block has {len(self._row_weights)}"
        digests: Words = self._columns.reshape(self._heads, -1) @ self._word_weights
        return digests.astype("<i8").tobytes()


_BINDING: Final = blake2b(digest_size=8, person=b"tandem-kv-bind")
"""Copying a hash without input takes half of what making one from its parameters does."""


def bind(words: bytes, epoch: int, name: bytes, generation: int) -> bytes:
    """Tie content words to one copy: a stale handle then fails even where the bytes happen to be equal."""
    size = len(words)
    hashed = _BINDING.copy()
    hashed.update(_COPY.pack(epoch & _U64, generation) + name)
    word = hashed.digest()
    mask = int.from_bytes(word if size == 8 else word * (size // 8), "little")
    return (int.from_bytes(words, "little") ^ mask).to_bytes(size, "little")


def unbind(bound: bytes, epoch: int, name: bytes, generation: int) -> bytes:
    """The content words that `bind` was given."""
    return bind(bound, epoch, name, generation)
