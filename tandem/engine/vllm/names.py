"""Translate vLLM's prefix-cache events about blocks into Tandem's block names. Pure; imports no vLLM.

vLLM names a block by a hash of its own. An event carries that hash, the parent's hash and the token ids, from which
the Tandem name follows. A chain begins at a cache salt, which is the root name of the request that made it (see
`requests.cache_salt`).
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandem.core.kv import child_name, pack_tokens
from tandem.engine.protocol import KvChange
from tandem.engine.vllm.requests import root_of

Hash = bytes


class BlockStored(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Consecutive blocks of a chain are in the prefix cache. `extra_keys` has the cache salt for a chain's first."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    extra_keys: list[list[object] | None] | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    block_hashes: list[Hash]


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, gc=False):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The changes that one engine step made to the prefix cache."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


decode_batch: Final = msgspec.msgpack.Decoder(EventBatch).decode


@dataclass
class _Chain:
    """A block of vLLM's cache: its name, None under a private root, and how many copies there are."""

    name: bytes | None
    copies: int = 0


@dataclass
class _Told:
    stored: dict[bytes, None] = field(default_factory=dict)
    removed: dict[bytes, None] = field(default_factory=dict)

    def store(self, name: bytes) -> None:
        if self.removed.pop(name, 0) == 0:
            self.stored[name] = None

    def remove(self, name: bytes) -> None:
        if self.stored.pop(name, 0) == 0:
            self.removed[name] = None


class CachedNames:
    """The names of all full blocks in vLLM's prefix cache, as far as its events tell.

    A chain whose beginning was missed stays unknown: blocks that cannot be named are not reported.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._chains: dict[Hash, _Chain] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def snapshot(self) -> tuple[bytes, ...]:
        return tuple(chain.name for chain in self._chains.values() if chain.name is not None)

    def apply(self, batch: EventBatch) -> KvChange:
        """Apply a batch of events; gives the change of names that it means."""
        told = _Told()
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event, told)
                case BlockRemoved():
                    for block in event.block_hashes:
                        self._remove(block, told)
                case AllBlocksCleared():
                    self._clear(told)
        return _change(told)

    def forget(self) -> KvChange:
        """Events were lost for good: nothing known is certain any more."""
        told = _Told()
        self._clear(told)
        return _change(told)

    def _store(self, event: BlockStored, told: _Told) -> None:
        if event.block_size != self._block_tokens:
            return
        parent = self._parent(event)
        if parent is None:
            return
        size, tokens = event.block_size, event.token_ids
        for index, block in enumerate(event.block_hashes):
            name = parent and child_name(parent, pack_tokens(tokens[index * size : (index + 1) * size]))
            chain = self._chains.setdefault(block, _Chain(name or None))
            chain.copies += 1
            if chain.copies == 1 and chain.name is not None:
                told.store(chain.name)
            parent = name

    def _parent(self, event: BlockStored) -> bytes | None:
        """The name before the first block, empty for a private chain; None when it is not known."""
        if event.parent_block_hash is not None:
            found = self._chains.get(event.parent_block_hash)
            return None if found is None else found.name or b""
        keys = event.extra_keys[0] if event.extra_keys else None
        salt = keys[-1] if keys else None
        return root_of(salt) or b"" if isinstance(salt, str) else None

    def _remove(self, block: Hash, told: _Told) -> None:
        chain = self._chains.get(block)
        if chain is None:
            return
        chain.copies -= 1
        if chain.copies == 0:
            del self._chains[block]
            if chain.name is not None:
                told.remove(chain.name)

    def _clear(self, told: _Told) -> None:
        for chain in self._chains.values():
            if chain.name is not None:
                told.remove(chain.name)
        self._chains.clear()


class NameUnion:
    """The union of the names that several sources hold. Only the first store and the last removal of each are
    reported."""

    def __init__(self) -> None:
        self._held: dict[bytes, int] = {}

    def snapshot(self) -> tuple[bytes, ...]:
        return tuple(self._held)

    def apply(self, change: KvChange) -> KvChange:
        """Apply a source's change; gives what it changes in the union."""
        removed = tuple(name for name in change.removed if self._drop(name))
        return KvChange(tuple(name for name in change.stored if self._add(name)), removed)

    def _add(self, name: bytes) -> bool:
        self._held[name] = count = self._held.get(name, 0) + 1
        return count == 1

    def _drop(self, name: bytes) -> bool:
        count = self._held.get(name, 0) - 1
        if count > 0:
            self._held[name] = count
            return False
        return self._held.pop(name, None) is not None


def _change(told: _Told) -> KvChange:
    return KvChange(tuple(told.stored), tuple(told.removed))
