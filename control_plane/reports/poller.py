"""Polls every router, all at once, and aggregates their reports."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.http_get import Endpoint, get
from control_plane.reports.wire import RouterReport, read_report
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.logs import event

_log = logging.getLogger(__name__)


class Poller:
    """Polls the routers. `routers` gives those that exist now, by name. `key` is an API key where routers ask for
    one."""

    def __init__(
        self,
        routers: Callable[[], Mapping[str, Endpoint]],
        clock: Clock,
        *,
        timeout_s: float = 2.0,
        tls: ssl.SSLContext | None = None,
        key: str = "",
    ) -> None:
        self.books = ReportAggregate()
        self._routers = routers
        self._clock = clock
        self._timeout_s = timeout_s
        self._tls = tls
        self._key = key
        self._silent = frozenset[str]()

    async def poll(self) -> ReportAggregate:
        """One round; takes at most the timeout. Routers that do not answer are logged once."""
        routers = dict(self._routers())
        answers = await asyncio.gather(*(self._ask(place) for place in routers.values()))
        reports = {name: each for name, each in zip(routers, answers, strict=True) if isinstance(each, RouterReport)}
        problems = {name: each for name, each in zip(routers, answers, strict=True) if isinstance(each, TandemError)}
        for name in sorted(problems.keys() - self._silent):
            event(_log, "router_silent", level=logging.WARNING, router=name, problem=problems[name].message)
        self._silent = frozenset(problems)
        self.books = self.books.round(routers, reports, self._clock.now())
        return self.books

    async def _ask(self, place: Endpoint) -> RouterReport | TandemError:
        try:
            workers, revisions = await asyncio.gather(
                # There are as many pairs as prefill workers times decode workers, and nobody here reads them.
                get(place, "/v1/workers?pairs=none", self._timeout_s, self._tls, self._key),
                get(place, "/v1/revisions", self._timeout_s, self._tls, self._key),
            )
            return read_report(workers, revisions)
        except TandemError as error:
            return error
