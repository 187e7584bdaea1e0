"""The `Tiers` seam: what a worker (or a store) keeps of its blocks below the engine's pool, found by name.

Tiers hold full blocks only, with the content words their digest is made of, so that whatever comes back is checked
like a block from a peer. Losing a copy is never an error: it is a miss, counted with its reason, and the engine
computes the block. All calls are made from the worker's event loop and none blocks it.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tandem.core.messages import TierCost
from tandem.engine.protocol import BlockMemory, FetchTarget


class OffloadCandidate(msgspec.Struct, frozen=True, gc=False):
    """A complete block of the engine's pool that may be copied; holding the block gives its slot and its content
    words.

    `tenant` is the tenant's salt, under which the block counts against a quota.
    """

    name: bytes
    tenant: str = ""


class Restored(msgspec.Struct, frozen=True, gc=False):
    """The bytes of `target` are in its slot and verified against `words`; `tier` is where they came from."""

    index: int
    words: bytes
    tier: str


class Lost(msgspec.Struct, frozen=True, gc=False):
    """`names[index]` could not be read after all, and why: the copy is forgotten."""

    index: int
    reason: str


@dataclass(frozen=True)
class Pinning:
    """How a prefix is pinned: it is never evicted within `ttl_s` while the tenant's quota holds it. A prefix with a
    higher `priority` is given up later."""

    priority: int
    ttl_s: float
    tenant: str = ""


Changed = Callable[[str, tuple[bytes, ...], tuple[bytes, ...]], None]
"""Callback for (tier, names stored, names removed), called in order on the event loop."""


class Tiers(Protocol):
    """The tiers in which one worker keeps blocks below its pool. `tests/contract/test_tiers.py` defines the
    behaviour."""

    @property
    def shapes(self) -> tuple[TierCost, ...]:
        """The tiers there are, the fastest first, with measured costs."""
        ...

    def where(self, names: Sequence[bytes]) -> tuple[str, ...]:
        """The fastest tier of each leading name that is held here. Ends at the first name that no tier has."""
        ...

    def expected_s(self, tiers: Sequence[str], block_bytes: int) -> float:
        """Expected seconds to read blocks that lie in `tiers`, including the reads already under way."""
        ...

    def offer(self, offers: Sequence[OffloadCandidate]) -> None:
        """Copy these blocks some time soon, if it is worth it; never waits, and drops offers that come too fast."""
        ...

    def restore(
        self, targets: Sequence[FetchTarget], memory: BlockMemory, deadline: float
    ) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        """Copy the blocks of `targets` into their slots, a batch at a time, in prompt order.

        What is held is pinned until read. `aclose` it to stop early: when that returns no byte can land any more.
        """
        ...

    def pin(self, names: Sequence[bytes], pinning: Pinning) -> int:
        """Keep what is here, and what of `names` comes later, for a while. Gives how many leading names are
        accepted; beyond the tenant's quota none is."""
        ...

    def unpin(self, names: Sequence[bytes]) -> None:
        """Undo what `pin` did to these."""
        ...

    def limit(self, tenant: str, kv_bytes: int | None) -> None:
        """Limit the tenant to `kv_bytes` in each tier from now on; None lifts the bound. What is above the limit is
        evicted."""
        ...

    def forget(self, names: Sequence[bytes], reason: str) -> None:
        """Drop copies: found damaged, or withdrawn by their owner."""
        ...

    def snapshot(self) -> dict[str, tuple[bytes, ...]]:
        """All names by tier."""
        ...

    def watch(self, changed: Changed) -> None:
        """Have `changed` called with names that become, or cease to be, available per tier."""
        ...

    async def close(self) -> None:
        """Finish what is being written, within a bound, and release everything."""
        ...
