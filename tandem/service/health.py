"""Where a service is in its life, and what it says about it."""

from tandem.service.logs import EventLines

_NOT_READY = {
    "starting": "the service is starting",
    "draining": "the service is leaving and takes no new work",
    "stopping": "the service is stopping",
}


class Health:
    """starting → ready → draining → stopping; each stage is announced once as an event line."""

    def __init__(self, events: EventLines) -> None:
        self.stage = "starting"
        self._events = events

    @property
    def problem(self) -> str | None:
        """None while ready, otherwise why not, in one sentence."""
        return _NOT_READY.get(self.stage)

    def ready(self) -> None:
        self._enter("ready")

    def draining(self) -> None:
        self._enter("draining")

    def stopping(self) -> None:
        self._enter("stopping")

    def _enter(self, stage: str) -> None:
        if self.stage != stage:
            self.stage = stage
            self._events.emit(stage)
