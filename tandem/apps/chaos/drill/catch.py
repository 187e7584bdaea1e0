"""Catching a request in a stage: ask one whose shape makes the stage long, look where it is until it is there."""

import asyncio
from dataclasses import dataclass
from typing import Final

from router.generation import RequestStatus
from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.drill.cells import STAGES
from tandem.apps.chaos.drill.load import Load
from tandem.apps.chaos.drill.requests import RequestShapes
from tandem.apps.chaos.response import RUNNING, ReceivedAnswer
from tandem.core.errors import TandemError

_TRIES: Final = 12
_LOOK_S: Final = 0.001
_DECODED_MIN: Final = 4
"""Tokens a request has to have got before it is struck in its stage `decode`: past its beginning."""
_FILL_MAX: Final = 80


@dataclass(frozen=True)
class Caught:
    """A request that was where it was wanted when the router was last asked. `missed` were not."""

    heard: ReceivedAnswer
    standing: RequestStatus
    missed: int


async def catch(stage: str, load: Load, shapes: RequestShapes, caller: ChaosClient, within_s: float) -> Caught:
    """Raises `engine_failed` when no request could be caught."""
    for missed in range(_TRIES):
        if stage == "queue":
            await _fill(load, shapes, caller)
        heard = await load.begin(shapes.targets[stage])
        standing = await _seen(stage, heard, caller, within_s)
        if standing is not None:
            return Caught(heard, standing, missed)
    raise TandemError("engine_failed", f"none of {_TRIES} requests was seen in stage {stage!r}")


async def _seen(stage: str, heard: ReceivedAnswer, caller: ChaosClient, within_s: float) -> RequestStatus | None:
    """The status of the request once it is in the stage; None when it was seen beyond the stage, has ended, or was
    not seen there within `within_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while heard.end == RUNNING and loop.time() < deadline:
        standing = await caller.standing(heard.request_id)
        if standing is not None:
            if is_in(stage, standing):
                return standing
            if STAGES.index(standing.stage) > STAGES.index(stage):
                return None
        await asyncio.sleep(_LOOK_S)
    return None


def is_in(stage: str, standing: RequestStatus) -> bool:
    """Whether a request is in the stage, and carried as a request of that stage should be. Pure."""
    if standing.stage != stage or (stage == "decode" and standing.tokens < _DECODED_MIN):
        return False
    return stage == "queue" or standing.prefill is not None or stage == "decode"


async def _fill(load: Load, shapes: RequestShapes, caller: ChaosClient) -> None:
    """Ask for sequences until one more request has to wait for a place."""
    for _ in range(_FILL_MAX):
        heard = await load.begin(shapes.fill)
        while heard.end == RUNNING:
            standing = await caller.standing(heard.request_id)
            if standing is not None and standing.stage == "queue":
                return
            if standing is not None:
                break
            await asyncio.sleep(_LOOK_S)
    problem = f"{_FILL_MAX} requests of {shapes.fill.n} sequences did not fill the platform"
    raise TandemError("engine_failed", f"{problem}: `tandem up --drills` makes it smaller")
