"""A worker as a service: engine, host, links and KV in the order in which they come up and go down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from kv_transfer.tiers.protocol import Tiers
from tandem.link.protocol import LinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines, event
from tandem.worker.block_events import POOL
from tandem.worker.canary import CanaryResult, SelfCanary
from tandem.worker.deps import WorkerDeps
from tandem.worker.epoch import WorkerEpoch
from tandem.worker.host import WorkerHost
from tandem.worker.identity import Identity
from tandem.worker.kv_side import KvSide

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerName:
    """The name of this worker among its peers. `role` is `prefill`, `decode`, `unified` or `auto`."""

    worker_id: str
    role: str
    revision: str = ""


class WorkerService:
    """`tandem.process.run.Service` for every role. `begin_epoch` makes the engine a new incarnation."""

    def __init__(
        self,
        parts: WorkerDeps,
        name: WorkerName,
        links: LinkServer,
        side: KvSide,
        begin_epoch: Callable[[int], None],
        events: EventLines | None = None,
        health: Health | None = None,
    ) -> None:
        self._parts = parts
        self._name = name
        self._links = links
        self._side = side
        self._begin_epoch = begin_epoch
        self._events = events or EventLines()
        self._health = health or Health(self._events, parts.meter)
        self._host: WorkerHost | None = None
        self._tiers: Tiers | None = None
        self._running = asyncio.Event()
        self._started = False
        self.address = ""
        """The address that routers dial, once `serve` has returned."""

    @property
    def host(self) -> WorkerHost:
        """The host; there once `start` has returned."""
        assert self._host is not None, "start() has not returned yet"
        return self._host

    async def start(self) -> None:
        """Load the model and open the KV side. Raises `bad_model`, `bad_setting`, `engine_failed`."""
        self._events.emit("loading", fraction=0.0)
        self._started = True
        began = self._parts.clock.now()
        info = await self._parts.engine.start()
        space = self._parts.engine.kv
        if space is not None:
            if self._parts.open_tiers is not None:
                self._tiers = self._parts.open_tiers(space, info)
            await self._side.open(space, self._tiers)
        self._took("load", began)
        epoch = space.epoch if space is not None else self._parts.entropy.u64()
        self._events.emit("loading", fraction=1.0)
        incarnation = WorkerEpoch(epoch, self._parts.deadlines.heartbeat_lost_s, self._renew)
        told, who = self._parts.settings.kv_events and info.kv_events, self._name
        unexchanged = (f"KV is not exchanged: {info.not_exchanged}",) if info.not_exchanged else ()
        problems = unexchanged or self._parts.kv_problems
        identity = Identity(
            who.worker_id,
            who.role,
            info,
            who.revision,
            problems=problems,
            kv_events=told,
            hardware=self._parts.hardware,
        )
        fetcher, health = self._side.fetcher, self._health
        self._host = WorkerHost(self._parts, identity, incarnation, fetcher, health, self._tiers)
        if self._parts.open_publisher is not None and told:
            self._host.publisher = self._parts.open_publisher(self._host.hello(), self._names)

    def _took(self, stage: str, began: float) -> None:
        self._parts.meter.set("tandem_start_stage_seconds", self._parts.clock.now() - began, stage)

    def _names(self) -> Mapping[str, Sequence[bytes]]:
        """Everything there is, by tier."""
        return {POOL: self._parts.engine.snapshot(), **(self._tiers.snapshot() if self._tiers is not None else {})}

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        roots: dict[str, Callable[[], Awaitable[None]]] = {
            "engine": lambda: self._parts.engine.run(self.host.listen),
            "host": lambda: self.host.run(self._running.set),
        }
        if self.host.publisher is not None:
            roots["publisher"] = self.host.publisher.run
        return roots

    async def serve(self) -> None:
        """Accept routers, and prove the own KV path before taking work from them. Raises what `CanaryResult.check`
        does."""
        await self._running.wait()
        self.address = await self._links.start(self.host.accept)
        self._events.emit("listening", address=self.address)
        self._health.alive()
        began = self._parts.clock.now()
        proof = await self._prove()
        self._took("canary", began)
        addresses = await self._side.settle(proof.broken)
        canary = "self" if proof.carried else ""
        self._events.emit("canary", canary=canary, paths=" ".join(proof.carried), broken="; ".join(proof.problems))
        problems = (*self.host.identity.problems, *proof.problems)
        identity = replace(self.host.identity, addresses=addresses, canary=canary, problems=problems)
        self.host.become_ready(identity)

    async def _prove(self) -> CanaryResult:
        if not self._parts.settings.canary:
            return CanaryResult(broken=self._side.failed)
        proof = await SelfCanary(self.host, self._side, self._parts).prove()
        proof.check()
        return proof

    async def drain_requested(self) -> float | None:
        await self.host.drain_state.asked.wait()
        return self.host.drain_state.left_s

    async def drain(self, within_s: float) -> None:
        """Refuse new work, wait for attempts to end and exported blocks to be fetched, cancel the rest.

        Heartbeats and pulls go on all the while.
        """
        self.host.start_drain(within_s)
        told = asdict(await self.host.drained())
        event(_log, "drained", worker=self._name.worker_id, **told)
        self._events.emit("drained", **told)
        if self.host.publisher is not None:
            await self.host.publisher.close()
        await self._links.stop()

    def held(self) -> Mapping[str, int]:
        return self.host.held()

    async def stop(self) -> None:
        await self._links.stop()
        if self._host is not None and self._host.publisher is not None:
            await self._host.publisher.close()
        await self._side.close()
        if self._tiers is not None:
            await self._tiers.close()
        if self._started:
            await self._parts.engine.stop()

    def _renew(self) -> int:
        epoch = self._parts.entropy.u64()
        self._begin_epoch(epoch)
        event(_log, "new_incarnation", worker=self._name.worker_id, epoch=f"{epoch:016x}")
        return epoch
