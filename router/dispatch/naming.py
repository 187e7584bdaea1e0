"""Names the blocks of prompts, without naming again the part of a prefix that is already known.

A conversation comes again with every turn, a little longer. Its names are kept beside the tokens that they stand for,
per root name, so that no tenant finds what another tenant's prompts have left. Pure.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from router.prefix_tree import PrefixTree, common
from tandem.core.kv import NAME_BYTES, BlockNames, chain_names

_KEPT_FROM: Final = 64
"""Fewer blocks are named again in less time than it takes to keep them."""


class _Prompt(NamedTuple):
    """Packed tokens in blocks of `size` bytes."""

    packed: bytes
    size: int


class _NamedBlocks(NamedTuple):
    """A `router.prefix_tree.Run`: blocks of `size` bytes and their packed names."""

    packed: bytes
    size: int
    names: bytes

    @property
    def key(self) -> bytes:
        return self.packed[: self.size]

    @property
    def units(self) -> int:
        return len(self.names) // NAME_BYTES

    @property
    def length(self) -> int:
        return len(self.packed)

    @property
    def size_bytes(self) -> int:
        return len(self.packed) + len(self.names)

    def head(self, units: int) -> Self:
        return self._replace(packed=self.packed[: units * self.size], names=self.names[: units * NAME_BYTES])

    def tail(self, units: int) -> Self:
        return self._replace(packed=self.packed[units * self.size :], names=self.names[units * NAME_BYTES :])

    def joined(self, other: Self) -> Self:
        return self._replace(packed=self.packed + other.packed, names=self.names + other.names)


class _Blocks:
    """`router.prefix_tree.Units`."""

    def key(self, sequence: _Prompt, at: int) -> bytes | None:
        key = sequence.packed[at : at + sequence.size]
        return key if len(key) == sequence.size else None

    def shared(self, run: _NamedBlocks, sequence: _Prompt, at: int) -> int:
        return common(run.packed, sequence.packed, at) // run.size


class Naming:
    """Names prompts. At most `bytes_max` bytes are kept, about; 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self._known: PrefixTree[_Prompt, _NamedBlocks] = PrefixTree(_Blocks(), bytes_max)

    @property
    def size_bytes(self) -> int:
        """Bytes that the kept prompts and names take."""
        return self._known.size_bytes

    def names(self, root: bytes, packed: bytes, block_tokens: int) -> Sequence[bytes]:
        """`tandem.core.kv.chain_names`, from what is known."""
        prompt = _Prompt(packed, 4 * block_tokens)
        if len(packed) < _KEPT_FROM * prompt.size:
            return chain_names(root, packed, block_tokens)
        known = b"".join(run.names for run in self._known.find(root, prompt))
        count = len(known) // NAME_BYTES
        new = chain_names(known[-NAME_BYTES:] or root, packed[count * prompt.size :], block_tokens)
        names = b"".join((known, *new))
        if len(new) >= _KEPT_FROM:
            self._keep(root, prompt, names)
        return BlockNames(names)

    def _keep(self, root: bytes, prompt: _Prompt, names: bytes) -> None:
        whole = len(prompt.packed) - len(prompt.packed) % prompt.size

        def rest(units: int) -> _NamedBlocks | None:
            packed = prompt.packed[units * prompt.size : whole]
            return _NamedBlocks(packed, prompt.size, names[units * NAME_BYTES :]) if packed else None

        self._known.add(root, prompt, rest)
