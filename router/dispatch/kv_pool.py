"""When a pool of KV blocks has room for one more: from who holds its blocks, and who waits for some. Pure."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Claim(NamedTuple):
    """Blocks of one request, and for how many seconds it is expected to hold them: from now on, or, where it waits,
    from when it gets them."""

    blocks: float
    lasts_s: float


class Room(NamedTuple):
    """A pool once everybody who waits has been served, `at_s` seconds from now: the blocks that are `free` then, and
    when which come back, the soonest first."""

    at_s: float
    free: float
    ends: tuple[tuple[float, float], ...]

    def free_in_s(self, blocks: float) -> float:
        """In how many seconds so many blocks are free. What a pool never has is taken to be free when it is empty:
        one request alone always gets what there is."""
        at_s, free = self.at_s, self.free
        for end_s, back in self.ends:
            if free >= blocks:
                break
            at_s, free = max(at_s, end_s), free + back
        return at_s


def room_after(free: float, held: Iterable[Claim], queued: Iterable[Claim]) -> Room:
    """Serve those who wait in their order, each as soon as its blocks are free; nobody overtakes."""
    ends = [(claim.lasts_s, claim.blocks) for claim in held]
    heapify(ends)
    at_s = 0.0
    for claim in queued:
        while free < claim.blocks and ends:
            end_s, back = heappop(ends)
            at_s, free = max(at_s, end_s), free + back
        free -= claim.blocks
        heappush(ends, (at_s + claim.lasts_s, claim.blocks))
    return Room(at_s, free, tuple(sorted(ends)))
