"""Forecasts when a pool of KV blocks has room for another request, from the demands on its blocks. Pure."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class BlockDemand(NamedTuple):
    """The blocks of one request: it needs them in `from_s` seconds and is expected to hold them for `lasts_s`."""

    blocks: float
    lasts_s: float
    from_s: float = 0.0


class PoolForecast(NamedTuple):
    """A pool after all queued demands are served: the last one arises `last_s` and is served `at_s` seconds from now,
    which leaves `free` blocks. `ends` lists (seconds from now, blocks returned), the soonest first."""

    last_s: float
    at_s: float
    free: float
    ends: tuple[tuple[float, float], ...]

    def wait_s(self, blocks: float, from_s: float) -> float:
        """The time for which a further demand, `from_s` seconds from now or later, waits for `blocks`, in seconds. A
        demand beyond the pool waits until the pool is empty: the engine admits a request that is alone."""
        at_s, free = self.at_s, self.free
        for end_s, back in self.ends:
            if free >= blocks:
                break
            at_s, free = max(at_s, end_s), free + back
        return max(0.0, at_s - max(from_s, self.last_s))


def forecast(free: float, held: Iterable[BlockDemand], queued: Iterable[BlockDemand]) -> PoolForecast:
    """Serves queued demands in order, each as soon as it arises and its blocks are free; none overtakes another."""
    ends = [(claim.lasts_s, claim.blocks) for claim in held]
    heapify(ends)
    last_s = at_s = 0.0
    for claim in queued:
        last_s = max(last_s, claim.from_s)
        at_s = max(at_s, claim.from_s)
        while ends and (free < claim.blocks or ends[0][0] <= at_s):
            end_s, back = heappop(ends)
            at_s, free = max(at_s, end_s), free + back
        free -= claim.blocks
        heappush(ends, (at_s + claim.lasts_s, claim.blocks))
    return PoolForecast(last_s, at_s, free, tuple(sorted(ends)))
