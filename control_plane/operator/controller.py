"""Looks at one service at a time: mirror and routers in, plan out, plan carried out."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from control_plane.objects.installation import Installation
from control_plane.objects.names import REVISION, SERVICE, labels_of
from control_plane.objects.revisions import RevisionRecord, read_revision
from control_plane.observe.desired_spec import read_desired_spec
from control_plane.observe.observed import DesiredSpec, ModelFacts, Observed
from control_plane.observe.pods import PodLoad
from control_plane.observe.reading import ReportedInputs, observe
from control_plane.operator.applier import Applier
from control_plane.operator.health import RolloutHealth
from control_plane.operator.mirror import Mirror
from control_plane.reconcile import reconcile
from control_plane.reconcile.capacity_check import measured_memory
from control_plane.reconcile.desired_state import read_status
from control_plane.reconcile.service_status import awaits_routers
from control_plane.reconcile.turns import ASKING, Line, Standing, awaited_until_s, look_again_s, state_of
from control_plane.rollout import Health
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.kube.kinds import CONTROLLER_REVISION, Json, Ref
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tandem.process.logs import event

_log = logging.getLogger(__name__)
_SOON_S: Final = 1.0
_RECORDS_MAX: Final = 20_000

Key = tuple[str, str]


class Reports(Protocol):
    """Reports from routers, by service."""

    def health(self, key: Key, revision: str) -> Health:
        """Totals of a revision."""
        ...

    def loads(self, key: Key) -> dict[str, PodLoad]:
        """Loads of a service's workers, by pod."""
        ...

    def routers(self, key: Key) -> dict[str, frozenset[str]]:
        """Routers that take requests, each with the revisions of a service to which it gives new requests."""
        ...


class Nodes(Protocol):
    """Labels of nodes with accelerators, each kind of node once."""

    known: tuple[Mapping[str, str], ...]


class Models(Protocol):
    """Source of facts about models."""

    def facts(self, obj: Json, wish: DesiredSpec) -> ModelFacts | None: ...


@dataclass(frozen=True)
class ControllerDeps:
    """Dependencies of the controller."""

    mirror: Mirror
    reports: Reports
    models: Models
    applier: Applier
    recorder: EventRecorder
    queue: "WorkQueue[Key]"
    clock: Clock
    meter: Meter
    installation: Installation
    nodes: Nodes | None = None


class Controller:
    """Reconciles services. The queue's workers call `work` and `failed`; `observed` gives the observed state of a
    service."""

    def __init__(self, tools: ControllerDeps) -> None:
        self._tools = tools
        self._wishes: dict[Key, tuple[tuple[str, int], DesiredSpec]] = {}
        self._records: dict[str, RevisionRecord] = {}
        self._line = Line()
        self._health = RolloutHealth()

    async def work(self, key: Key) -> float | None:
        """Bring one service up to date and return the seconds until its next look."""
        tools = self._tools
        began = tools.clock.now()
        tools.meter.set("tandem_operator_queue", float(len(tools.queue)))
        if tools.mirror.service(key) is None:
            self._forget(key)
            return None
        if not tools.applier.caught_up(key, self._stored):
            return _SOON_S
        observed = self.observed(key)
        assert observed is not None
        plan = reconcile(observed, tools.clock.wall(), tools.installation)
        try:
            await tools.applier.carry_out(key, plan, self._stored)
        except TandemError as error:
            await tools.recorder.record(observed.object, "Warning", "ReconcileFailed", error.message)
            raise
        tools.meter.add("tandem_operator_reconciles_total", 1.0, "done")
        tools.meter.observe("tandem_operator_reconcile_seconds", tools.clock.now() - began)
        # Nothing in the cluster tells that a router has heard of something.
        unheard_s = _SOON_S if awaits_routers(observed) else None
        waiting_s = look_again_s(observed.turns, tools.installation.rollouts_at_once) if observed.turns else None
        waits = plan.requeue_after_s, tools.applier.waits_s(key), unheard_s, waiting_s
        return min((each for each in waits if each is not None), default=None)

    def failed(self, key: Key, why: str) -> None:
        """A look failed: it will be tried again."""
        self._tools.meter.add("tandem_operator_reconciles_total", 1.0, "failed")
        event(_log, "reconcile_failed", level=logging.WARNING, service="/".join(key), problem=why)

    def observed(self, key: Key) -> Observed | None:
        """The service as it is now; None for one that there is not."""
        tools = self._tools
        obj = tools.mirror.service(key)
        if obj is None:
            return None
        wish = self.wish(key, obj)
        told = ReportedInputs(loads=tools.reports.loads(key), model=tools.models.facts(obj, wish))
        found = observe(obj, wish, tools.mirror.stores(key[0]), told, self._record)
        return replace(
            found,
            extensions=replace(found.extensions, keda_schema=tools.mirror.keda_schema),
            health=self._health_of(key, found),
            routers=tools.reports.routers(key),
            name_holder=tools.mirror.name_holder(obj),
            turns=self._turns(key, obj),
            accelerator_bytes=self._measured(wish),
        )

    def _measured(self, wish: DesiredSpec) -> dict[str, int]:
        nodes = self._tools.nodes
        if nodes is None or wish.service is None:
            return {}
        return measured_memory(wish.service, nodes.known, self._tools.installation.accelerator_label)

    def _turns(self, key: Key, obj: Json) -> int:
        """Services before this one in the line for new defaults. The line is brought up to date by what has changed
        since some service asked last."""
        tools, at_once = self._tools, self._tools.installation.rollouts_at_once
        if at_once == 0 or self._standing(key, obj).state not in ASKING:
            return 0
        for each in tools.mirror.take_changed_services():
            other = tools.mirror.service(each)
            if other is None:
                self._line.remove("/".join(each))
            else:
                self._line.put(self._standing(each, other))
        return self._line.turns_until("/".join(key), at_once, tools.clock.wall())

    def _standing(self, key: Key, obj: Json) -> Standing:
        wish = self.wish(key, obj)
        leaving = "deletionTimestamp" in obj["metadata"]
        own = wish.own.spec if wish.own is not None and wish.problem is None and not leaving else None
        stored = self._tools.mirror.stores(key[0])[CONTROLLER_REVISION].labelled(SERVICE, key[1], key[0])
        # Others keep revisions of their own under this label, as the DaemonSet of a service's stores does.
        ours = (self._record(each) for each in stored if REVISION in labels_of(each))
        records = {record.name: record for record in ours}
        status = read_status(obj)
        state = state_of(status, own, wish.revision, records)
        until_s = math.inf if own is None else awaited_until_s(status, own)
        return Standing(str(obj["metadata"].get("creationTimestamp", "")), "/".join(key), state, until_s)

    def _health_of(self, key: Key, observed: Observed) -> dict[str, Health]:
        names = sorted({each.revision for each in observed.workers})
        aim = observed.wish.revision
        return self._health.since(key, aim, names, lambda revision: self._tools.reports.health(key, revision))

    def wish(self, key: Key, obj: Json) -> DesiredSpec:
        """Read once per generation."""
        version = (obj["metadata"]["uid"], int(obj["metadata"].get("generation", 0)))
        kept = self._wishes.get(key)
        if kept is None or kept[0] != version:
            kept = self._wishes[key] = (version, read_desired_spec(obj, self._tools.installation))
        return kept[1]

    def _record(self, obj: Json) -> RevisionRecord:
        """Read once: records are never changed."""
        uid = obj["metadata"]["uid"]
        record = self._records.pop(uid, None) or read_revision(obj)
        self._records[uid] = record
        if len(self._records) > _RECORDS_MAX:
            del self._records[next(iter(self._records))]
        return record

    def _stored(self, ref: Ref) -> Json | None:
        store = self._tools.mirror.stores(ref.namespace).get(ref.kind)
        return None if store is None else store.get((ref.namespace, ref.name))

    def _forget(self, key: Key) -> None:
        self._wishes.pop(key, None)
        self._health.forget(key)
        self._tools.applier.forget(key)
