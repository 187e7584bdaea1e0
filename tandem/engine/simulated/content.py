"""The content of simulated KV, and what follows from it.

Position i of a sequence has one K word c[i] and one V word y * c[i]. With odd pseudo-random weights k[i], v[i],
everything attended up to position n is summed up in

    E[n] = sum over i < n of k[i] * K[i] + v[i] * V[i]      modulo 2**64

read from the slots themselves: each word has an odd factor, so changing any one word changes E, and so does changing
the order. A position's content follows from what it attends to and its token: c[n] = h * E[n] + m(token, n). Within
one chunk that recurrence is linear, E[n+1] = r[n] * E[n] + g[n] * m[n], and has a closed form over the running
products of r (invertible, as r is odd), so a chunk costs a few vector operations and the cuts between chunks make no
difference.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.engine.simulated.model import SimulatedModel

Words = NDArray[np.uint64]

U64: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
_H: Final = 0x5851F42D4C957F2E  # even, so that every r = 1 + h * g is odd
_Y: Final = 0x14057B7EF767814E  # even, so that every g = k + y * v is odd
_POSITION: Final = 0xD1342543DE82EF95

# As words, made once: these are used in every step.
_GOLDEN_WORD: Final = np.uint64(GOLDEN)
_H_WORD: Final = np.uint64(_H)
_Y_WORD: Final = np.uint64(_Y)
_POSITION_WORD: Final = np.uint64(_POSITION)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_AGAIN: Final = np.uint64(0x94D049BB133111EB)


def scramble(x: Words) -> Words:
    """The finalizer of splitmix64: a bijection in which every input bit reaches every output bit."""
    x = (x ^ (x >> _30)) * _MIX
    x = (x ^ (x >> _27)) * _MIX_AGAIN
    return x ^ (x >> _31)


def scramble_one(x: int) -> int:
    """`scramble` of one number below 2**64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & U64
    return x ^ (x >> 31)


def _odd(seed: int, count: int) -> Words:
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(seed & U64)
    return scramble(counter) | np.uint64(1)


def _inverse(odd: Words) -> Words:
    """Inverses modulo 2**64 by Newton's iteration; each round doubles the valid low bits, from 3 to 96."""
    inverse = odd.copy()
    for _ in range(5):
        inverse = inverse * (np.uint64(2) - odd * inverse)
    return inverse


@dataclass(frozen=True)
class Tables:
    """Constants: row b of `coefficients` is k, then v, of the positions of block b; the rest, per position, is the
    closed form."""

    k: Words
    v: Words
    coefficients: Words
    products: Words
    products_inverse: Words
    gains: Words
    growth: list[int]
    """g, for who follows single tokens."""


@lru_cache(maxsize=8)
def tables(context_tokens: int, block_tokens: int) -> Tables:
    """The constants for a context; shared by all engines of a process."""
    blocks = -(-context_tokens // block_tokens) + 1
    count = blocks * block_tokens
    k, v = _odd(1, count), _odd(2, count)
    coefficients = np.stack([k.reshape(blocks, -1), v.reshape(blocks, -1)], axis=1).reshape(blocks, -1)
    g = k + np.uint64(_Y) * v
    products = np.ones(count + 1, dtype=np.uint64)
    np.cumprod(np.uint64(1) + np.uint64(_H) * g, out=products[1:])
    inverse = _inverse(products)
    return Tables(k, v, coefficients, products, inverse, g * inverse[1:], g.tolist())


class Content:
    """The arithmetic of one model. Pure: it owns constants only."""

    def __init__(self, model: SimulatedModel) -> None:
        self._block_tokens = model.block_tokens
        self._tables = tables(model.context_tokens, model.block_tokens)
        salt = blake2b(f"{model.name}/{model.seed}".encode(), digest_size=8).digest()
        self._salt_int = int.from_bytes(salt, "little")
        self._salt = np.uint64(self._salt_int)

    def block_sums(self, words: Words, ends: NDArray[np.int64]) -> Words:
        """The sums that blocks `[blocks, 2 * block_tokens]` add to E, each counted up to the sequence's position
        `ends[i]`, which lies inside the block or at its end. `words` is overwritten."""
        size = self._block_tokens
        index = (ends - 1) // size
        used = ends - index * size
        if (used < size).any():
            words = words.reshape(-1, 2, size) * (np.arange(size) < used[:, None])[:, None, :]
            words = words.reshape(-1, 2 * size)
        sums: Words = np.einsum("bw,bw->b", words, self._tables.coefficients[index])
        return sums

    def embedded(self, tokens: Words, positions: Words) -> Words:
        """m(token, position)."""
        return scramble(tokens * _GOLDEN_WORD + positions * _POSITION_WORD + self._salt)

    def chunk(self, before: int, tokens: Words, start: int) -> tuple[Words, Words]:
        """K words of consecutive tokens from position `start` on, given E before them; and E before the first, after
        the first, and so on."""
        t, end = self._tables, start + len(tokens)
        embedded = self.embedded(tokens, np.arange(start, end, dtype=np.uint64))
        scaled = np.empty(len(tokens) + 1, dtype=np.uint64)
        scaled[0] = before * int(t.products_inverse[start]) & U64
        np.multiply(t.gains[start:end], embedded, out=scaled[1:])
        states = np.cumsum(scaled, dtype=np.uint64) * t.products[start : end + 1]
        return _H_WORD * states[:-1] + embedded, states

    def singles(self, before: Words, tokens: Words, positions: NDArray[np.intp]) -> tuple[Words, Words]:
        """The K word of one token for each of many sequences, given E before it; and E after it."""
        t = self._tables
        content = _H_WORD * before + self.embedded(tokens, positions.astype(np.uint64))
        after = before + t.k[positions] * content + t.v[positions] * self.values(content)
        return content, after

    def single(self, before: int, token: int, position: int) -> tuple[int, int]:
        """The K word of one token of one sequence, given E before it; and E after it. Uses no arrays."""
        embedded = scramble_one((token * GOLDEN + position * _POSITION + self._salt_int) & U64)
        content = (_H * before + embedded) & U64
        return content, (before + self._tables.growth[position] * content) & U64

    def next_state(self, state: int, token: int, position: int) -> int:
        """E after one more token: for who follows a single sequence."""
        return self.single(state, token, position)[1]

    def values(self, content: Words) -> Words:
        """V words of K words."""
        return content * _Y_WORD

    def value(self, content: int) -> int:
        """The V word of a K word."""
        return content * _Y & U64

    def block_bytes(self, tokens: tuple[int, ...], block: int) -> bytes:
        """The bytes a right block of a sequence holds: the block with index `block`, unused positions zero."""
        size = self._block_tokens
        content, _ = self.chunk(0, np.array(tokens, dtype=np.uint64), 0)
        words = np.zeros(2 * size, dtype=np.uint64)
        piece = content[block * size : (block + 1) * size]
        words[: len(piece)] = piece
        words[size : size + len(piece)] = self.values(piece)
        return words.tobytes()
