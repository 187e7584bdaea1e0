"""One restore: reads blocks from several tiers at the same time into slots, and reports them in prompt order.

A long prompt has thousands of blocks. They are acquired in slices and read in stretches. One stretch is begun while
the one before is reported, so that nothing here holds up the event loop for long.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from kv_transfer.tiers.backend import BlockRead, BlockReadFailed, Item, Reading, Wanted
from kv_transfer.tiers.index import Copy
from kv_transfer.tiers.protocol import Lost, Restored
from kv_transfer.tiers.tier import Tier
from tandem.core.clock import Clock
from tandem.engine.protocol import BlockMemory, FetchTarget

STRETCH: Final = 1024
"""Blocks: about a millisecond of bookkeeping."""


class _Part:
    """The blocks of one stretch that come from one tier."""

    def __init__(self, level: Tier) -> None:
        self.level = level
        self.wanted: list[Wanted] = []
        self.copies: dict[int, Copy] = {}
        """Borrowed copies, by index in the stretch."""
        self.brought = 0
        self._reading: Reading | None = None
        self._results: AsyncGenerator[tuple[BlockRead | BlockReadFailed, ...], None] | None = None

    def borrow(self, targets: Sequence[tuple[int, FetchTarget]]) -> Sequence[tuple[int, FetchTarget]]:
        """Take what comes from here; gives the rest."""
        rest, copies = [], self.level.book.borrow(target.name for _, target in targets)
        for (index, target), copy in zip(targets, copies, strict=True):
            if copy is None or copy.place is None:
                rest.append((index, target))
                continue
            self.copies[index] = copy
            self.wanted.append(Wanted(index, target.name, copy.place, target.slot))
        return rest

    def begin(self, memory: BlockMemory) -> None:
        if self.wanted:
            self._reading = self.level.read(self.wanted, memory)
            self._results = self._reading.results()

    async def next(self) -> tuple[BlockRead | BlockReadFailed, ...]:
        """The next batch; empty when there is none."""
        assert self._results is not None
        try:
            return await anext(self._results)
        except StopAsyncIteration:
            return ()

    async def end(self) -> None:
        """End the read and release the copies. When this returns, no byte can land any more."""
        if self._reading is not None and self._results is not None:
            await self._reading.abandon()
            await self._results.aclose()
            self.level.read_over(self._reading, self.wanted, self.brought)
        self.level.release(tuple(self.copies.values()))
        self._reading = None
        self.copies.clear()


class _Stretch:
    """Some of the targets, next to each other."""

    def __init__(self, targets: Sequence[FetchTarget], levels: Sequence[Tier]) -> None:
        self.targets = targets
        self.parts = [_Part(level) for level in levels]
        self.ready: dict[int, Restored | Lost] = {}
        self.source: dict[int, _Part] = {}
        rest: Sequence[tuple[int, FetchTarget]] = tuple(enumerate(targets))
        for part in self.parts:
            if rest:
                rest = part.borrow(rest)
                self.source.update(dict.fromkeys(part.copies, part))
        self.ready.update((index, Lost(target.index, "absent")) for index, target in rest)

    def begin(self, memory: BlockMemory) -> None:
        for part in self.parts:
            part.begin(memory)

    async def end(self) -> None:
        for part in self.parts:
            await part.end()


class TierRestore:
    """Acquires every copy it will read before it reads the first, so that none is evicted meanwhile."""

    def __init__(
        self, levels: Sequence[Tier], targets: Sequence[FetchTarget], memory: BlockMemory, clock: Clock
    ) -> None:
        self._levels = levels
        self._targets = targets
        self._memory = memory
        self._clock = clock

    async def batches(self, deadline: float) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        """Everything, in order; what has not come at `deadline` is lost to this restore, not forgotten."""
        waiting, begun = deque[_Stretch](), deque[_Stretch]()
        try:
            for first in range(0, len(self._targets), STRETCH):
                if waiting:
                    await asyncio.sleep(0)
                waiting.append(_Stretch(self._targets[first : first + STRETCH], self._levels))
            while waiting or begun:
                while waiting and len(begun) < 2:
                    begun.append(waiting.popleft())
                    begun[-1].begin(self._memory)
                async with aclosing(self._told(begun[0], deadline)) as told:
                    async for batch in told:
                        yield batch
                await begun.popleft().end()
        finally:
            for stretch in (*begun, *waiting):
                await stretch.end()

    async def _told(self, stretch: _Stretch, deadline: float) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        index = 0
        while index < len(stretch.targets):
            if index not in stretch.ready:
                await self._advance(stretch, index, deadline)
            batch, take = [], stretch.ready.pop
            while (outcome := take(index, None)) is not None:
                batch.append(outcome)
                index += 1
            if batch:
                yield tuple(batch)

    async def _advance(self, stretch: _Stretch, index: int, deadline: float) -> None:
        """Wait for the next batch of the part that brings block `index`. The batch has that block or leads up to
        it."""
        part = stretch.source[index]
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.now())):
                batch = await part.next()
        except TimeoutError:
            batch = ()
        if not batch:
            stretch.ready[index] = Lost(stretch.targets[index].index, "deadline")
            return
        brought, ready, targets, tier = list[BlockRead](), stretch.ready, stretch.targets, part.level.tier
        for outcome in batch:
            target = targets[outcome.index]
            if isinstance(outcome, BlockRead):
                brought.append(outcome)
                ready[outcome.index] = Restored(target.index, outcome.words, tier)
            else:
                part.level.missed(target.name, outcome.reason)
                ready[outcome.index] = Lost(target.index, outcome.reason)
        part.brought += len(brought)
        await self._promote(stretch, part, brought)

    async def _promote(self, stretch: _Stretch, part: _Part, brought: Sequence[BlockRead]) -> None:
        """Copy blocks that came from a slower tier into the fastest, while their slots are not in use yet."""
        top = self._levels[0]
        if part.level is top or not top.open:
            return
        targets = [stretch.targets[outcome.index] for outcome in brought]
        items = [
            Item(target.name, part.copies[outcome.index].tenant, target.slot, outcome.words)
            for outcome, target in zip(brought, targets, strict=True)
        ]
        await top.keep(items, self._memory, lambda: None)
