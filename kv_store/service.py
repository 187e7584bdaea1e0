"""The store as a service: learn whose blocks these are, keep what workers have, lend it to who asks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Protocol

from kv_store.block_server import BlockServer
from kv_store.engine import IdleEngine, info_of
from kv_store.replicator import Replicator
from kv_store.settings import StoreSettings
from kv_store.watcher import WorkerWatcher, link_handshake
from kv_transfer.tickets import Keyring
from kv_transfer.tiers.backend import FillableBackend, HeldSpace
from kv_transfer.tiers.inbound import InboundBlocks
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.protocol import Transport
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.kv import Handle, Layout
from tandem.core.messages import Hello
from tandem.core.metrics import Meter
from tandem.engine.hashing import InlineHashing, OpenHashing
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import BlockMemory
from tandem.link.protocol import Dialer, LinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines, event
from tandem.process.workers_file import Member
from tandem.worker.deps import OpenPublisher, WorkerDeps
from tandem.worker.epoch import WorkerEpoch
from tandem.worker.host import WorkerHost
from tandem.worker.identity import Identity, root_name
from tandem.worker.simple_decoder import SimpleDecoder

_log = logging.getLogger(__name__)

_ROLE = "store"


class Membership(Protocol):
    """Tells which workers there are (`tandem.process.workers_file.WorkersFile`)."""

    def look(self) -> None:
        """Tell of what has changed since the last look."""
        ...

    async def run(self) -> None:
        """Look until cancelled."""
        ...


OpenMembership = Callable[[Callable[[Sequence[Member]], None]], Membership]
"""Builds the membership from the callback that takes the members."""
OpenTiers = Callable[[TierSettings, HeldSpace, bytes], LocalTiers]
"""Builds the tiers from the settings, the space above the tiers, and the root name of the blocks. The first tier is
in memory."""


@dataclass(frozen=True)
class StoreDeps:
    """Dependencies of a store: the seams that its process, or the simulator, provides."""

    links: LinkServer
    dialer: Dialer
    transports: tuple[Transport, ...]
    keyring: Keyring
    clock: Clock
    entropy: Entropy
    meter: Meter
    events: EventLines
    health: Health
    open_tiers: OpenTiers
    open_membership: OpenMembership
    open_publisher: OpenPublisher | None = None
    """Builds the publisher that reports the store's blocks to an index beyond the links; None when there is no such
    index."""
    open_hashing: OpenHashing = InlineHashing
    """Makes who checks blocks that arrive."""


class NoPool:
    """`kv_transfer.tiers.backend.HeldSpace` of a store, which has no pool above its tiers."""

    def __init__(self, layout: Layout, epoch: int) -> None:
        self.epoch = epoch
        self.layout = layout
        self.memory: BlockMemory = PrivateMemory(layout.block_bytes, 1)

    def hold(self, name: bytes) -> Handle | None:
        return None

    def unhold(self, slot: int) -> None:
        raise AssertionError("nothing is ever held")


class StoreService:
    """`tandem.process.run.Service` of a store."""

    def __init__(self, settings: StoreSettings, parts: StoreDeps) -> None:
        self._settings = settings
        self._parts = parts
        self._members: tuple[Member, ...] = ()
        self._known = asyncio.Event()
        self._observers: dict[str, asyncio.Task[None]] = {}
        self._running = asyncio.Event()
        self._engine: IdleEngine | None = None
        self._tiers: LocalTiers | None = None
        self._host: WorkerHost | None = None
        self._inbound: InboundBlocks | None = None
        self._block_server: BlockServer | None = None
        self._replicator: Replicator | None = None
        self._hello: Hello | None = None
        self._membership = parts.open_membership(self._take_members)
        self.address = ""
        """The address that routers dial, once `serve` has returned."""

    # -- beginning --

    async def start(self) -> None:
        """Ask workers what model's blocks these are, then open the tiers. Raises `bad_setting`, `link_lost`."""
        self._parts.events.emit("loading", fraction=0.0)
        self._hello = hello = await self._first_hello()
        epoch, layout = self._parts.entropy.u64(), hello.layout
        parts, settings = self._parts, self._settings
        if settings.tiers.dram_bytes < layout.block_bytes:
            problem = f"tiers.dram_bytes = {settings.tiers.dram_bytes}: one block takes {layout.block_bytes} bytes"
            raise TandemError("bad_setting", problem, param="tiers.dram_bytes")
        through = replace(settings.tiers, write_through=True)
        self._tiers = parts.open_tiers(through, NoPool(layout, epoch), hello.root)
        upper, *lower = self._tiers.levels
        assert isinstance(upper.backend, FillableBackend), "a store lends from memory"
        self._inbound = filling = InboundBlocks(upper, upper.backend)
        incarnation = WorkerEpoch(epoch, settings.deadlines.heartbeat_lost_s, parts.entropy.u64)
        below, keyring, batch_bytes = (lower[0] if lower else None), parts.keyring, settings.tiers.batch_bytes
        self._block_server = BlockServer(
            filling, below, layout, lambda: incarnation.epoch, keyring, parts.clock, batch_bytes
        )
        self._replicator = Replicator(
            filling,
            self._here,
            layout,
            lambda: incarnation.epoch,
            parts.transports,
            keyring,
            settings.collect,
            parts.clock,
            parts.entropy,
            parts.meter,
            parts.open_hashing(layout),
        )
        self._engine = IdleEngine(info_of(hello, upper.book.blocks))
        self._host = self._make_host(incarnation, await self._serve_pulls())
        if parts.open_publisher is not None:
            self._host.publisher = parts.open_publisher(self._host.hello(), self._tiers.snapshot)
        parts.events.emit("loading", fraction=1.0)

    def _make_host(self, incarnation: WorkerEpoch, addresses: tuple[str, ...]) -> WorkerHost:
        assert self._engine is not None
        parts, settings = self._parts, self._settings
        worker = WorkerDeps(
            self._engine, SimpleDecoder(), parts.clock, parts.entropy, meter=parts.meter, deadlines=settings.deadlines
        )
        revision = settings.revision or (self._hello.revision if self._hello is not None else "")
        identity = Identity(settings.worker_id, _ROLE, self._engine.info, revision, addresses)
        return WorkerHost(worker, identity, incarnation, None, parts.health, self._tiers)

    async def _first_hello(self) -> Hello:
        """The hello of the first worker that answers. Raises `link_lost` when none does in time."""
        try:
            async with asyncio.timeout(self._settings.identity_s):
                while True:
                    self._membership.look()
                    for member in self._members:
                        hello = await self._ask(member.address)
                        if hello is not None and hello.role != _ROLE:
                            return hello
                    await asyncio.sleep(self._settings.collect.retry_s)
        except TimeoutError:
            workers = self._settings.workers_file or self._settings.kubernetes
            problem = f"no worker of {workers} has said what model it serves"
            raise TandemError("link_lost", f"{problem} within {self._settings.identity_s:.0f} s") from None

    async def _ask(self, address: str) -> Hello | None:
        try:
            async with link_handshake(self._parts.dialer, address, self._settings.deadlines) as (_, hello):
                return hello
        except TandemError as error:
            event(_log, "worker_unheard", worker=address, reason=error.message)
            return None

    async def _serve_pulls(self) -> tuple[str, ...]:
        """Serve over every transport that can be. Raises `bad_setting` when none can."""
        assert self._block_server is not None
        served, failed = list[str](), list[TandemError]()
        for transport in self._parts.transports:
            try:
                served.append(await transport.serve(self._block_server))
            except TandemError as error:
                failed.append(error)
        if failed and not served:
            raise failed[0]
        return tuple(served)

    # -- running --

    @property
    def host(self) -> WorkerHost:
        """The host; there once `start` has returned."""
        assert self._host is not None, "start() has not returned yet"
        return self._host

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        assert self._engine is not None
        assert self._replicator is not None
        roots: dict[str, Callable[[], Awaitable[None]]] = {
            "engine": partial(self._engine.run, self.host.listen),
            "host": lambda: self.host.run(self._running.set),
            "collector": self._replicator.run,
            "observers": self._observe,
        }
        if self.host.publisher is not None:
            roots["publisher"] = self.host.publisher.run
        return roots

    async def serve(self) -> None:
        """Accept routers. The search for blocks on NVMe continues meanwhile."""
        await self._running.wait()
        self.address = await self._parts.links.start(self.host.accept)
        self._parts.events.emit("listening", address=self.address)
        self._parts.health.alive()
        self.host.become_ready(self.host.identity)

    async def _observe(self) -> None:
        """An observer for every member of the workers file."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._membership.run())
            while True:
                wanted = dict.fromkeys(member.address for member in self._members if member.address != self.address)
                for address in [known for known in self._observers if known not in wanted]:
                    self._observers.pop(address).cancel()
                for address in wanted:
                    if address not in self._observers:
                        self._observers[address] = group.create_task(self._observer(address).run())
                self._known.clear()
                await self._known.wait()

    def _observer(self, address: str) -> WorkerWatcher:
        assert self._replicator is not None
        settings = self._settings
        return WorkerWatcher(
            self._parts.dialer, address, self._problem_with, self._replicator, settings.deadlines, settings.collect
        )

    def _problem_with(self, hello: Hello) -> str | None:
        """Why a worker's blocks cannot be kept here."""
        if hello.role == _ROLE:
            return "it is a store itself"
        info = self.host.identity.info
        if hello.root != root_name(info):
            return f"it serves {hello.model} ({hello.model_hash[:12]}), this store keeps blocks of {info.model}"
        return info.layout.incompatibility(hello.layout)

    def _take_members(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)
        self._known.set()

    def _here(self, name: bytes) -> bool:
        assert self._tiers is not None
        return any(level.book.knows(name) for level in self._tiers.levels)

    # -- ending --

    async def drain_requested(self) -> float | None:
        await self.host.drain_state.asked.wait()
        return self.host.drain_state.left_s

    async def drain(self, within_s: float) -> None:
        """Routers use other sources from now on; pulls that run end with their leases."""
        self.host.start_drain(within_s)
        try:
            async with asyncio.timeout(within_s):
                while self.held():  # noqa: ASYNC110 - leases end by themselves within seconds
                    await asyncio.sleep(0.05)
        except TimeoutError:
            event(_log, "drain_cut_off", worker=self._settings.worker_id, **self.held())
        self._parts.events.emit("drained", **asdict(self.host.drain_state.farewell))
        if self.host.publisher is not None:
            await self.host.publisher.close()
        await self._parts.links.stop()

    @property
    def coming(self) -> int:
        """Blocks on their way here, for which places are kept."""
        return self._inbound.coming if self._inbound is not None else 0

    def held(self) -> Mapping[str, int]:
        lent = self._block_server.blocks_lent if self._block_server is not None else 0
        return {"lent_blocks": lent} if lent else {}

    async def stop(self) -> None:
        await self._parts.links.stop()
        for transport in self._parts.transports:
            await transport.close()
        if self._tiers is not None:
            await self._tiers.close()
        if self._engine is not None:
            await self._engine.stop()
