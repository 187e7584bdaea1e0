"""The entropy seam, and the per-position randomness of sampling.

`tandem.process.system.SystemEntropy` draws from the operating system; `SeededEntropy` replays a seed.
"""

from hashlib import blake2b
from typing import Protocol

_U64 = (1 << 64) - 1


class Entropy(Protocol):
    """The source of a process's unpredictable numbers."""

    def u64(self) -> int:
        """A uniform integer in [0, 2**64)."""
        ...

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes, fit for keys and identifiers."""
        ...


class SeededEntropy:
    """A reproducible stream: the same seed and label give the same draws in every process."""

    def __init__(self, seed: int, label: str = "") -> None:
        self._key = blake2b(f"{seed}/{label}".encode(), digest_size=32).digest()
        self._keyed = blake2b(key=self._key, digest_size=64)
        self._count = 0

    def u64(self) -> int:
        return int.from_bytes(self._next()[:8], "little")

    def token(self, size: int) -> bytes:
        out = self._next() if size else b""
        while len(out) < size:
            out += self._next()
        return out[:size]

    def u64s(self, count: int) -> list[int]:
        """The results of `count` calls of `u64`, in one call."""
        return [int.from_bytes(self._next()[:8], "little") for _ in range(count)]

    def _next(self) -> bytes:
        """The next 64 bytes: the keyed hash of their number."""
        self._count += 1
        # Copying the state after the key costs less than taking in the key again.
        hashed = self._keyed.copy()
        hashed.update(self._count.to_bytes(8, "little"))
        return hashed.digest()

    def fork(self, label: str) -> "SeededEntropy":
        """An independent stream, so that adding a draw in one place does not move the draws of another."""
        return SeededEntropy(int.from_bytes(self._key[:8], "little"), label)


def unit(entropy: Entropy) -> float:
    """A uniform float in [0, 1) with 53 random bits."""
    return (entropy.u64() >> 11) / (1 << 53)


def below(entropy: Entropy, bound: int) -> int:
    """A uniform integer in [0, bound); the bias is below bound / 2**64."""
    return entropy.u64() * bound >> 64


def position_u64(seed: int, sequence: int, position: int) -> int:
    """The random word of one output position: a pure function, so any worker draws the same."""
    raw = blake2b(
        (seed & _U64).to_bytes(8, "little") + sequence.to_bytes(4, "little") + position.to_bytes(8, "little"),
        digest_size=8,
    ).digest()
    return int.from_bytes(raw, "little")


def position_unit(seed: int, sequence: int, position: int) -> float:
    """`position_u64` as a uniform float in [0, 1)."""
    return (position_u64(seed, sequence, position) >> 11) / (1 << 53)
