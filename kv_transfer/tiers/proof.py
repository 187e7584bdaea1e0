"""What a copy in this process's memory is compared with when it is read: a checksum of the pass that wrote it.

The content words of a block (`tandem.engine.digest`) have to be the same on every engine and device, which costs
about as much as a copy. They are compared once, when the copy is written; from then on its checksum stands for them,
as a record's seal does on disk. It never leaves the process, so it can be whatever is fastest: XXH3 with 128 bits
goes through the cache at some 50 GB/s where its package is installed. It is seeded with the block's name, so that
the bytes of another block are noticed even where they are whole.
"""

from struct import Struct
from typing import Final, Protocol

Bytes = bytes | bytearray | memoryview
_HALVES: Final = Struct("<QQ")


class Proof(Protocol):
    """A checksum of a block that comes piece by piece."""

    def update(self, piece: Bytes, /) -> object: ...

    def digest(self) -> bytes: ...


class Prove(Protocol):
    """Makes checksums, from a block's name."""

    def __call__(self, name: bytes, /) -> Proof: ...

    def whole(self, name: bytes, block: Bytes) -> bytes:
        """The digest of a block that is there as a whole, in one call."""
        ...


def fastest() -> Prove | None:
    """None where no checksum is at hand that beats the content words."""
    try:
        from xxhash import xxh3_128, xxh3_128_digest
    except ImportError:
        return None

    class Xxh3:
        def __call__(self, name: bytes, /) -> Proof:
            return xxh3_128(seed=_seed(name))

        def whole(self, name: bytes, block: Bytes) -> bytes:
            return xxh3_128_digest(block, _seed(name))

    return Xxh3()


def _seed(name: bytes) -> int:
    low, high = _HALVES.unpack(name)
    seed: int = low ^ high
    return seed
