"""Blocks that come straight into places of the DRAM tier: from its own NVMe, or from another process."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from kv_transfer.tiers.backend import BlockRead, FillableBackend, Wanted
from kv_transfer.tiers.index import Copy
from kv_transfer.tiers.tier import Tier


class InboundBlocks:
    """Takes places of `level`, whose backend is `backend`, for inbound blocks."""

    def __init__(self, level: Tier, backend: FillableBackend) -> None:
        self.level = level
        self.backend = backend
        self._coming: dict[bytes, asyncio.Event] = {}

    @property
    def coming(self) -> int:
        """Blocks on their way."""
        return len(self._coming)

    def take(self, name: bytes, tenant: str) -> int | None:
        """A place for a block, None when it is here or coming, or there is no room. Follow it with `fill` or
        `give_back`."""
        if not self.level.reserve(name, tenant):
            return None
        self._coming[name] = asyncio.Event()
        return self.backend.take()

    def fill(self, name: bytes, place: int, words: bytes) -> None:
        """The block is in its place, and verified."""
        self.backend.filled(place, name, words)
        self.level.settle(name, place)
        self._coming.pop(name).set()

    def give_back(self, name: bytes, place: int) -> None:
        """The block does not come, and nothing can reach the place any more."""
        self.level.book.remove(name)
        self.backend.free(place)
        self._coming.pop(name).set()

    async def come(self, name: bytes, within_s: float) -> None:
        """Wait until an inbound block has arrived or was given up, for at most `within_s`."""
        coming = self._coming.get(name)
        if coming is not None:
            try:
                async with asyncio.timeout(within_s):
                    await coming.wait()
            except TimeoutError:
                return

    async def onboard_from(self, lower: Tier, names: Sequence[bytes]) -> None:
        """Bring up what `lower` has of `names`, as far as there is room."""
        memory, copies = self.backend.memory, list[Copy]()
        wanted, places = list[Wanted](), dict[bytes, int]()
        for name in names:
            copy = lower.book.find(name)
            place = self.take(name, copy.tenant) if copy is not None else None
            if copy is None or place is None or copy.place is None:
                continue
            copies.append(lower.book.acquire(name))
            lower.book.touch(name)
            wanted.append(Wanted(len(wanted), name, copy.place, place))
            places[name] = place
        if not wanted:
            return
        assert memory is not None
        reading, brought = lower.read(wanted, memory), 0
        try:
            async with aclosing(reading.results()) as results:
                async for batch in results:
                    for outcome in batch:
                        name = wanted[outcome.index].name
                        if isinstance(outcome, BlockRead):
                            brought += 1
                            self.fill(name, places.pop(name), outcome.words)
                        else:
                            lower.missed(name, outcome.reason)
        finally:
            await reading.abandon()
            lower.read_over(reading, wanted, brought)
            lower.release(copies)
            for name, place in places.items():
                self.give_back(name, place)
