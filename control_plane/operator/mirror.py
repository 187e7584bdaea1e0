"""Mirrors of everything that services consist of, in the namespaces that are looked after.

Kinds that a cluster may lack are looked for again and again: what is installed later is used from then on, and what
is removed is lacking from then on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from control_plane.objects.names import MANAGED, SERVICE, labels_of
from control_plane.objects.pruning import served_schema
from control_plane.observe.kept import KEPT
from control_plane.observe.reading import CHILDREN, OPTIONAL
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster, NotFound, Selector
from tandem.kube.kinds import CUSTOM_RESOURCE, MODEL_SERVICE, POD, SCALED_OBJECT, Json, Kind, Ref
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.kube.store import Key, Store, key_of
from tandem.process.logs import event
from tandem.spec.model_names import Claim, claim_of, holders
from tandem.spec.tenants import EVERYBODY, Tenants

_log = logging.getLogger(__name__)

ROUTERS: Final = "app.kubernetes.io/name=tandem-router"
_SCALED_OBJECTS: Final = f"{SCALED_OBJECT.plural}.{SCALED_OBJECT.group}"
_LOOK_AGAIN_S: Final = 60.0
_GONE_S: Final = 10.0
"""Seconds for which the server must report a kind missing, and nothing else, before the kind counts as gone. A kind
whose definition is replaced is missing for a moment, as are all kinds while a server starts."""
_GONE_LOOK_S: Final = 2.0
_STALE_S: Final = 300.0
"""Seconds without news after which a mirror is too stale to act on; bookmarks come each minute."""


@dataclass(frozen=True)
class Watched:
    """The namespaces to watch, all of them when empty, and the namespace of the routers; None where routers are not
    watched. Services whose names `tenants` refuses hold no name."""

    namespaces: tuple[str, ...] = ()
    routers_in: str | None = None
    tenants: Tenants = EVERYBODY


class Mirror:
    """`on_change` is called with namespace and name of a service of which something changed."""

    def __init__(
        self,
        cluster: Cluster,
        watched: Watched,
        clock: Clock,
        entropy: Entropy,
        on_change: Callable[[Key], None],
        settings: ReflectorSettings | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._on_change = on_change
        self._namespaces: Sequence[str | None] = watched.namespaces or (None,)
        self._reflectors: dict[tuple[Kind, str | None], Reflector] = {}
        self._running: dict[Reflector, asyncio.Task[None]] = {}
        self._tenants = watched.tenants
        self._claims: dict[str, dict[Key, Claim]] = {}
        """By the name of a model, the services that want it."""
        self._changed_services: set[Key] = set()
        for kind in (MODEL_SERVICE, POD, *CHILDREN):
            self._add(kind)
        self.keda_schema: Json | None = None
        """OpenAPI schema of the cluster's ScaledObject, read each time that kinds are looked for; None where there is
        none or it may not be read."""
        self._routers: Reflector | None = None
        if watched.routers_in is not None:
            selector = Selector(POD, watched.routers_in, ROUTERS)
            self._routers = Reflector(cluster, selector, clock, entropy, settings, KEPT[POD])

    # -- Reading --------------------------------------------------------------------------------------------------

    def stores(self, namespace: str) -> Mapping[Kind, Store]:
        """The stores of one namespace or, where all namespaces are mirrored as one, of all."""
        place = namespace if (MODEL_SERVICE, namespace) in self._reflectors else None
        return {kind: each.store for (kind, where), each in self._reflectors.items() if where == place}

    def services(self) -> Iterator[Json]:
        """All ModelServices."""
        return self.objects(MODEL_SERVICE)

    def objects(self, wanted: Kind) -> Iterator[Json]:
        """All objects of a kind that is mirrored."""
        for (kind, _), reflector in self._reflectors.items():
            if kind == wanted:
                yield from reflector.store

    def service(self, key: Key) -> Json | None:
        return self.stores(key[0])[MODEL_SERVICE].get(key)

    def take_changed_services(self) -> set[Key]:
        """The services whose objects have changed, come or gone since the last call."""
        taken, self._changed_services = self._changed_services, set()
        return taken

    def name_holder(self, obj: Json) -> str:
        """The service, as `namespace/name`, that has the model's name of this one; empty where none may have it."""
        model = claim_of(obj).model
        found = holders(self._claims.get(model, {}).values())
        return found[model].service if model in found else ""

    def routers(self) -> list[Json]:
        """Pods of routers."""
        return [] if self._routers is None else list(self._routers.store)

    def problem(self) -> str | None:
        """Why what is here may not be what the cluster has, or None."""
        for (kind, _), reflector in self._reflectors.items():
            if not reflector.has_synced:
                return f"{kind.plural} are not read yet{_because(reflector)}"
            heard = reflector.heard_at
            if heard is not None and self._clock.now() - heard > _STALE_S:
                return (
                    f"nothing was heard of {kind.plural} for {self._clock.now() - heard:.0f} s{_because(reflector)}"
                )
        return None

    # -- Running --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Mirror until cancelled."""
        await self._add_optional()
        await self._read_schema()
        async with asyncio.TaskGroup() as tasks:
            self._start(self._all(), tasks)
            tasks.create_task(self._let_go(tasks))
            while True:
                await asyncio.sleep(_LOOK_AGAIN_S)
                added = await self._add_optional()
                if await self._read_schema() or added:
                    self._start(added, tasks)
                    tasks.create_task(self._look_again())

    async def synced(self) -> None:
        """Wait until everything has been read once; bound it by a timeout."""
        while waiting := [each for each in self._all() if not each.has_synced]:
            with suppress(TimeoutError):
                # Its kind may go meanwhile: then it is no longer waited for.
                async with asyncio.timeout(_GONE_LOOK_S):
                    await waiting[0].synced()

    def _start(self, reflectors: Sequence[Reflector], tasks: asyncio.TaskGroup) -> None:
        for reflector in reflectors:
            self._running[reflector] = tasks.create_task(reflector.run())

    def _all(self) -> list[Reflector]:
        routers = [] if self._routers is None else [self._routers]
        return [*self._reflectors.values(), *routers]

    def _add(self, kind: Kind) -> list[Reflector]:
        added = []
        for namespace in self._namespaces:
            labels = "" if kind == MODEL_SERVICE else MANAGED
            selector = Selector(kind, namespace, labels)
            reflector = Reflector(self._cluster, selector, self._clock, self._entropy, self._settings, KEPT[kind])
            reflector.store.on_change(self._own_change if kind == MODEL_SERVICE else self._child_change)
            self._reflectors[kind, namespace] = reflector
            added.append(reflector)
        return added

    async def _add_optional(self) -> list[Reflector]:
        """Begin to mirror kinds that the cluster has by now; mirrors of them that have begun."""
        added: list[Reflector] = []
        for kind in OPTIONAL:
            if (kind, self._namespaces[0]) not in self._reflectors and await self._has(kind):
                event(_log, "kind_found", kind=kind.kind)
                added += self._add(kind)
        return added

    async def _read_schema(self) -> bool:
        """Read how this version of KEDA defines its ScaledObject; whether that has changed."""
        before = self.keda_schema
        try:
            there = await self._cluster.get(Ref(CUSTOM_RESOURCE, "", _SCALED_OBJECTS))
            self.keda_schema = served_schema(there, SCALED_OBJECT)
        except NotFound:
            self.keda_schema = None
        except TandemError as error:
            event(_log, "schema_not_read", level=logging.WARNING, kind=_SCALED_OBJECTS, problem=error.message)
        return self.keda_schema != before

    async def _let_go(self, tasks: asyncio.TaskGroup) -> None:
        """Mirror no longer what the cluster has no longer."""
        while True:
            await asyncio.sleep(_GONE_LOOK_S)
            gone = [kind for kind in OPTIONAL if self._is_gone(kind)]
            for kind in gone:
                event(_log, "kind_gone", level=logging.WARNING, kind=kind.kind)
                for place in [each for each in self._reflectors if each[0] == kind]:
                    self._running.pop(self._reflectors.pop(place)).cancel()
            if gone:
                tasks.create_task(self._look_again())

    def _is_gone(self, kind: Kind) -> bool:
        mirrored = [each for (which, _), each in self._reflectors.items() if which == kind]
        return bool(mirrored) and all(each.missing_s > _GONE_S for each in mirrored)

    async def _look_again(self) -> None:
        """Every service once more, as soon as everything is read: nothing else stirs those that are settled."""
        await self.synced()
        for obj in self.services():
            self._on_change(key_of(obj))

    async def _has(self, kind: Kind) -> bool:
        try:
            await self._cluster.list_page(Selector(kind, self._namespaces[0], MANAGED), 1)
        except TandemError:
            return False
        return True

    def _own_change(self, key: Key, old: Json | None, new: Json | None) -> None:
        self._changed_services.add(key)
        self._on_change(key)
        before, after = (None if obj is None else self._claim(obj) for obj in (old, new))
        if before == after:
            return
        if before is not None:
            self._claims[before.model].pop(key)
        if after is not None:
            self._claims.setdefault(after.model, {})[key] = after
        # What was taken may be free now, or the other way round.
        for model in {claim.model for claim in (before, after) if claim is not None}:
            if not self._claims[model]:
                del self._claims[model]
            for other in self._claims.get(model, {}):
                if other != key:
                    self._on_change(other)

    def _claim(self, obj: Json) -> Claim | None:
        return None if self._tenants.refused(obj) is not None else claim_of(obj)

    def _child_change(self, key: Key, old: Json | None, new: Json | None) -> None:
        named = {labels_of(obj).get(SERVICE) for obj in (old, new) if obj is not None}
        for name in named:
            if name:
                self._on_change((key[0], name))


def _because(reflector: Reflector) -> str:
    return f": {reflector.last_error}" if reflector.last_error else ""
