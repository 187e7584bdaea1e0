"""What a worker keeps below its pool: DRAM, then NVMe, each block in one place.

A block that the pool gives up falls into the first tier, what that gives up into the next; writes happen beside the
computing and are not billed. Reading is: every tier has one channel, and reads queue on it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ReportBlocks = Callable[[str, tuple[int, ...], tuple[int, ...]], None]
"""(tier, stored, removed)."""


@dataclass(frozen=True)
class TierSettings:
    """A tier of `tokens` capacity that reads `tokens_per_s` after `latency_s`."""

    name: str
    tokens: int
    tokens_per_s: float
    latency_s: float = 0.0005


class Tier:
    """LRU by tokens."""

    __slots__ = ("_blocks", "busy_until", "held", "settings")

    def __init__(self, settings: TierSettings) -> None:
        self.settings = settings
        self.held = 0
        self.busy_until = 0.0
        self._blocks: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, name: int) -> bool:
        return name in self._blocks

    def put(self, name: int, tokens: int) -> list[tuple[int, int]]:
        """Keep a block; gives those that have had to go."""
        blocks = self._blocks
        if name in blocks:
            blocks.move_to_end(name)
            return []
        blocks[name] = tokens
        self.held += tokens
        gone = []
        while self.held > self.settings.tokens:
            gone.append(oldest := blocks.popitem(last=False))
            self.held -= oldest[1]
        return gone

    def take(self, name: int) -> None:
        """The block moves up."""
        self.held -= self._blocks.pop(name)

    def read(self, now: float, tokens: int) -> float:
        """When so many tokens will have been read."""
        begin = max(now, self.busy_until)
        self.busy_until = begin + self.settings.latency_s + tokens / self.settings.tokens_per_s
        return self.busy_until

    def reading_s(self, now: float, tokens: int) -> float:
        """How long `read` would take."""
        wait_s = max(0.0, self.busy_until - now)
        return wait_s + self.settings.latency_s + tokens / self.settings.tokens_per_s

    def check(self) -> None:
        assert self.held == sum(self._blocks.values()), "held tokens do not add up"
        assert self.held <= self.settings.tokens, f"{self.settings.name} holds more than fits"


class Tiers:
    """All tiers of one worker, the fastest first."""

    def __init__(self, settings: Sequence[TierSettings], told: ReportBlocks) -> None:
        self.tiers = tuple(Tier(each) for each in settings)
        self._told = told

    def __bool__(self) -> bool:
        return bool(self.tiers)

    def fall(self, evicted: Sequence[tuple[int, int]]) -> None:
        """Blocks that the pool has given up."""
        falling = list(evicted)
        for tier in self.tiers:
            if not falling:
                return
            gone: list[tuple[int, int]] = []
            for name, tokens in falling:
                gone += tier.put(name, tokens)
            stored = tuple(name for name, _ in falling)
            self._told(tier.settings.name, stored, tuple(name for name, _ in gone))
            falling = gone

    def holds(self, name: int) -> bool:
        return any(name in tier for tier in self.tiers)

    def where(self, names: Sequence[int]) -> list[Tier]:
        """The tier of each of the first names, until one is nowhere."""
        found = []
        for name in names:
            tier = next((tier for tier in self.tiers if name in tier), None)
            if tier is None:
                break
            found.append(tier)
        return found

    def raise_up(self, names: Sequence[int]) -> None:
        """Those blocks are in the pool now."""
        for tier in self.tiers:
            here = tuple(name for name in names if name in tier)
            for name in here:
                tier.take(name)
            if here:
                self._told(tier.settings.name, (), here)

    def check(self) -> None:
        for tier in self.tiers:
            tier.check()
