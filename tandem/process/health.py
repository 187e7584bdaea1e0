"""The stage of a service in its life, and what the service reports about it.

    starting ──► alive ──► ready ◄──► fenced
        └──────────┴─────────┴───────────┴──► draining ──► stopping

An *alive* service runs and can be reached, and takes no work yet. A *ready* one takes work. A *fenced* one was ready,
was frozen, and no peer has admitted it again. A *draining* one takes no new work and finishes what it has.
"""

from collections.abc import Mapping
from typing import Final

from tandem.core.metrics import Meter, NullMeter
from tandem.process.logs import EventLines

_NOT_READY: Final = {
    "starting": "the service is starting",
    "alive": "the service is alive and has not proved that it can take work",
    "fenced": "the service was frozen, and nobody has admitted it again",
    "draining": "the service is leaving and takes no new work",
    "stopping": "the service is stopping",
}
_STATES: Final = ("ready", *_NOT_READY)
_LEAVING: Final = ("draining", "stopping")


class Health:
    """The state of one service; each change is an event line and a metric. Nothing leads back from leaving."""

    def __init__(self, events: EventLines, meter: Meter | None = None) -> None:
        self.stage = "starting"
        self._held: dict[str, int] = {}
        self._events = events
        self._meter = meter or NullMeter()
        self._measure()

    @property
    def problem(self) -> str | None:
        """None while ready, otherwise why not, in one sentence."""
        problem = _NOT_READY.get(self.stage)
        if self.stage == "draining" and self._held:
            counted = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in self._held.items())
            return f"{problem}; it still holds {counted}"
        return problem

    def alive(self) -> None:
        if self.stage == "starting":
            self._enter("alive")

    def ready(self) -> None:
        """The service takes work, for the first time or again."""
        if self.stage not in _LEAVING:
            self._enter("ready")

    def fenced(self) -> None:
        """The service was frozen: what it did before does not count any more."""
        if self.stage == "ready":
            self._enter("fenced")

    def admitted(self) -> None:
        """Note that a peer works with the state that the service has had since it was frozen; a fenced service
        becomes ready."""
        if self.stage == "fenced":
            self._enter("ready")

    def draining(self, held: Mapping[str, int]) -> None:
        """The service leaves; `held` counts by kind what keeps it. Reported at first and whenever the counts have
        changed."""
        left = {kind: count for kind, count in held.items() if count}
        if self.stage == "stopping" or (self.stage == "draining" and left == self._held):
            return
        self._held = left
        self._enter("draining", **left)

    def stopping(self) -> None:
        self._enter("stopping")

    def _enter(self, stage: str, **fields: int) -> None:
        if self.stage != stage or fields or self.stage == "draining":
            self.stage = stage
            self._measure()
            self._events.emit(stage, **fields)

    def _measure(self) -> None:
        for state in _STATES:
            self._meter.set("tandem_health", float(state == self.stage), state)
