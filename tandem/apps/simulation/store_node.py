"""A simulated store: the real store service over memory links, transport and shelves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kv_store.service import StoreDeps, StoreService
from kv_store.settings import CollectSettings, StoreSettings
from kv_transfer.tiers.backend import HeldSpace
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryBackend
from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.environment import NodeEnvironment
from tandem.apps.simulation.loop import Process
from tandem.apps.simulation.process_node import Life, Names, ProcessNode, Service
from tandem.apps.simulation.watch import WatchedTransport
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.process.workers_file import Member

_NOWHERE: Final = Path("/nowhere")


@dataclass(eq=False, kw_only=True)
class StoreLife(Life):
    """One life of a store's process."""

    service: StoreService


class FixedMembers:
    """`kv_store.service.Membership` of a world, in which it never changes who the workers are."""

    def __init__(self, members: Sequence[Member], tell: Callable[[Sequence[Member]], None]) -> None:
        self._members = members
        self._tell = tell

    def look(self) -> None:
        self._tell(self._members)

    async def run(self) -> None:
        self.look()


class StoreNode(ProcessNode[StoreLife]):
    """One machine with one store that keeps what `workers` have."""

    def __init__(
        self, name: str, workers: Sequence[str], ground: NodeEnvironment, clock: Clock, entropy: SeededEntropy
    ) -> None:
        super().__init__(name, ground.loop, ground.links, clock)
        self._members = tuple(Member(worker) for worker in workers)
        self._ground = ground
        self._entropy = entropy

    # -- life --

    def _begin(self, process: Process) -> tuple[StoreLife, Service]:
        ground, made = self._ground, list[StoreLife]()
        transport = WatchedTransport(ground.fabric, self.name, lambda: _epoch(made[0].service), ground.broken)
        service = StoreService(self._settings(), self._parts(self._entropy.fork(process.name), transport))
        drain_s = ground.deadlines.drain_s
        made.append(StoreLife(process=process, transport=transport, drain_s=drain_s, service=service))
        return made[0], service

    def _settings(self) -> StoreSettings:
        shared = self._ground.shared
        return StoreSettings(
            worker_id=self.name,
            workers_file=_NOWHERE,
            ticket_key_file=_NOWHERE,
            tiers=shared.store_tiers,
            collect=CollectSettings(after_s=shared.collect_after_s),
            deadlines=self._ground.deadlines,
        )

    def _parts(self, entropy: SeededEntropy, transport: WatchedTransport) -> StoreDeps:
        ground, events = self._ground, EventLines()
        return StoreDeps(
            links=ground.links.server(self.name),
            dialer=ground.links.dialer(self.name),
            transports=(transport,),
            keyring=ground.keyring,
            clock=self._clock,
            entropy=entropy,
            meter=ground.meter,
            events=events,
            health=Health(events, ground.meter),
            open_tiers=self._open_tiers,
            open_membership=lambda tell: FixedMembers(self._members, tell),
            open_publisher=ground.publishing(self.name, self._clock, self._publishes),
        )

    def _open_tiers(self, settings: TierSettings, space: HeldSpace, _root: bytes) -> LocalTiers:
        dram, nvme = self.disks["dram"], self.disks["nvme"]
        self._tiers = memory_tiers(settings, space, self._clock, self._ground.meter, nvme, dram)
        return self._tiers

    # -- what the world looks at --

    def _check(self, now: StoreLife) -> None:
        """Every place of every tier is free, has a block, or waits for one that is coming."""
        now.service.host.check()
        assert self._tiers is not None
        for level in self._tiers.levels:
            backend = level.backend
            assert isinstance(backend, MemoryBackend)
            coming = now.service.coming if backend.tier == "dram" else 0
            if backend.places_free + len(self.disks[backend.tier].records) + coming != backend.blocks:
                raise AssertionError(
                    f"{self.name} has {backend.blocks} places in {backend.tier}: {backend.places_free} are free, "
                    f"{len(self.disks[backend.tier].records)} have blocks, {coming} wait for one"
                )

    def held(self) -> str | None:
        now = self.incarnation
        lent = now.service.held() if now is not None else {}
        return f"{self.name} holds {dict(lent)}" if lent else None

    def names(self) -> Names:
        return {} if self.incarnation is None else self._lower_names()

    def names_in_sync(self, epoch: int, count: int) -> Names | None:
        now = self.incarnation
        if now is None or now.service.host.told != (epoch, count):
            return None
        return self.names()


def _epoch(service: StoreService) -> int:
    return service.host.incarnation.epoch
