"""Failures of Redis: it is absent, loses data, falls behind, hangs, or its answers get lost."""

import asyncio
from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below, unit

_WHATS: Final = ("absent", "absent", "empty", "flushed", "behind", "hangs", "mute")


@dataclass(frozen=True)
class RedisFault:
    """A failure of Redis. According to `what`, Redis is `absent` for `for_s` and comes back without data; dies and is
    back at once (`empty`); loses its data and its scripts without any sign (`flushed`); fails over to a replica that
    is `for_s` `behind`; `hangs` for `for_s`; or executes commands for `for_s` while its answers get lost (`mute`)."""

    at_s: float
    what: str
    for_s: float

    async def apply(self, injector: FaultInjector) -> None:
        """Do it, and undo what does not stay. A world without Redis, or whose Redis is away, notices nothing."""
        redis = injector.redis
        if redis is None or redis.data is None:
            return
        match self.what:
            case "absent":
                redis.kill()
                await asyncio.sleep(self.for_s)
                redis.start()
            case "empty":
                redis.kill()
                redis.start()
            case "flushed":
                redis.flush()
                redis.forget_scripts()
            case "behind":
                data, run = redis.data.copy(), redis.runs
                await asyncio.sleep(self.for_s)
                if redis.runs == run and redis.data is not None:
                    redis.kill()
                    redis.start(data)
            case "hangs":
                redis.hang()
                await asyncio.sleep(self.for_s)
                redis.go_on()
            case _:
                redis.mute += 1
                await asyncio.sleep(self.for_s)
                redis.mute -= 1


def draw(at_s: float, entropy: Entropy) -> RedisFault:
    return RedisFault(at_s, _WHATS[below(entropy, len(_WHATS))], 0.1 + unit(entropy) * 4.0)
