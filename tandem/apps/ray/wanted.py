"""Which services are wanted, as the hub's objects say it: what commands change, and whether the hub is needed."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from control_plane.objects.names import annotations_of, pool_name
from tandem.apps.ray.hub_end import HubEnd
from tandem.apps.ray.kubelet import LEAVING
from tandem.apps.ray.placing import refusals
from tandem.apps.ray.pods import NAMESPACE
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, NotFound
from tandem.kube.kinds import ENGINE_POOL, MODEL_SERVICE, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.spec.checking import changed
from tandem.spec.pool import REPLICAS_MAX
from tandem.spec.reading import check
from tandem.spec.service import ModelService, Spec

LEAVE_S: Final = 30.0
"""Seconds that workers may drain whose routers were taken away."""
WANTED: Final = "ray.tandem.dev/wanted"
"""Annotation of a ModelService: the turn at which it was wanted last, as `EPOCH.VERSION`."""
_USER: Final = "user"
_LEAVER: Final = "tandem-ray-leave"
_TRIES: Final = 5
Turn = tuple[int, int]
"""The hub's epoch and the version of its objects: it grows with every change, and with every hub."""
_OVER: Final = "this hub is over, as no service was left: start what needs one again, which makes the next hub"


class WantedServices:
    """Decides one thing at a time: that a service is wanted, that it leaves, or that the hub is over. `end` and the
    hub's `epoch` may be replaced before anything is decided."""

    def __init__(self, cluster: MemoryCluster, clock: Clock) -> None:
        self.end = HubEnd(clock.now())
        self.epoch = 0
        self.over = False
        """Whether the hub ends: nothing can be wanted of it any more."""
        self._cluster = cluster
        self._clock = clock
        self._deciding = asyncio.Lock()

    def check_over(self) -> None:
        """Raises `link_lost` where the hub is over."""
        if self.over:
            raise TandemError("link_lost", _OVER)

    def turn(self) -> Turn:
        """The moment between two changes of the hub's objects."""
        return self.epoch, int(self._cluster.version)

    async def want(self, service: ModelService) -> None:
        """The service is to be as specified, and the hub stays. Raises `bad_setting` for what cannot be on Ray, and
        for a change of what cannot be changed, and `link_lost` where the hub is over."""
        name = service.metadata.name
        metadata = msgspec.structs.replace(service.metadata, namespace=NAMESPACE)
        plain = msgspec.to_builtins(msgspec.structs.replace(service, metadata=metadata))
        plain["metadata"]["annotations"].pop(LEAVING, None)
        noted = {key: plain["metadata"][key] for key in ("labels", "annotations") if plain["metadata"][key]}
        spec = {key: value for key, value in plain["spec"].items() if value is not None}
        body = _service_object(name)
        async with self._deciding:
            self.check_over()
            problem = check(service) or next(refusals(service), None) or self._unchangeable(service)
            if problem is not None:
                raise TandemError("bad_setting", problem)
            self.end.wanted(self._clock.now())
            # It may be on its way out.
            await self._mark(name, {})
            noted["annotations"] = {**noted.get("annotations", {}), WANTED: _written(self.turn())}
            await self._cluster.apply({**body, "metadata": {**body["metadata"], **noted}, "spec": spec}, _USER)

    async def scale(self, service: str, counts: Mapping[str, int]) -> None:
        """Set numbers of workers by pool. Raises `not_found` for a service or pool that there is not, and
        `invalid_request` for a number that no pool may have."""
        spec = self._spec(service)
        if spec is None:
            raise NotFound(f"there is no service {service!r}")
        for name, count in counts.items():
            if name not in {pool.name for pool in spec.pools}:
                raise NotFound(f"service {service!r} has no pool {name!r}")
            if not 0 <= count <= REPLICAS_MAX:
                problem = f"pool {name!r}: {count} workers; expected 0 to {REPLICAS_MAX}"
                raise TandemError("invalid_request", problem, param=name)
        fixed = {pool.name for pool in spec.pools if pool.replicas is not None}
        if fixed & counts.keys():
            await self._set_replicas(service, {name: count for name, count in counts.items() if name in fixed})
        for name, count in counts.items():
            ref = Ref(ENGINE_POOL, NAMESPACE, pool_name(service, name))
            if self._cluster.peek(ref) is not None:
                await self._cluster.scale(ref, count)
            elif name not in fixed:
                raise TandemError("conflict", f"pool {name!r} of service {service!r} is being made: try again")

    async def leave(self, service: str, within_s: float, asked: Turn | None = None) -> None:
        """The service is to go, after `within_s` seconds also with its workers. Nothing happens where there is none.
        Raises `Conflict` for one that was wanted after the turn at which this was `asked`."""
        async with self._deciding:
            found = self._cluster.peek(_ref(service))
            if found is not None and asked is not None and asked <= _read(annotations_of(found).get(WANTED)):
                raise wanted_again(service)
            await self._mark(service, self._leaving(within_s))

    def stays(self, service: str) -> bool:
        """Whether the service is there, and is not to go."""
        found = self._cluster.peek(_ref(service))
        return found is not None and LEAVING not in annotations_of(found)

    async def ask_to_end(self) -> bool:
        """The hub is to end once nothing of a service is left. Whether it is: not where there is a service."""
        async with self._deciding:
            self.end.asked = not self._cluster.objects(MODEL_SERVICE)
        return self.end.asked

    async def look(self, routers: bool | None, idle_s: float) -> None:
        """Decide as `HubEnd.next` does. Whoever wants a service comes before this decision, and keeps the hub, or
        after it, and is refused."""
        async with self._deciding:
            services = self._cluster.objects(MODEL_SERVICE)
            decided = self.end.next(routers, idle_s, self._clock.now())
            if decided == "leave":
                for each in services:
                    if LEAVING not in annotations_of(each):
                        await self._mark(each["metadata"]["name"], self._leaving(LEAVE_S))
            self.over = self.over or (decided == "clear" and not services)

    # -- Within ---------------------------------------------------------------------------------------------------

    def _spec(self, service: str) -> Spec | None:
        """The specification of a service as it is wanted; None for one that there is not."""
        obj = self._cluster.peek(_ref(service))
        return None if obj is None else msgspec.convert(obj["spec"], Spec)

    def _unchangeable(self, service: ModelService) -> str | None:
        """Why a service cannot be changed to this one; None where it can, or is new. An API server checks this by the
        rules of the CustomResourceDefinition."""
        old = self._spec(service.metadata.name)
        return None if old is None else next(changed(service.spec, old, "spec"), None)

    async def _set_replicas(self, service: str, counts: Mapping[str, int]) -> None:
        """In the service itself, which says how many workers these pools have. Raises `Conflict` when others write at
        the same time, again and again."""
        for last in (*(False,) * _TRIES, True):
            obj = await self._cluster.get(_ref(service))
            pools = [
                {**each, "replicas": counts.get(each["name"], each.get("replicas"))} for each in obj["spec"]["pools"]
            ]
            try:
                await self._cluster.update({**obj, "spec": {**obj["spec"], "pools": pools}})
            except Conflict:
                if last:
                    raise
            else:
                return

    def _leaving(self, within_s: float) -> Json:
        return {"annotations": {LEAVING: f"{self._clock.wall() + within_s:.3f}"}}

    async def _mark(self, service: str, noted: Json) -> None:
        """Note on a service that it leaves, or with nothing noted that it stays; nothing where there is none."""
        found = self._cluster.peek(_ref(service))
        if found is None:
            return
        body = _service_object(service)
        metadata = {**body["metadata"], "uid": found["metadata"]["uid"], **noted}
        # It may go at this moment, and is not to be made by this.
        with suppress(Conflict):
            await self._cluster.apply({**body, "metadata": metadata}, _LEAVER)


def wanted_again(service: str) -> Conflict:
    """What who has asked for a service to leave is told."""
    return Conflict(f"service {service!r} is wanted again: it stays")


def _written(turn: Turn) -> str:
    return ".".join(map(str, turn))


def _read(turn: str | None) -> Turn:
    """Before every turn where none is noted."""
    epoch, _, version = (turn or "0.0").partition(".")
    return int(epoch), int(version)


def _ref(service: str) -> Ref:
    return Ref(MODEL_SERVICE, NAMESPACE, service)


def _service_object(name: str) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": MODEL_SERVICE.api_version, "kind": MODEL_SERVICE.kind, "metadata": metadata}
