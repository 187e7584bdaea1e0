"""KV blocks: names, layout, handles.

A name says *what* a block holds and is equal on every worker that would compute equal bytes; a handle says
*where* one copy lies and which incarnation wrote it. Names chain, so one name stands for the whole prefix.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final, overload

import msgspec

NAME_BYTES: Final = 16


@dataclass(frozen=True)
class RootIdentity:
    """Everything that makes equal token ids give equal KV bytes. Changing a field changes every name."""

    model_hash: str
    dtype: str
    block_tokens: int
    rope: str = ""
    kv_quantization: str = ""
    lora_hash: str = ""
    tenant_salt: str = ""

    def name(self) -> bytes:
        """The root name, 16 bytes."""
        fields = (self.model_hash, self.dtype, str(self.block_tokens), self.rope, self.kv_quantization)
        text = "\x1f".join((*fields, self.lora_hash, self.tenant_salt))
        return blake2b(text.encode(), digest_size=NAME_BYTES, person=b"tandem-kv-root").digest()


def tenant_root(root: bytes, tenant_salt: str) -> bytes:
    """A tenant's root name, from a worker's root name for the empty salt: router and worker derive it alike."""
    if not tenant_salt:
        return root
    return blake2b(root + tenant_salt.encode(), digest_size=NAME_BYTES, person=b"tandem-tenant").digest()


def adapter_root(root: bytes, adapter_hash: str) -> bytes:
    """The root name under a LoRA adapter, from that of the bare model; a tenant's root is derived from this one."""
    if not adapter_hash:
        return root
    return blake2b(root + adapter_hash.encode(), digest_size=NAME_BYTES, person=b"tandem-lora").digest()


SALT_SEPARATOR: Final = "/"
"""The separator between a tenant's own salt, which does not contain it, and the part that a client adds to keep some
of the tenant's requests apart."""


def quota_tenant(tenant_salt: str) -> str:
    """Whose quota a salt's blocks count against: that of the tenant, whatever clients add."""
    return tenant_salt.partition(SALT_SEPARATOR)[0]


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32, the form in which they travel and are hashed."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """Inverse of `pack_tokens`. Raises `struct.error` when the length is not a multiple of 4."""
    return struct.unpack(f"<{len(packed) // 4}I", packed) if len(packed) % 4 == 0 else _ragged(packed)


def _ragged(packed: bytes) -> tuple[int, ...]:
    raise struct.error(f"packed tokens have {len(packed)} bytes, not a multiple of 4")


_UNNAMED: Final = blake2b(digest_size=NAME_BYTES)
"""Copying a hash without input takes half of what making one from its parameters does."""


def child_name(parent: bytes, packed: bytes) -> bytes:
    """The name of a full block whose predecessor is `parent` and whose token ids are `packed`."""
    hashed = _UNNAMED.copy()
    hashed.update(parent + packed)
    return hashed.digest()


def tail_name(parent: bytes, packed: bytes) -> bytes:
    """The name of a partial last block. For the hand-off only: never in an index, event or tier."""
    return blake2b(parent + packed, digest_size=NAME_BYTES, person=b"tandem-kv-tail").digest()


def chain_names(root: bytes, packed: bytes, block_tokens: int) -> tuple[bytes, ...]:
    """Names of all full blocks of a prompt, each the `child_name` of the one before; the partial tail has none."""
    size = 4 * block_tokens
    whole = memoryview(packed)[: len(packed) - len(packed) % size]
    blank, names, parent = _UNNAMED.copy, list[bytes](), root
    for (block,) in struct.iter_unpack(f"{size}s", whole):
        hashed = blank()
        hashed.update(parent + block)
        parent = hashed.digest()
        names.append(parent)
    return tuple(names)


class BlockNames(Sequence[bytes]):
    """Names of consecutive blocks, packed: a quarter of the memory of as many objects, and copied at once."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // NAME_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return (self.packed[at : at + NAME_BYTES] for at in range(0, len(self.packed), NAME_BYTES))

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        """A slice of neighbours is packed again."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return BlockNames(self.packed[NAME_BYTES * start : NAME_BYTES * stop])
            return tuple(self[each] for each in range(start, stop, step))
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"name {index} of {count}")
        at = NAME_BYTES * (index % count)
        return self.packed[at : at + NAME_BYTES]


def packed_names(names: Sequence[bytes]) -> bytes:
    """Names one after the other, without a copy where they lie like that already."""
    return names.packed if isinstance(names, BlockNames) else b"".join(names)


@dataclass(frozen=True)
class Layout:
    """The physical shape of one block, so that two workers know whether bytes can be exchanged as they are.

    A block is one contiguous piece `[layers, 2, block_tokens, kv_heads, head_dim]` (K then V) of `dtype`.
    """

    engine: str
    """The engine that wrote the block. `NAME/FORMAT/MAJOR.MINOR` where versions of an engine exchange blocks of one
    format with their neighbours; any other value pairs with itself alone."""
    packing: str
    dtype: str
    item_bytes: int
    layers: int
    block_tokens: int
    kv_heads: int
    head_dim: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    isa: str = ""
    digest: str = ""
    """The algorithm that content words are computed with (`tandem.engine.digest`); empty in layouts from workers
    before protocol 2."""

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.block_tokens * self.kv_heads * self.head_dim * self.item_bytes

    def incompatibility(self, other: "Layout") -> str | None:
        """Why blocks of `other` cannot be copied here byte for byte, or None when they can."""
        if self == other:
            return None
        for field in self.__dataclass_fields__:
            ours, theirs = getattr(self, field), getattr(other, field)
            if ours != theirs and not (field == "engine" and _neighbours(ours, theirs)):
                return f"{field} differs: {ours!r} here, {theirs!r} there"
        return None


@lru_cache(maxsize=1024)
def compatibility_key(layout: Layout) -> Layout:
    """The layout without its engine's version. It is equal for all layouts whose blocks can be exchanged, but also
    for two versions that are not neighbours; `incompatibility` tells those apart."""
    kind, _, _version = layout.engine.rpartition("/")
    return replace(layout, engine=kind) if "/" in kind else layout


def _neighbours(ours: str, theirs: str) -> bool:
    """Whether two engines are the same or the next minor version, with the same format of blocks."""
    kind, _, version = ours.rpartition("/")
    other_kind, _, other_version = theirs.rpartition("/")
    major, _, minor = version.partition(".")
    other_major, _, other_minor = other_version.partition(".")
    if "/" not in kind or (kind, major) != (other_kind, other_major):
        return False
    return minor.isdecimal() and other_minor.isdecimal() and abs(int(minor) - int(other_minor)) <= 1


class Handle(msgspec.Struct, frozen=True, gc=False):
    """One copy of a block: the holder's incarnation, the slot, and the slot's generation when it was written.

    `digests` are the content words of its bytes (`tandem.engine.digest`), bound to (epoch, name, generation).
    """

    epoch: int
    name: bytes
    slot: int
    generation: int
    digests: bytes
