"""Blocks that a router takes for cached because it has just sent their prompt there, before any event tells."""

from collections import OrderedDict
from collections.abc import Sequence


class Speculative:
    """By block and worker, for `lasts_s` seconds since the last such prompt."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._until: OrderedDict[tuple[int, int], float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._until)

    def expire(self, now: float) -> None:
        """Forget what is over by now; to be called before asking."""
        until = self._until
        while until and next(iter(until.values())) <= now:
            until.popitem(last=False)

    def holds(self, block: int, worker: int) -> bool:
        return (block, worker) in self._until

    def routed(self, blocks: Sequence[int], worker: int, now: float) -> None:
        """A prompt with these blocks goes to the worker."""
        until, end = self._until, now + self._lasts_s
        if self._lasts_s > 0:
            for block in blocks:
                until[block, worker] = end
                until.move_to_end((block, worker))

    def leading(self, blocks: Sequence[int], worker: int, count: int) -> int:
        """How many of the first blocks are there, `count` of which are known to be."""
        until = self._until
        while count < len(blocks) and (blocks[count], worker) in until:
            count += 1
        return count
