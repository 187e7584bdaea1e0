"""The `StorageBackend` seam: where one tier keeps its bytes. It knows places; names, quotas and order are its
owner's.

`kv_transfer.tiers.dram` and `kv_transfer.tiers.nvme` are the real ones, `kv_transfer.tiers.memory_backend` stands for
both in tests and simulation.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tandem.core.kv import Handle, Layout
from tandem.engine.protocol import BlockMemory


class HeldSpace(Protocol):
    """The part of the engine's block space that tiers need (`tandem.engine.protocol.BlockSpace` has it)."""

    @property
    def epoch(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def memory(self) -> BlockMemory: ...

    def hold(self, name: bytes) -> Handle | None:
        """Keep the complete block `name` where it is until `unhold`; None when it is not here."""
        ...

    def unhold(self, slot: int) -> None:
        """Undo one `hold` of the slot."""
        ...


class Item(msgspec.Struct, frozen=True, gc=False):
    """A block to be written: its bytes are in `slot` of the memory that comes with it."""

    name: bytes
    tenant: str
    slot: int
    words: bytes
    """Unbound content words of the block."""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A block to be read from `place` into `slot`. `index` is the reader's."""

    index: int
    name: bytes
    place: int
    slot: int


class BlockRead(msgspec.Struct, frozen=True, gc=False):
    """The bytes are in the slot and are those of `words`."""

    index: int
    words: bytes


class BlockReadFailed(msgspec.Struct, frozen=True, gc=False):
    """The block cannot be read. `reason` is a metric label."""

    index: int
    reason: str


class Record(msgspec.Struct, frozen=True, gc=False):
    """A block that was found where an earlier run had left it."""

    name: bytes
    tenant: str
    place: int


class Reading(Protocol):
    """A read that brings blocks from a backend into slots."""

    def results(self) -> AsyncGenerator[tuple[BlockRead | BlockReadFailed, ...], None]:
        """Results of the reads, in the order in which they were requested, a batch at a time."""
        ...

    async def abandon(self) -> None:
        """Stop. When this returns no byte can land any more."""
        ...

    @property
    def took_s(self) -> float | None:
        """Seconds from the request to the last byte; None until everything has arrived."""
        ...


class BackendOwner(Protocol):
    """The owner of a shelf, which decides what lies on it. Called on the event loop."""

    def found(self, records: Sequence[Record]) -> Sequence[bool]:
        """Blocks of an earlier run; whether each is kept."""
        ...

    def lost(self, names: Sequence[bytes], reason: str) -> None:
        """Report blocks that can no longer be read; their places are already gone."""
        ...

    def moved(self, name: bytes, place: int) -> bool:
        """The block lies elsewhere now. False when the owner no longer wants it: then its new place is free."""
        ...

    def worth(self, name: bytes) -> int:
        """Whether a block is to be written again when the place it has must be given up: 2 it must, 1 it is worth it,
        0 it is not."""
        ...

    def usable(self, usable: bool, reason: str) -> None:
        """Report that the backend takes blocks from now on, or takes none for a while."""
        ...


class StorageBackend(Protocol):
    """Places for blocks of one size. Failures are results, never errors."""

    @property
    def tier(self) -> str:
        """`dram` or `nvme`."""
        ...

    @property
    def blocks(self) -> int:
        """Maximum number of blocks that the backend takes."""
        ...

    @property
    def memory(self) -> BlockMemory | None:
        """Memory in which a place is a slot; None when the bytes are not in memory."""
        ...

    def open(self, owner: BackendOwner) -> None:
        """Begin, on the running event loop. Reports to `owner` the blocks that an earlier run left, as they are
        found."""
        ...

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        """Write blocks: for each its place, or why it was not written (a metric label).

        Calls `staged` once, when it needs `memory` no more.
        """
        ...

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> Reading:
        """Begin to read blocks, which keep their places until the reading is over."""
        ...

    def words(self, place: int) -> bytes:
        """The content words of a block in `memory`."""
        ...

    def free(self, place: int) -> None:
        """The block at `place` is wanted no more."""
        ...

    async def close(self, within_s: float) -> None:
        """Finish pending writes within `within_s` seconds and release all resources."""
        ...


@runtime_checkable
class FillableBackend(StorageBackend, Protocol):
    """A backend in memory whose places other components fill; it lends its bytes in place."""

    def take(self) -> int:
        """Take a place for the caller to fill. There is one when the owner's book has room."""
        ...

    def filled(self, place: int, name: bytes, words: bytes) -> None:
        """The place has the bytes of `words` now."""
        ...
