"""The blocks that workers without KV events probably hold: the names of prompts that were sent there, kept for a
while. Pure.

The index keeps as many names as the worker has blocks. It drops the least recently used first, the end of a prefix
before its start.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class IndexChange(NamedTuple):
    """The change in the blocks that a worker is guessed to hold."""

    stored: list[bytes]
    removed: list[bytes]


class ApproximateIndex:
    """The guessed blocks of one worker incarnation. A name is dropped `ttl_s` after its last use."""

    def __init__(self, names_max: int, ttl_s: float) -> None:
        self._names_max = names_max
        self._ttl_s = ttl_s
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def used(self, names: Sequence[bytes], now: float) -> IndexChange:
        """A prompt of these blocks was sent there."""
        stored = []
        for name in reversed(names[: self._names_max]):
            if name not in self._until:
                stored.append(name)
            self._until[name] = now + self._ttl_s
            self._until.move_to_end(name)
        removed = [self._until.popitem(last=False)[0] for _ in range(len(self._until) - self._names_max)]
        return IndexChange(stored, removed + self.expired(now).removed)

    def expired(self, now: float) -> IndexChange:
        """Remove the names that have not been used for too long, and give the change."""
        removed = []
        while self._until and next(iter(self._until.values())) <= now:
            removed.append(self._until.popitem(last=False)[0])
        return IndexChange([], removed)
