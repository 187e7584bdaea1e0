"""Remembers recent prompts of a router, to say why the next one was not found in a cache. Pure.

Prompts are remembered as token ids in a radix tree per root name, which the tenant is part of: no look-up of one
tenant's prompt can find another's. All of them together are bounded in bytes; the least recently used goes first.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import msgspec

from router.dispatch.why_missed import Others, Where
from router.prefix_tree import PrefixTree, common

_TOKEN_BYTES: Final = 4
_STARTS_MAX: Final = 16_384
_OWNERS_MAX: Final = 8
"""Under how many roots one beginning is remembered."""


class PromptOwner(msgspec.Struct, frozen=True, gc=False):
    """Whose a prompt is, and which model computes it. `root` is the workers' root name with the LoRA adapter and
    without the tenant."""

    tenant: str
    tenant_salt: str
    root: bytes
    revision: str


class KnownPrefix(msgspec.Struct, frozen=True, gc=False):
    """The number of leading tokens that a prompt shares with earlier ones, whether one of those went on differently,
    and where the last of them were."""

    tokens: int
    parted: bool
    places: tuple[tuple[int, Where], ...]
    """(tokens up to the end of a part, where this part was last)."""

    def where(self, token: int) -> Where | None:
        """The place where the KV of a known token was last."""
        return next((where for end, where in self.places if token < end), None)


class _Tokens(msgspec.Struct, gc=False):
    """A `router.prefix_tree.Run` whose units are tokens."""

    packed: bytes
    where: Where
    parted: bool = False
    """Some prompt went on otherwise than others after this."""

    @property
    def key(self) -> Hashable:
        return self.packed[:_TOKEN_BYTES]

    @property
    def units(self) -> int:
        return len(self.packed) // _TOKEN_BYTES

    @property
    def length(self) -> int:
        return len(self.packed)

    @property
    def size_bytes(self) -> int:
        return len(self.packed) + 200

    def head(self, units: int) -> "_Tokens":
        return _Tokens(self.packed[: units * _TOKEN_BYTES], self.where, parted=True)

    def tail(self, units: int) -> "_Tokens":
        return _Tokens(self.packed[units * _TOKEN_BYTES :], self.where, self.parted)

    def joined(self, other: "_Tokens") -> "_Tokens":
        return _Tokens(self.packed + other.packed, self.where, other.parted)


class _ByToken:
    """`router.prefix_tree.Units` of packed token ids."""

    def key(self, sequence: bytes, at: int) -> Hashable | None:
        return sequence[at : at + _TOKEN_BYTES] or None

    def shared(self, run: _Tokens, sequence: bytes, at: int) -> int:
        return common(run.packed, sequence, at) // _TOKEN_BYTES


class ReuseHistory:
    """The history of prompts. The dispatcher owns it and reports every prompt to it once."""

    def __init__(self, bytes_max: int) -> None:
        self._tree: PrefixTree[bytes, _Tokens] = PrefixTree(_ByToken(), bytes_max)
        self._starts: OrderedDict[bytes, tuple[PromptOwner, ...]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Approximate size in bytes of the remembered prompts."""
        return self._tree.size_bytes

    def look(self, owner: PromptOwner, prompt: bytes, where: Where) -> KnownPrefix:
        """The part of a prompt's beginning that is remembered. The prompt itself is remembered from now on: it is
        computed at `where`, which then has all of it."""
        place, known = _place(owner), len(prompt) // _TOKEN_BYTES

        def rest(units: int) -> _Tokens | None:
            nonlocal known
            known = units
            packed = prompt[units * _TOKEN_BYTES :]
            return _Tokens(packed, where) if packed else None

        tokens, places, parted = 0, list[tuple[int, Where]](), False
        for run in self._tree.add(place, prompt, rest):
            if tokens < known:
                tokens += run.units
                places.append((min(tokens, known), run.where))
                parted = run.parted
            run.where = where
        return KnownPrefix(known, parted and known * _TOKEN_BYTES < len(prompt), tuple(places))

    def others(self, owner: PromptOwner, prompt: bytes, block_tokens: int) -> Others:
        """The other owners of prompts that begin with the same block."""
        found = self._starts.get(prompt[: block_tokens * _TOKEN_BYTES], ())
        own = [other for other in found if other.tenant == owner.tenant]
        same_salt = [other for other in own if other.tenant_salt == owner.tenant_salt and other.root != owner.root]
        return Others(
            salt=any(other.tenant_salt != owner.tenant_salt and other.root == owner.root for other in own),
            revision=any(other.revision != owner.revision for other in same_salt),
            variant=any(other.revision == owner.revision for other in same_salt),
            tenant=len(own) < len(found),
        )

    def begun(self, owner: PromptOwner, prompt: bytes, block_tokens: int) -> None:
        """Remember who asked for something that begins with this block."""
        start = prompt[: block_tokens * _TOKEN_BYTES]
        if len(start) < block_tokens * _TOKEN_BYTES:
            return
        owners = self._starts.get(start, ())
        if owners[-1:] != (owner,):
            self._starts[start] = (*[other for other in owners if other != owner][1 - _OWNERS_MAX :], owner)
        self._starts.move_to_end(start)
        if len(self._starts) > _STARTS_MAX:
            self._starts.popitem(last=False)


def _place(owner: PromptOwner) -> Hashable:
    return owner.root, owner.tenant, owner.tenant_salt
