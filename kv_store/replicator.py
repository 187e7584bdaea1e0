"""Replicates blocks from workers into the store: a queue of names in the order in which they were reported, and
pulls."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kv_store.settings import CollectSettings
from kv_transfer.tickets import Claims, Keyring, issue
from kv_transfer.tiers.inbound import InboundBlocks
from kv_transfer.transport.protocol import (
    Alive,
    BlockReceived,
    Delivered,
    Missing,
    Pull,
    PullOpen,
    Transport,
    reuse_lease,
)
from kv_transfer.verify import Refusal, Verifier
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.core.metrics import Meter
from tandem.engine.hashing import Hashing
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_TICKET_S: Final = 60.0
_LOOKS: Final = 8
"""The number of batches of the queue that are searched for more names of the same worker."""


@dataclass(frozen=True)
class Holder:
    """A worker that has blocks: its incarnation and where it can be pulled from."""

    worker_id: str
    epoch: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class _Told:
    holder: Holder
    due: float


class ReplicationQueue:
    """Names of blocks that are worth pulling into the store, each with a worker that reported it. Pure."""

    def __init__(self, settings: CollectSettings) -> None:
        self._settings = settings
        self._told: OrderedDict[bytes, _Told] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def add(self, holder: Holder, names: Sequence[bytes], now: float) -> None:
        """A worker has these. When the line is too long the oldest leave it."""
        for name in names:
            self._told.setdefault(name, _Told(holder, now + self._settings.after_s))
        while len(self._told) > self._settings.waiting_max:
            self._told.popitem(last=False)

    def remove(self, holder: Holder, names: Sequence[bytes]) -> None:
        """A worker has these no more."""
        for name in names:
            told = self._told.get(name)
            if told is not None and told.holder.worker_id == holder.worker_id:
                del self._told[name]

    def forget(self, holder: Holder) -> None:
        """A worker is gone, with all it had."""
        gone = (holder.worker_id, holder.epoch)
        self._told = OrderedDict(
            (name, told) for name, told in self._told.items() if (told.holder.worker_id, told.holder.epoch) != gone
        )

    def due_in(self, now: float) -> float | None:
        """Seconds until the first block in the queue may be pulled; None when the queue is empty."""
        first = next(iter(self._told.values()), None)
        return None if first is None else max(0.0, first.due - now)

    def take(self, now: float) -> tuple[Holder, tuple[bytes, ...]] | None:
        """Remove and return the next names that are due, all of one worker, in the order in which they were
        reported."""
        holder, names = None, list[bytes]()
        for name, told in islice(self._told.items(), _LOOKS * self._settings.batch_blocks):
            if told.due > now or len(names) >= self._settings.batch_blocks:
                break
            if holder is None or told.holder == holder:
                holder = told.holder
                names.append(name)
        for name in names:
            del self._told[name]
        return None if holder is None else (holder, tuple(names))


class Replicator:
    """Works off the queue with a few pulls at a time. A block whose pull fails is left until a worker reports it
    again."""

    def __init__(
        self,
        filling: InboundBlocks,
        here: Callable[[bytes], bool],
        layout: Layout,
        epoch: Callable[[], int],
        transports: Sequence[Transport],
        keyring: Keyring,
        settings: CollectSettings,
        clock: Clock,
        entropy: Entropy,
        meter: Meter,
        hashing: Hashing,
    ) -> None:
        self.line = ReplicationQueue(settings)
        self._inbound = filling
        self._here = here
        self._layout = layout
        self._epoch = epoch
        self._transports: Mapping[str, Transport] = {transport.scheme: transport for transport in transports}
        self._keyring = keyring
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._meter = meter
        self._verifier = Verifier(hashing)
        self._wake = asyncio.Event()

    def told(self, holder: Holder, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """A worker has other blocks than before."""
        self.line.remove(holder, removed)
        self.line.add(holder, [name for name in stored if not self._here(name)], self._clock.now())
        self._wake.set()

    def left(self, holder: Holder) -> None:
        """A worker cannot be reached any more."""
        self.line.forget(holder)

    async def run(self) -> None:
        """Pull reported blocks into the store until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.pulls):
                group.create_task(self._work(), name=f"collect-{number}")

    async def _work(self) -> None:
        while True:
            taken = self.line.take(self._clock.now())
            if taken is not None:
                await self._bring(*taken)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(self.line.due_in(self._clock.now())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _bring(self, holder: Holder, names: Sequence[bytes]) -> None:
        """One pull, over the first transport that carries."""
        places = dict[bytes, int]()
        for name in names:
            place = None if self._here(name) else self._inbound.take(name, "")
            if place is not None:
                places[name] = place
        routes = [each for each in holder.addresses if each.partition("://")[0] in self._transports]
        for address in routes if places else ():
            try:
                async with asyncio.timeout(self._settings.pull_s):
                    await self._pull(self._transports[address.partition("://")[0]], address, holder, places)
                break
            except TimeoutError:
                event(_log, "collect_failed", holder=holder.worker_id, path=address, reason="it took too long")
            except TandemError as error:
                event(_log, "collect_failed", holder=holder.worker_id, path=address, reason=error.message)
                if error.code != "transfer_failed":
                    break
        for name, place in places.items():
            self._inbound.give_back(name, place)

    async def _pull(self, transport: Transport, address: str, holder: Holder, places: dict[bytes, int]) -> None:
        """Fill places; those that were leave `places`. Raises `TandemError`."""
        names = tuple(places)
        sink = _Places(self._inbound, tuple(places.values()))
        pull = await transport.open(address, self._request(holder, names), sink, self._settings.pull_s)
        try:
            async with aclosing(pull.events()) as events:
                async for happened in events:
                    if isinstance(happened, Missing | Alive):
                        continue
                    blocks = happened.blocks if isinstance(happened, Delivered) else (happened,)
                    landed = [block for block in blocks if isinstance(block, BlockReceived)]
                    if not landed:
                        return
                    await self._landed(pull, landed, holder, names, places, transport.scheme)
            await pull.acknowledge()
        finally:
            await pull.close()

    async def _landed(
        self,
        pull: Pull,
        landed: Sequence[BlockReceived],
        holder: Holder,
        names: Sequence[bytes],
        places: dict[bytes, int],
        path: str,
    ) -> None:
        memory = self._inbound.backend.memory
        assert memory is not None
        arrived = [names[each.index] for each in landed]
        blocks, handles = [memory.block(places[name]) for name in arrived], [each.handle for each in landed]
        checked = await self._verifier.check(blocks, handles, epoch=holder.epoch, names=arrived)
        for name, each, found in zip(arrived, landed, checked, strict=True):
            if isinstance(found, Refusal):
                self._meter.add("tandem_kv_blocks_refused_total", 1.0, found.reason)
                await pull.refuse(each.index)
                raise TandemError("kv_corrupt", found.message)
            self._meter.add("tandem_kv_transfer_bytes_total", float(self._layout.block_bytes), path)
            self._inbound.fill(name, places.pop(name), found)

    def _request(self, holder: Holder, names: tuple[bytes, ...]) -> PullOpen:
        """The store holds the service's key, so it writes its own ticket."""
        lease_id = reuse_lease(self._entropy.token(12).hex())
        claims = Claims("", holder.epoch, lease_id, self._epoch(), self._clock.wall() + _TICKET_S)
        return PullOpen(lease_id, issue(self._keyring, claims), holder.epoch, self._epoch(), self._layout, names)


class _Places:
    """`kv_transfer.transport.protocol.BlockSink` over places of DRAM."""

    def __init__(self, filling: InboundBlocks, places: Sequence[int]) -> None:
        self._memory = filling.backend.memory
        self._places = places

    def block(self, index: int) -> memoryview:
        assert self._memory is not None
        return self._memory.block(self._places[index])
