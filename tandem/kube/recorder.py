"""Record Events on objects, so that `kubectl describe` shows what the operator did and why.

The same reason and sentence about the same object is one Event whose count goes up, written at most once a minute.
Each object has a budget of Events, so that a flapping object cannot fill the cluster's store. Losing an Event is not
an error.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster
from tandem.kube.kinds import EVENT, Json
from tandem.kube.times import micro_timestamp

EventType = Literal["Normal", "Warning"]
_NOTE_MAX: Final = 1024
_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class RecorderSettings:
    """Per object: so many Events at once, and one more each `refill_s`. A repeated one is written each `again_s`."""

    burst: int = 25
    refill_s: float = 300.0
    again_s: float = 60.0


@dataclass
class _Series:
    name: str
    first: str
    count: int = 0
    written_at: float | None = None


@dataclass
class _Budget:
    tokens: float
    refilled: float


@dataclass
class EventRecorder:
    """Writes Events as `component` (a name such as `tandem.dev/operator`) running as `instance`."""

    cluster: Cluster
    clock: Clock
    component: str
    instance: str
    settings: RecorderSettings = field(default_factory=RecorderSettings)
    dropped: int = 0
    _series: dict[tuple[str, str, str], _Series] = field(default_factory=dict)
    _budgets: dict[str, _Budget] = field(default_factory=dict)

    async def record(self, about: Json, kind: EventType, reason: str, note: str, action: str = "Reconcile") -> bool:
        """Say `note` about an object that has a uid. False when it was left out or could not be written."""
        note = note if len(note) <= _NOTE_MAX else note[: _NOTE_MAX - 1] + "…"
        series = self._of(about, reason, note)
        series.count += 1
        if not self._due(series) or not self._afford(about["metadata"]["uid"]):
            return False
        series.written_at = self.clock.now()
        try:
            await self.cluster.apply(self._event(about, series, kind, reason, note, action), self.component)
        except TandemError:
            self.dropped += 1
            return False
        return True

    def _of(self, about: Json, reason: str, note: str) -> _Series:
        key = (about["metadata"]["uid"], reason, note)
        series = self._series.pop(key, None)
        if series is None:
            now = micro_timestamp(self.clock.wall())
            digest = blake2b("\0".join((*key, now, self.instance)).encode(), digest_size=8).hexdigest()
            series = _Series(f"{about['metadata']['name'][:200]}.{digest}", now)
        self._series[key] = series
        if len(self._series) > _REMEMBERED:
            del self._series[next(iter(self._series))]
        return series

    def _due(self, series: _Series) -> bool:
        return series.written_at is None or self.clock.now() - series.written_at >= self.settings.again_s

    def _afford(self, uid: str) -> bool:
        now = self.clock.now()
        budget = self._budgets.pop(uid, None) or _Budget(self.settings.burst, now)
        refill = (now - budget.refilled) / self.settings.refill_s
        budget.tokens = min(float(self.settings.burst), budget.tokens + refill)
        budget.refilled = now
        self._budgets[uid] = budget
        if len(self._budgets) > _REMEMBERED:
            del self._budgets[next(iter(self._budgets))]
        if budget.tokens < 1:
            self.dropped += 1
            return False
        budget.tokens -= 1
        return True

    def _event(self, about: Json, series: _Series, kind: EventType, reason: str, note: str, action: str) -> Json:
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        event: Json = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": series.name, "namespace": namespace},
            "eventTime": series.first,
            "reportingController": self.component,
            "reportingInstance": self.instance[:128],
            "action": action,
            "reason": reason,
            "type": kind,
            "note": note,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
            },
        }
        if series.count > 1:
            event["series"] = {"count": series.count, "lastObservedTime": micro_timestamp(self.clock.wall())}
        return event
