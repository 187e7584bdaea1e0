"""Blocks that a router takes for cached because it has just sent their prompt there, before any event tells."""

from collections import defaultdict, deque
from collections.abc import Sequence


class Speculative:
    """By worker and block, for `lasts_s` seconds since the last such prompt."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._until: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self._routed: deque[tuple[float, int, Sequence[int]]] = deque()
        """What was sent, the oldest first: until when it lasts, where, its blocks."""

    def __bool__(self) -> bool:
        return bool(self._routed)

    def expire(self, now: float) -> None:
        """Forget what is over by now; to be called before asking."""
        routed = self._routed
        while routed and routed[0][0] <= now:
            end, worker, blocks = routed.popleft()
            until = self._until[worker]
            for block in blocks:
                if until.get(block) == end:
                    del until[block]

    def holds(self, block: int, worker: int) -> bool:
        return block in self._until[worker]

    def routed(self, blocks: Sequence[int], worker: int, now: float) -> None:
        """A prompt with these blocks goes to the worker."""
        if self._lasts_s > 0 and blocks:
            end = now + self._lasts_s
            self._until[worker].update(dict.fromkeys(blocks, end))
            self._routed.append((end, worker, blocks))

    def leading(self, blocks: Sequence[int], worker: int, count: int) -> int:
        """How many of the first blocks are there, `count` of which are known to be."""
        until = self._until[worker]
        while count < len(blocks) and blocks[count] in until:
            count += 1
        return count
