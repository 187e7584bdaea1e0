"""The KV pool of one worker: blocks in use, blocks kept for reuse in order of last use, and what is private.

All sizes are tokens. A block that nobody uses stays until room is needed; the least recently used goes first. Of one
request the tail is older than the head, so prefixes outlive what follows them. Answers are kept as well, as in
engines that hash every full block: under the names that the request gives them, or without one, found by nobody and
taking room until they are the oldest.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Pool:
    """Invariant: `used + cached <= capacity`, `used` being pinned blocks and private tokens."""

    __slots__ = ("_blocks", "_lru", "_nameless", "cached", "capacity", "evicted", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.cached = 0
        self.evicted: list[tuple[int, int]] = []
        """Named blocks (name, tokens) that have had to go, until somebody takes the list."""
        self._blocks: dict[int, list[int]] = {}
        """Of each block in use: its users, its tokens."""
        self._lru: OrderedDict[int, int] = OrderedDict()
        self._nameless = -1

    @property
    def free(self) -> int:
        """Tokens there is room for, blocks that nobody uses given up."""
        return self.capacity - self.used

    def leading(self, names: Sequence[int]) -> int:
        """How many of the first names are here without a gap."""
        blocks, lru = self._blocks, self._lru
        count = 0
        for name in names:
            if name not in blocks and name not in lru:
                break
            count += 1
        return count

    def holds(self, name: int) -> bool:
        return name in self._blocks or name in self._lru

    def tokens_of(self, name: int) -> int:
        """The size of a block in use."""
        return self._blocks[name][1]

    def own_tokens(self, names: Sequence[int]) -> int:
        """Tokens of those names in use that have one user."""
        blocks = self._blocks
        return sum(blocks[name][1] for name in names if blocks[name][0] == 1)

    def unused_tokens(self, names: Sequence[int]) -> int:
        """Tokens of those names that nobody uses: pinning them takes so much from what is free."""
        lru = self._lru
        return sum(lru.get(name, 0) for name in names)

    def pin(self, names: Sequence[int]) -> None:
        """Use blocks that are here."""
        blocks, lru = self._blocks, self._lru
        for name in names:
            block = blocks.get(name)
            if block is not None:
                block[0] += 1
            else:
                tokens = lru.pop(name)
                blocks[name] = [1, tokens]
                self.used += tokens
                self.cached -= tokens

    def reserve(self, tokens: int) -> None:
        """Take private room; the caller has seen that it is free."""
        self.used += tokens
        excess = self.used + self.cached - self.capacity
        if excess > 0:
            self._evict(excess)

    def publish(self, name: int, tokens: int) -> bool:
        """Name so many reserved tokens a block with one user. False when the name is here already: then they stay
        private."""
        if name in self._blocks or name in self._lru:
            return False
        self._blocks[name] = [1, tokens]
        return True

    def unpin(self, names: Sequence[int]) -> None:
        """Use blocks no longer, the last of them becoming the oldest."""
        blocks, lru = self._blocks, self._lru
        for name in reversed(names):
            block = blocks[name]
            block[0] -= 1
            if block[0] == 0:
                del blocks[name]
                lru[name] = block[1]
                self.used -= block[1]
                self.cached += block[1]

    def give_back(self, tokens: int) -> None:
        """Private room that is empty again."""
        self.used -= tokens

    def retire(self, tokens: int) -> None:
        """Private tokens become a nameless block that nobody uses."""
        if tokens > 0:
            self._lru[self._nameless] = tokens
            self._nameless -= 1
            self.used -= tokens
            self.cached += tokens

    def take_evicted(self) -> list[tuple[int, int]]:
        evicted, self.evicted = self.evicted, []
        return evicted

    def check(self) -> None:
        """Assert the invariant from the blocks themselves."""
        assert self.cached == sum(self._lru.values()), "cached tokens do not add up"
        assert sum(block[1] for block in self._blocks.values()) <= self.used, "pinned blocks exceed what is used"
        assert self.used >= 0, "more was given back than taken"
        assert self.used + self.cached <= self.capacity, "the pool holds more than fits"

    def _evict(self, excess: int) -> None:
        lru = self._lru
        while excess > 0:
            name, tokens = lru.popitem(last=False)
            if name < 0 and tokens > excess:
                lru[name] = tokens - excess
                lru.move_to_end(name, last=False)
                tokens = excess
            elif name >= 0:
                self.evicted.append((name, tokens))
            excess -= tokens
            self.cached -= tokens
