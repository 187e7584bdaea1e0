"""The one timer of a request."""

import asyncio
from collections.abc import Callable

from router.dispatch.context import Tools


class Alarm:
    """Rings once at the time it was last set to."""

    def __init__(self, tools: Tools, ring: Callable[[], None]) -> None:
        self._tools = tools
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def set(self, at: float) -> None:
        """Ring at `at` (clock seconds), soon when that has passed, and not when it was set to before."""
        self.off()
        self._timer = self._tools.loop.call_later(max(0.0, at - self._tools.clock.now()), self._on_timer)

    def off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def retire(self) -> None:
        """It will not be set again: let go of whom it would have told."""
        self.off()
        self._ring = _nobody

    def _on_timer(self) -> None:
        self._timer = None
        self._ring()


def _nobody() -> None:
    raise AssertionError("a retired alarm rang")
