"""Offloads blocks from one tier into the next ahead of need, so that the upper tier can make room without losing
anything.

Blocks are copied in the order in which they arrived, which is the order of prompts. The next tier then has them side
by side.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from kv_transfer.tiers.backend import Item
from kv_transfer.tiers.tier import Tier, report


class TierOffload:
    """Copies blocks of `upper` that `lower` lacks once they are more than `spared`, several batches at a time.

    Nothing waits for it: what `upper` evicts before its turn comes is lost to both.
    """

    def __init__(self, upper: Tier, lower: Tier, spared: int, batch_blocks: int, at_once: int) -> None:
        self._upper = upper
        self._lower = lower
        self._spared = spared
        self._batch_blocks = batch_blocks
        self._dirty: OrderedDict[bytes, bool] = OrderedDict()
        """Blocks only the upper tier has, in order; True for those that had a second chance."""
        self._again: dict[bytes, None] = {}
        """Blocks of the upper tier that the lower one had to evict for others, and that were to be offered to it once
        more."""
        self._at_once = at_once
        self._running = 0
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing is being copied, or is to be."""
        self.idle.set()

    def __len__(self) -> int:
        """Blocks that only the upper tier has."""
        return len(self._dirty)

    @property
    def _due(self) -> bool:
        return self._lower.open and len(self._dirty) > self._spared

    def told(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Apply a change of either tier."""
        if tier == self._upper.tier:
            for name in stored:
                if not self._lower.book.knows(name):
                    self._dirty[name] = False
            for name in removed:
                self._dirty.pop(name, None)
                self._again.pop(name, None)
        else:
            for name in stored:
                self._dirty.pop(name, None)
            for name in removed:
                if self._worth_another_copy(name):
                    self._dirty[name] = False
        self._look()

    def _worth_another_copy(self, name: bytes) -> bool:
        """Whether what the lower tier has lost is to be copied once more. In the place of others only once: where the
        lower tier cannot hold all of the upper one, blocks would push each other out for ever."""
        copy = self._upper.book.find(name)
        if copy is None:
            return False
        book = self._lower.book
        if len(book) < book.blocks and book.held_by(copy.tenant) < book.quotas.of(copy.tenant):
            return True
        first = name not in self._again
        self._again[name] = None
        return first

    def _look(self) -> None:
        if self._due:
            self.idle.clear()
            self._wake.set()
        elif not self._running:
            self.idle.set()

    async def run(self) -> None:
        """Copy what is due until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                while self._due and self._running < self._at_once:
                    self._running += 1
                    group.create_task(self._copy(self._take()))
                self._wake.clear()

    def _take(self) -> list[bytes]:
        """The next names. One that was wanted since it came is passed over once."""
        names = list[bytes]()
        count = min(self._batch_blocks, len(self._dirty) - self._spared)
        looks = 2 * count
        while len(names) < count and self._dirty and looks:
            looks -= 1
            name, again = self._dirty.popitem(last=False)
            copy = self._upper.book.find(name)
            if copy is not None and copy.used and not again and looks >= count - len(names):
                self._dirty[name] = True
            elif copy is not None:
                names.append(name)
        return names

    async def _copy(self, names: list[bytes]) -> None:
        upper = self._upper
        copies = [upper.book.acquire(name) for name in names]
        items = [
            Item(copy.name, copy.tenant, copy.place, upper.backend.words(copy.place))
            for copy in copies
            if copy.place is not None
        ]

        def let_go() -> None:
            upper.release(copies)
            copies.clear()

        memory = upper.backend.memory
        assert memory is not None, "the upper tier is in memory"
        try:
            await self._lower.keep(items, memory, let_go)
        except Exception as error:  # noqa: BLE001  (one batch's failure must not end all copying)
            report(f"copying {len(items)} blocks failed", error)
        finally:
            let_go()
            if not self._lower.open:
                self._dirty.update((name, True) for name in names if name in upper.book)
            self._running -= 1
            self._look()
