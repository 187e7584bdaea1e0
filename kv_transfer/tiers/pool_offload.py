"""Offloads blocks from the engine's pool into the fastest tier. Offers wait in a queue; their slots are held while
they are copied."""

import asyncio
from collections import OrderedDict

from kv_transfer.tiers.backend import HeldSpace, Item
from kv_transfer.tiers.protocol import OffloadCandidate
from kv_transfer.tiers.tier import Tier, report
from tandem.engine.digest import unbind


class PoolOffload:
    """A bounded queue of offers; `run` processes it, several batches at a time."""

    def __init__(self, space: HeldSpace, level: Tier, offers_max: int, batch_blocks: int, at_once: int) -> None:
        self._space = space
        self._level = level
        self._offers_max = offers_max
        self._batch_blocks = batch_blocks
        self._at_once = at_once
        self._running = 0
        self._line: OrderedDict[bytes, OffloadCandidate] = OrderedDict()
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing waits and nothing is being copied."""
        self.idle.set()

    def offer(self, offer: OffloadCandidate) -> None:
        """Copy the block some time soon, unless it is here already or the line is too long."""
        level = self._level
        if level.book.knows(offer.name):
            level.book.touch(offer.name)
        elif not level.open:
            level.dropped("off")
        elif len(self._line) >= self._offers_max and offer.name not in self._line:
            level.dropped("line_full")
        else:
            self._line[offer.name] = offer
            self.idle.clear()
            self._wake.set()

    def withdraw(self, name: bytes) -> None:
        """Do not copy the block after all."""
        self._line.pop(name, None)

    async def run(self) -> None:
        """Copy what is offered until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                while self._line and self._running < self._at_once:
                    self._running += 1
                    group.create_task(self._copy(self._take()))
                self._wake.clear()

    def _take(self) -> list[OffloadCandidate]:
        count = min(self._batch_blocks, len(self._line))
        return [self._line.popitem(last=False)[1] for _ in range(count)]

    async def _copy(self, offers: list[OffloadCandidate]) -> None:
        items, slots = [], list[int]()
        for offer in offers:
            handle = self._space.hold(offer.name)
            if handle is None:
                self._level.dropped("gone")
                continue
            words = unbind(handle.digests, handle.epoch, handle.name, handle.generation)
            slots.append(handle.slot)
            items.append(Item(offer.name, offer.tenant, handle.slot, words))

        def let_go() -> None:
            while slots:
                self._space.unhold(slots.pop())

        try:
            await self._level.keep(items, self._space.memory, let_go)
        except Exception as error:  # noqa: BLE001  (one batch's failure must not end all copying)
            report(f"copying {len(items)} blocks failed", error)
        finally:
            let_go()
            self._running -= 1
            self._wake.set()
            if not self._running and not self._line:
                self.idle.set()
