"""An engine fails in mid-step."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.faults.chances import short_or_long
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy

_NEXT_STEP_S: Final = 2.0
"""Seconds a fault waits for the step that it is to strike."""


@dataclass(frozen=True)
class EngineError:
    """The worker's next step raises `engine_failed`: its process ends, and a new incarnation takes its place."""

    at_s: float
    worker: str
    back_after_s: float

    async def apply(self, injector: FaultInjector) -> None:
        """Wait for the worker's next step; its process ends with it, unless something else ended it before."""
        node = injector.nodes[self.worker]
        now = node.incarnation
        if now is None or now.runner.fail_next:
            return
        now.runner.fail_next = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_NEXT_STEP_S):
                await now.ended.wait()
        if now is not node.incarnation:
            return
        if now.broken_down:
            injector.trace.note("", f"the engine of {node.name} failed")
            await injector.kill(node, self.back_after_s)
        else:
            now.runner.fail_next = False


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> EngineError:
    return EngineError(at_s, worker, short_or_long(entropy))
