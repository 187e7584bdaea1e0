"""When a pool of KV blocks has room for one more: from who holds its blocks, and who waits for some. Pure."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Claim(NamedTuple):
    """Blocks of one request, in how many seconds it asks for them, and for how long it is expected to hold them."""

    blocks: float
    lasts_s: float
    from_s: float = 0.0


class Room(NamedTuple):
    """A pool once everybody who asks for blocks has some: the last one asks `last_s` and has them `at_s` seconds from
    now. The blocks that are `free` then, and when which come back, the soonest first."""

    last_s: float
    at_s: float
    free: float
    ends: tuple[tuple[float, float], ...]

    def wait_s(self, blocks: float, from_s: float) -> float:
        """How long one that asks after everybody else, in `from_s` seconds or later, waits for so many blocks. What a
        pool never has is taken to be free when it is empty: one request alone always gets what there is."""
        at_s, free = self.at_s, self.free
        for end_s, back in self.ends:
            if free >= blocks:
                break
            at_s, free = max(at_s, end_s), free + back
        return max(0.0, at_s - max(from_s, self.last_s))


def room_after(free: float, held: Iterable[Claim], queued: Iterable[Claim]) -> Room:
    """Serve those who wait in their order, each as soon as it asks and its blocks are free; nobody overtakes."""
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
    return Room(last_s, at_s, free, tuple(sorted(ends)))
