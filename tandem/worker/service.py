"""A worker as a service: engine, host, links and KV in the order in which they come up and go down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tandem.engine.protocol import BlockSpace
from tandem.service.link import LinkServer
from tandem.service.logs import EventLines, event
from tandem.worker.host import WorkerHost
from tandem.worker.identity import Identity
from tandem.worker.incarnation import Incarnation
from tandem.worker.parts import KvFetcher, Parts

_log = logging.getLogger(__name__)


class KvSide(Protocol):
    """What a role does with KV: a prefill worker lets others pull, a decode worker pulls."""

    async def open(self, space: BlockSpace) -> tuple[str, ...]:
        """The engine has loaded; gives the addresses under which its blocks can be pulled."""
        ...

    @property
    def fetcher(self) -> KvFetcher | None:
        """Who brings blocks for `decode` works, once open."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class WorkerName:
    """Who this worker is among its peers. `role` is `prefill`, `decode` or `unified`."""

    worker_id: str
    role: str
    revision: str = ""


class WorkerService:
    """`tandem.service.run.Service` for every role. `begin_epoch` makes the engine a new incarnation."""

    def __init__(
        self,
        parts: Parts,
        name: WorkerName,
        links: LinkServer,
        side: KvSide,
        begin_epoch: Callable[[int], None],
        events: EventLines | None = None,
    ) -> None:
        self._parts = parts
        self._name = name
        self._links = links
        self._side = side
        self._begin_epoch = begin_epoch
        self._events = events or EventLines()
        self._host: WorkerHost | None = None
        self._running = asyncio.Event()
        self._started = False
        self.address = ""
        """Where routers dial, once `serve` has returned."""

    @property
    def host(self) -> WorkerHost:
        """The host; there once `start` has returned."""
        assert self._host is not None, "start() has not returned yet"
        return self._host

    async def start(self) -> None:
        """Load the model and open the KV side. Raises `bad_model`, `bad_setting`, `engine_failed`."""
        self._events.emit("loading", fraction=0.0)
        self._started = True
        info = await self._parts.engine.start()
        space = self._parts.engine.kv
        addresses = await self._side.open(space) if space is not None else ()
        epoch = space.epoch if space is not None else self._parts.entropy.u64()
        self._events.emit("loading", fraction=1.0)
        incarnation = Incarnation(epoch, self._parts.deadlines.heartbeat_lost_s, self._renew)
        identity = Identity(self._name.worker_id, self._name.role, info, self._name.revision, addresses)
        self._host = WorkerHost(self._parts, identity, incarnation, self._side.fetcher)

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "engine": lambda: self._parts.engine.run(self.host.listen),
            "host": lambda: self.host.run(self._running.set),
        }

    async def serve(self) -> None:
        """Accept routers."""
        await self._running.wait()
        self.address = await self._links.start(self.host.accept)
        self._events.emit("listening", address=self.address)

    async def asked_to_leave(self) -> float | None:
        await self.host.drain_asked.wait()
        return self.host.drain_within_s

    async def drain(self, within_s: float) -> None:
        """Refuse new work, wait for attempts to end and exported blocks to be fetched, cancel the rest."""
        self.host.start_drain(within_s)
        cancelled = await self.host.drained(within_s)
        event(_log, "drained", worker=self._name.worker_id, cancelled=cancelled)
        await self._links.stop()

    async def stop(self) -> None:
        await self._links.stop()
        await self._side.close()
        if self._started:
            await self._parts.engine.stop()

    def _renew(self) -> int:
        epoch = self._parts.entropy.u64()
        self._begin_epoch(epoch)
        event(_log, "new_incarnation", worker=self._name.worker_id, epoch=f"{epoch:016x}")
        return epoch
