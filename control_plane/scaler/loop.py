"""Polls routers, decides for every service, posts the answers. Runs on every replica, leader or not."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from control_plane.reports.poller import Poller
from control_plane.reports.service import ServiceObserved
from control_plane.scaler.metric_cache import MetricCache
from control_plane.scaler.state import ScalingDecision, ScalingState
from tandem.core.clock import Clock

EVERY_S: Final = 2.0
_SERVICES_AT_ONCE: Final = 16
"""Number of scaling decisions after which the loop yields to other tasks: each takes about 0.2 ms."""


class ScalingLoop:
    """`services` gives what the cluster has now: services of which some pool has autoscaling are decided."""

    def __init__(
        self,
        poller: Poller,
        services: Callable[[], Iterable[ServiceObserved]],
        board: MetricCache,
        clock: Clock,
        every_s: float = EVERY_S,
    ) -> None:
        self.looks: dict[tuple[str, str], ScalingDecision] = {}
        """The latest of each service, for status and metrics."""
        self.keeper = ScalingState()
        self._poller = poller
        self._services = services
        self._board = board
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            began = self._clock.now()
            await self.once()
            await asyncio.sleep(max(0.0, self._every_s - (self._clock.now() - began)))

    async def once(self) -> None:
        """One round."""
        books = await self._poller.poll()
        services = [each for each in self._services() if any(pool.autoscaling for pool in each.spec.pools)]
        names = {(service.namespace, service.name) for service in services}
        self._board.keep(names)
        self.keeper.keep(names)
        self.looks = {key: look for key, look in self.looks.items() if key in names}
        for number, service in enumerate(services):
            if number % _SERVICES_AT_ONCE == 0:
                await asyncio.sleep(0)
            look = self.keeper.look(service, books, self._clock.wall())
            self.looks[service.namespace, service.name] = look
            wanted = {name: pool.wanted for name, pool in service.pools.items()}
            self._board.publish(service.namespace, service.name, look.scaling, wanted)
