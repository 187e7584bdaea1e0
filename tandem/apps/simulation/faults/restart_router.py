"""A router dies, its clients with it."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.apps.simulation.names import ROUTER
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class RestartRouter:
    """A restart of a router: its process dies, and its clients with it. A new process serves the clients that come
    later."""

    at_s: float
    back_after_s: float
    router: str = ROUTER

    async def apply(self, injector: FaultInjector) -> None:
        router = injector.routers.named(self.router)
        if router.life is not None:
            injector.strike(router.name)
            router.kill()
            await asyncio.sleep(self.back_after_s)
            router.start()


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> RestartRouter:
    return RestartRouter(at_s, 0.1 + unit(entropy) * 1.5)
