"""A holder's side of the Redis index: publishes what a worker or store keeps, in the background and without delaying
it.

Changes go through a bounded queue, in order, a batch per round trip. The holder publishes everything it keeps when it
registers, and again every quarter of an entry's life, so that entries outlive neither the holder nor a loss of Redis'
data. After a change of server, a restart of it, the loss of the record, or more changes than the queue holds, the
holder registers under a new number, which voids all it published before, and publishes everything anew.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kv_transfer.index.protocol import TIERS
from kv_transfer.index.redis_connection import Connect
from kv_transfer.index.redis_nodes import RedisNodes
from kv_transfer.index.redis_scripts import CHANGE, ENTRIES_MAX, REGISTER, RELEASE, RENEW, SWEEP
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import encoded
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import NAME_BYTES
from tandem.core.messages import Hello
from tandem.core.metrics import Meter
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_BATCH: Final = 128
"""Names per script call: Redis serves no other client meanwhile, for a millisecond or so."""
_SWEPT: Final = 64
_BUCKETS: Final = 1 << 16

Names = Callable[[], Mapping[str, Sequence[bytes]]]
"""Everything the holder keeps now, by tier."""


class RedisPublisher:
    """`change` at any time; `run` until cancelled, then `close`."""

    def __init__(
        self, settings: RedisSettings, hello: Hello, names: Names, clock: Clock, meter: Meter, connect: Connect
    ) -> None:
        self._settings = settings
        self._prefix = settings.key_prefix
        self._id, self._record = hello.worker_id, encoded(hello)
        self._names = names
        self._clock = clock
        self._meter = meter
        self._nodes = RedisNodes(settings, (REGISTER, RELEASE, RENEW, CHANGE, SWEEP), meter, connect)
        self._closed = False
        self._number: int | None = None
        self._void: tuple[int, bytes] | None = None
        """The number before, and its record, until Redis knows that it stands for nothing."""
        self._server = ""
        """The run of the server that the publisher last registered with."""
        self._renew_at = 0.0
        self._bucket = (hello.epoch * 40_503) % _BUCKETS
        self._queue: deque[tuple[bool, str, bytes]] = deque()
        self._queued = 0
        self._walk: deque[tuple[str, Sequence[bytes]]] = deque()
        self._walk_at = 0.0
        self._walk_every_s = 0.0
        """Seconds between two steps of the walk; 0 while what the holder keeps is published for the first time."""
        self._gone: set[tuple[str, bytes]] = set()
        """Names, with their tiers, that were removed since the walk's names were taken."""
        self._changed = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether everything that was kept is in Redis."""
        return self._number is not None and not self._queue and not (self._walk and self._walk_every_s == 0.0)

    def become(self, hello: Hello) -> None:
        """Start over with another introduction of the holder, perhaps as a new incarnation: nothing published before
        holds."""
        self._start_over()
        self._record = encoded(hello)

    def change(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Names that a tier has gained and lost, in order. Never waits."""
        if tier not in TIERS or self._number is None:
            return  # Without a number everything is still to be told.
        for name in stored:
            self._gone.discard((tier, name))
        if self._walk:
            self._gone.update((tier, name) for name in removed)
        for storing, names in ((True, stored), (False, removed)):
            for start in range(0, len(names), _BATCH):
                self._keep(storing, tier, b"".join(names[start : start + _BATCH]))
        if self._queued > self._settings.queue_names_max or len(self._gone) > self._settings.queue_names_max:
            event(_log, "redis_queue_full", level=logging.WARNING, names=self._queued)
            self._start_over()
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="redis nodes")
            group.create_task(self._publish(), name="redis publisher")

    async def close(self) -> None:
        """Void everything published if Redis can be reached; otherwise the lease expires by itself."""
        self._closed = True
        self._start_over()
        if not self._nodes.usable:
            return
        try:
            await self._release()
        except TandemError as error:
            event(_log, "redis_farewell_failed", reason=error.message)

    # ---- the queue ----

    def _keep(self, storing: bool, tier: str, packed: bytes) -> None:
        if self._queue:
            last_storing, last_tier, last = self._queue[-1]
            if (last_storing, last_tier) == (storing, tier) and len(last) + len(packed) <= _BATCH * NAME_BYTES:
                self._queue[-1] = (storing, tier, last + packed)
                self._queued += len(packed) // NAME_BYTES
                return
        self._queue.append((storing, tier, packed))
        self._queued += len(packed) // NAME_BYTES

    def _start_over(self) -> None:
        if self._number is not None:
            self._void = (self._number, self._record)
        self._number = None
        self._queue.clear()
        self._walk.clear()
        self._gone.clear()
        self._queued = 0
        self._changed.set()

    # ---- telling ----

    async def _publish(self) -> None:
        while not self._closed:
            await self._nodes.ready()
            try:
                await self._tell()
            except TandemError as error:
                event(_log, "redis_write_failed", reason=error.message)
                # What Redis refuses it refuses again, until somebody has tidied up.
                refused = error.code == "conflict"
                await asyncio.sleep(self._settings.retry_max_s if refused else self._settings.retry_first_s)

    async def _tell(self) -> None:
        """Write what there is to write, until that fails with `link_lost`."""
        while not self._closed:
            now = self._clock.now()
            # The connection may have broken, and another run been found, while there was nothing to write.
            if self._number is not None and self._server != self._nodes.server:
                self._start_over()
            if self._number is None:
                await self._register()
            elif now >= self._renew_at:
                await self._renew()
            elif self._queue:
                await self._write_changes()
            elif now >= self._walk_at:
                await self._walk_on()
            else:
                await self._something_to_do(min(self._renew_at, self._walk_at) - now)

    async def _something_to_do(self, within_s: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _register(self) -> None:
        await self._release()
        server, record = self._nodes.server, self._record
        # With this run of the server: on another one the incarnation before may stand again.
        first = "1" if server != self._server else "0"
        number = await self._evaluate(REGISTER, self._prefix, record, self._lease_ms, self._id, first)
        if record is not self._record or self._closed:
            self._void = (number, record)
            return
        # From here on what changes is in the queue, and all before is in the walk.
        self._number, self._server = number, server
        self._begin_walk(every_s=0.0)
        self._renew_at = self._clock.now() + self._settings.lease_s / 3
        event(_log, "redis_registered", node=self._nodes.address, number=number)

    async def _release(self) -> None:
        if self._void is not None:
            await self._evaluate(RELEASE, self._prefix, *self._void, self._id)
            self._void = None

    @property
    def _lease_ms(self) -> int:
        return int(1000 * self._settings.lease_s)

    async def _renew(self) -> None:
        assert self._number is not None
        number, record = self._number, self._record
        known = await self._evaluate(RENEW, self._prefix, number, record, self._lease_ms, self._id)
        if not known:
            self._void_here(number)
            return
        self._renew_at = self._clock.now() + self._settings.lease_s / 3
        self._meter.set("tandem_redis_queue_names", self._queued)
        last = min(self._bucket + _SWEPT, _BUCKETS) - 1
        await self._evaluate(SWEEP, self._prefix, self._bucket, last)
        self._bucket = (last + 1) % _BUCKETS

    def _void_here(self, number: int) -> None:
        """Start over if `number` is still the current one: after a loss of data it stands for no holder, or for
        another one."""
        if number == self._number:
            event(_log, "redis_record_gone", level=logging.WARNING, node=self._nodes.address)
            self._start_over()

    async def _write_changes(self) -> None:
        number, change = self._number, self._queue[0]
        storing, tier, packed = change
        await self._write(storing, tier, packed)
        # It may have grown meanwhile, or everything begun anew. What failed is written again: that changes nothing.
        if number == self._number and self._queue:
            grown = self._queue[0][2]
            self._queue.popleft()
            self._queued -= len(packed) // NAME_BYTES
            if len(grown) > len(packed):
                self._queue.appendleft((storing, tier, grown[len(packed) :]))

    async def _write(self, storing: bool, tier: str, packed: bytes) -> None:
        assert self._number is not None
        ttl_s, flag = int(self._settings.entry_s), "1" if storing else "0"
        number, place = self._number, TIERS.index(tier)
        what = (place, ttl_s, packed, flag, ENTRIES_MAX)
        if await self._evaluate(CHANGE, self._prefix, number, *what, self._record) < 0:
            self._void_here(number)

    # ---- everything ----

    def _begin_walk(self, every_s: float) -> None:
        self._gone.clear()
        self._walk = deque(
            (tier, names[start : start + _BATCH])
            for tier, names in self._names().items()
            for start in range(0, len(names), _BATCH)
        )
        self._walk_every_s = every_s / max(1, len(self._walk))
        self._walk_at = self._clock.now() + self._walk_every_s

    async def _walk_on(self) -> None:
        """The next names of everything; after the last it begins again, spread over a quarter of an entry's life."""
        if not self._walk:
            self._begin_walk(self._settings.entry_s / 4)
            return
        tier, names = self._walk[0]
        held = b"".join(name for name in names if (tier, name) not in self._gone)
        if held:
            number = self._number
            await self._write(True, tier, held)
            if number != self._number:
                return
        self._walk.popleft()
        self._walk_at = self._clock.now() + self._walk_every_s
        if not self._walk:
            self._begin_walk(self._settings.entry_s / 4)

    async def _evaluate(self, script: str, *arguments: str | bytes | int) -> int:
        answer = await self._nodes.evaluate(script, arguments, self._settings.publish_s)
        assert isinstance(answer, int), "the scripts that write answer with a number"
        return answer
