"""Freezes a router: its process stops and resumes later. By then its workers have given the router up, and it must
notice."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.apps.simulation.names import ROUTER
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class FreezeRouter:
    """Stops the router's process for `for_s` while its connections stay open; then the process resumes as if nothing
    had happened."""

    at_s: float
    for_s: float
    router: str = ROUTER

    async def apply(self, injector: FaultInjector) -> None:
        """Stop it, and let it go on unless it was restarted meanwhile."""
        router = injector.routers.named(self.router)
        life = router.life
        if life is None or life.process.frozen:
            return
        router.freeze()
        await asyncio.sleep(self.for_s)
        if router.life is life:
            router.thaw()


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> FreezeRouter:
    """The first router; that a worker was drawn does not matter."""
    return draw_of(at_s, ROUTER, entropy)


def draw_of(at_s: float, router: str, entropy: Entropy) -> FreezeRouter:
    return FreezeRouter(at_s, 0.3 + unit(entropy) * 4.7, router)
