"""A router whose process is stopped and goes on later: its workers have given it up by then, and it must notice."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.entropy import Entropy, unit

if TYPE_CHECKING:
    from tandem.apps.simulation.router_node import RouterNode


@dataclass(frozen=True)
class FreezeRouter:
    """The router's process is stopped for `for_s`, its connections stay; then it goes on as if nothing had been."""

    at_s: float
    for_s: float
    router: str = "router"


def draw_router_freeze(at_s: float, entropy: Entropy, router: str = "router") -> FreezeRouter:
    return FreezeRouter(at_s, 0.3 + unit(entropy) * 4.7, router)


async def freeze_router(fault: FreezeRouter, router: "RouterNode") -> None:
    """Stop it, and let it go on unless it was restarted meanwhile."""
    life = router.life
    if life is None or life.process.frozen:
        return
    router.freeze()
    await asyncio.sleep(fault.for_s)
    if router.life is life:
        router.thaw()
