"""The `Transport` interface, which moves KV bytes from a holder's slots into a receiver's slots.

One pull brings the blocks of one prompt, in order, as they become complete on the holder. Control answers and bytes
travel together; `shm` sends descriptors only and the receiver copies. Implementations: `tcp`, `shm`, and `memory` for
tests and simulation. `tests/contract/test_transport.py` defines the behaviour.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tandem.core.kv import Handle, Layout
from tandem.engine.protocol import BlockMemory, FirstTokens

_REUSE: Final = "reuse-"


def reuse_lease(token: str) -> str:
    """The id of a lease that the holder opens on request, for blocks that it may have, computed for another
    request."""
    return _REUSE + token


def is_reuse(lease_id: str) -> bool:
    """Whether no work of the holder stands behind a lease."""
    return lease_id.startswith(_REUSE)


@dataclass(frozen=True)
class PullOpen:
    """The request with which a receiver opens a pull. The ticket proves the right to the lease's names for
    `receiver_epoch`.

    Under a reuse lease the holder answers at once for every name whether it has it, and the pull ends with the last
    answer. Under any other lease the holder waits for blocks that are being computed, and the first tokens come last.
    """

    lease_id: str
    ticket: bytes
    holder_epoch: int
    receiver_epoch: int
    layout: Layout
    names: tuple[bytes, ...]


class BlockReceived(msgspec.Struct, frozen=True, gc=False):
    """The bytes of `names[index]` are in the sink's block; `handle.digests` are what they must hash to."""

    index: int
    handle: Handle


@dataclass(frozen=True)
class Delivered:
    """Blocks that arrived together, in order; at least one. What small blocks cost, they cost once."""

    blocks: tuple[BlockReceived, ...]


def together(landed: tuple[BlockReceived, ...]) -> "BlockReceived | Delivered":
    """Blocks that arrived together, at least one, as one event."""
    return Delivered(landed) if len(landed) > 1 else landed[0]


@dataclass(frozen=True)
class Missing:
    """`names[index]` will not come from this holder."""

    index: int
    reason: str


@dataclass(frozen=True)
class Alive:
    """The holder is still at it; nothing is ready yet."""


PullEvent = BlockReceived | Delivered | Missing | Alive | FirstTokens
"""`FirstTokens` is the last event of a pull whose prefill sampled."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """`names[index]` is complete in `handle.slot`."""

    index: int
    handle: Handle


Answer = Offer | Missing | Alive | FirstTokens


class ExportSource(Protocol):
    """The holder's decisions, as a transport server sees them (`kv_transfer.export.Exporter`)."""

    @property
    def memory(self) -> BlockMemory:
        """The bytes behind the slots of offers."""
        ...

    def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        """Validate, then yield what can be sent, as it becomes ready: a batch at a time, in order.

        `FirstTokens` comes last; without them the iterator ends by raising, but for reuse leases.
        Raises `ticket_refused`, `stale_epoch`, `kv_gone`, `protocol_mismatch`. `aclose` it to stop early.
        """
        ...

    def acknowledge(self, lease_id: str) -> None:
        """The receiver wants nothing more of the lease."""
        ...

    def refused(self, lease_id: str, name: bytes) -> None:
        """Handle the receiver's report that a block arrived with other bytes than were digested: check the own
        copy."""
        ...


class BlockSink(Protocol):
    """The destination of the bytes of a pull."""

    def block(self, index: int) -> memoryview:
        """The writable bytes that `names[index]` goes to."""
        ...


class Pull(Protocol):
    """One running pull, seen from the receiver."""

    def events(self) -> AsyncGenerator[PullEvent, None]:
        """Events until the holder has no more.

        Raises `transfer_failed`, `ticket_refused`, `stale_epoch`, `kv_gone`, `protocol_mismatch`.
        """
        ...

    async def acknowledge(self) -> None:
        """End the holder's lease: nothing more is wanted of it. Allowed at any time, and again."""
        ...

    async def refuse(self, index: int) -> None:
        """Tell the holder that `names[index]` arrived damaged, so that it looks at its copy. Ends the events."""
        ...

    async def close(self) -> None:
        """Stop. When this returns no byte of this pull can reach the sink any more."""
        ...


class Transport(Protocol):
    """A way for bytes to travel, both ends."""

    @property
    def scheme(self) -> str:
        """`tcp`, `shm`, `mem`: the URL scheme of its addresses and its name in metrics."""
        ...

    async def serve(self, source: ExportSource) -> str:
        """Start answering pulls; gives the address to hand out."""
        ...

    async def withdraw(self) -> None:
        """Stop answering pulls: nothing listens at the address any more. Pulls that this side has opened go on."""
        ...

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        """Connect and ask. Raises `transfer_failed` when the holder cannot be reached in time."""
        ...

    async def close(self) -> None: ...
