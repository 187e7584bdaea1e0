"""Routers as they report themselves to the hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control_plane.reports.http_get import Endpoint
from tandem.apps.cli.registry import MemberEntry
from tandem.apps.ray.serving import RouterTold, state_of
from tandem.core.clock import Clock

SILENT_S: Final = 10.0
"""Seconds without a report after which a router counts as gone."""


@dataclass(frozen=True)
class _Seen:
    told: RouterTold
    at: float


class RouterReports:
    """The last report of every router there is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def report(self, told: RouterTold) -> None:
        """Take over one report."""
        if told.gone:
            self._seen.pop(told.name, None)
        else:
            self._seen[told.name] = _Seen(told, self._clock.now())

    def all(self) -> list[RouterTold]:
        """Routers that have reported lately, those that leave included."""
        now = self._clock.now()
        self._seen = {name: each for name, each in self._seen.items() if now - each.at <= SILENT_S}
        return [each.told for each in self._seen.values()]

    def members(self) -> list[MemberEntry]:
        """All routers, as a registry of platforms names them."""
        return [
            MemberEntry(
                told.name, "router", told.pid or None, state_of(told), f"{told.host}:{told.port}", told.metrics, 0
            )
            for told in self.all()
        ]

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Where to poll them, by name."""
        return {told.name: Endpoint(told.host, told.port, told.secure) for told in self.all()}

    def serving(self) -> frozenset[str]:
        """Names of those that take requests."""
        return frozenset(told.name for told in self.all() if told.ready and not told.leaving)

    def url(self) -> str | None:
        """The address of one that takes requests; None while there is none."""
        for told in self.all():
            if told.ready and not told.leaving:
                scheme = "https" if told.secure else "http"
                return f"{scheme}://{Endpoint(told.host, told.port).authority}"
        return None
