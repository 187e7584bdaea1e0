"""When a hub that nobody has asked to leave comes to its end. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

ROUTERS_GONE_S: Final = 15.0
"""Seconds without routers after which somebody has taken them away, as `serve.shutdown` does."""
IDLE_S: Final = 60.0
"""Seconds without a service and without routers."""

End = Literal["stay", "clear", "leave"]
"""`clear`: end and forget all. `leave`: let all services leave first, as they have no routers any more."""


@dataclass
class HubEnd:
    """Decides from what is there. Routers that have never been there are not missed: they come after the hub."""

    began: float
    seen: bool = False
    there_at: float = 0.0

    def next(self, routers: bool | None, idle_s: float, now: float) -> End:
        """`routers` is whether their application is there, or None while Serve does not answer, which says nothing;
        `idle_s` for how long there has been no service."""
        if routers is None:
            # The time in which nothing is known does not count.
            self.there_at = now
            return "stay"
        if routers:
            self.seen, self.there_at = True, now
            return "stay"
        if not self.seen:
            return "clear" if min(idle_s, now - self.began) >= IDLE_S else "stay"
        if now - self.there_at < ROUTERS_GONE_S:
            return "stay"
        return "clear" if idle_s > 0.0 else "leave"
