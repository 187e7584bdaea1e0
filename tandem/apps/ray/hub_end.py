"""When the hub comes to its end: it was asked to, its routers were taken away, or nobody needs it. Pure."""

from dataclasses import dataclass, field
from typing import Final, Literal

ROUTERS_GONE_S: Final = 15.0
"""Seconds without routers after which somebody has taken them away, as `serve.shutdown` does."""
IDLE_S: Final = 60.0
"""Seconds without a service and without routers."""

End = Literal["stay", "clear", "leave"]
"""`clear`: end and forget all. `leave`: let all services leave first, as they have no routers any more."""


@dataclass
class HubEnd:
    """Decides from what is there. Routers that have never been there are not missed: they come after the hub. `seen`
    says whether they have been, also of an earlier life of the hub."""

    began: float
    seen: bool = False
    asked: bool = False
    """Whether the hub is to end as soon as nothing of a service is left."""
    _there_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._there_at = self.began

    def wanted(self, now: float) -> None:
        """A service is wanted: nobody asks for the end any more, and routers have their time to come."""
        self.asked, self._there_at = False, now

    def next(self, routers: bool | None, idle_s: float, now: float) -> End:
        """`routers` is whether their application is there, or None while Serve does not answer, which says nothing;
        `idle_s` for how long there has been no service and no application of one."""
        if self.asked and idle_s > 0.0:
            return "clear"
        if routers is None:
            # The time in which nothing is known does not count.
            self._there_at = now
            return "stay"
        if routers:
            self.seen, self._there_at = True, now
            return "stay"
        if not self.seen:
            return "clear" if min(idle_s, now - self.began) >= IDLE_S else "stay"
        if now - self._there_at < ROUTERS_GONE_S:
            return "stay"
        return "clear" if idle_s > 0.0 else "leave"
