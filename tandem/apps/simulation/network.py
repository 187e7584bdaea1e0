"""The simulated network: seeded delays for links and pulls, partitions, slow paths, breaks, and changed bytes.

Nodes are known by the first part of their name: `router-2`, the second incarnation of the router, is at `router`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem.core.entropy import SeededEntropy, below

Path = tuple[str, str]
"""A direction of the network: from one node to another."""

ASK: Final = "ask"
ANSWER: Final = "answer"
ACKNOWLEDGE: Final = "acknowledge"
"""The messages of a pull."""

_BATCH: Final = 256


@dataclass(frozen=True)
class NetworkProfile:
    """Delays are uniform in the given ranges (seconds); `bytes_per_s` is what one pull gets."""

    link_delay_s: tuple[float, float] = (0.0001, 0.002)
    pull_latency_s: tuple[float, float] = (0.0001, 0.001)
    bytes_per_s: float = 50e6


class SimNetwork:
    """`tandem.link.memory_stream.LinkPolicy` and `kv_transfer.transport.memory.PathPolicy` of one simulated world."""

    def __init__(self, profile: NetworkProfile, seed: int) -> None:
        self._profile = profile
        self._links = _Units(SeededEntropy(seed, "links"))
        self._latencies = _Units(SeededEntropy(seed, "latencies"))
        self._pulls = SeededEntropy(seed, "pulls")
        self._corrupt: dict[str, int] = {}
        self._blocked: dict[Path, int] = {}
        self._spoiled: dict[Path, int] = {}
        self._slowed: dict[Path, list[float]] = {}
        self._breaks: dict[Path, int] = {}
        self._repeats: dict[Path, int] = {}
        self._losses: dict[tuple[str, str], int] = {}
        self.repeated = 0
        """Frames that arrived twice so far."""
        self.lost: dict[str, int] = {}
        """Messages of pulls that did not arrive so far, by kind."""
        self.corrupted = 0
        """Blocks that were changed on their way so far."""
        self.broken: Callable[[str, str], None] = lambda _source, _target: None
        """Called when the message for which `break_at` waited departs from source to target."""
        self.lost_one: Callable[[str], None] = lambda _holder: None
        """Called when a message that was to be lost is lost: that, not preparing it, is when something happens."""

    # -- faults --

    def corrupt(self, holder: str, blocks: int) -> None:
        """Flip a bit in each of the next `blocks` blocks that leave this holder."""
        self._corrupt[holder] = self._corrupt.get(holder, 0) + blocks

    def block(self, path: Path) -> None:
        """Let nothing through in this direction, once more."""
        self._blocked[path] = self._blocked.get(path, 0) + 1

    def unblock(self, path: Path) -> None:
        self._blocked[path] -= 1
        if self._blocked[path] == 0:
            del self._blocked[path]

    def spoil(self, path: Path) -> None:
        """Change every block that goes this way, once more."""
        self._spoiled[path] = self._spoiled.get(path, 0) + 1

    def unspoil(self, path: Path) -> None:
        self._spoiled[path] -= 1
        if self._spoiled[path] == 0:
            del self._spoiled[path]

    def slow(self, path: Path, factor: float) -> None:
        """Everything takes `factor` times as long in this direction."""
        self._slowed.setdefault(path, []).append(factor)

    def quicken(self, path: Path, factor: float) -> None:
        self._slowed[path].remove(factor)
        if not self._slowed[path]:
            del self._slowed[path]

    def break_at(self, path: Path, frames: int) -> None:
        """`broken` is to be called when so many frames more have departed on this path."""
        self._breaks[path] = frames

    def repeat(self, path: Path, frames: int) -> None:
        """The next `frames` frames on this path arrive twice."""
        self._repeats[path] = self._repeats.get(path, 0) + frames

    def lose(self, holder: str, what: str, count: int) -> None:
        """The next `count` messages of this kind, of pulls of this holder's blocks, do not arrive."""
        self._losses[holder, what] = self._losses.get((holder, what), 0) + count

    @property
    def disturbed(self) -> bool:
        """Whether a path is blocked or slow now."""
        return bool(self._blocked or self._slowed)

    def forgive(self) -> None:
        """Nothing that was prepared happens any more: no block is changed, no link breaks, nothing is lost."""
        self._corrupt.clear()
        self._breaks.clear()
        self._repeats.clear()
        self._losses.clear()

    # -- policies --

    def delay_s(self, source: str, target: str) -> float | None:
        path = _node(source), _node(target)
        if path in self._blocked:
            return None
        if path in self._breaks:
            self._count(path, source, target)
        return self._links.within(self._profile.link_delay_s) * self._factor(path)

    def repeats(self, source: str, target: str) -> bool:
        if not self._repeats:
            return False
        path = _node(source), _node(target)
        left = self._repeats.get(path, 0)
        self._repeats[path] = max(0, left - 1)
        self.repeated += left > 0
        return left > 0

    def loses(self, holder: str, receiver: str, what: str) -> bool:
        left = self._losses.get((holder, what), 0) if self._losses else 0
        if left == 0 or holder == receiver:
            return False
        self._losses[holder, what] = left - 1
        self.lost[what] = self.lost.get(what, 0) + 1
        self.lost_one(holder)
        return True

    def carries(self, holder: str, receiver: str) -> bool:
        return (holder, receiver) not in self._blocked and (receiver, holder) not in self._blocked

    def latency_s(self, holder: str, receiver: str) -> float:
        return self._latencies.within(self._profile.pull_latency_s) * self._factor((holder, receiver))

    def busy_s(self, holder: str, receiver: str, size: int) -> float:
        return size / self._profile.bytes_per_s * self._factor((holder, receiver))

    def arrived(self, holder: str, receiver: str, data: bytes) -> bytes:
        left, spoiled = self._corrupt.get(holder, 0), (holder, receiver) in self._spoiled
        # What a worker pulls from itself does not pass the network.
        if not (left or spoiled) or not data or holder == receiver:
            return data
        self._corrupt[holder] = max(0, left - 1)
        self.corrupted += 1
        changed = bytearray(data)
        changed[below(self._pulls, len(changed))] ^= 1 << below(self._pulls, 8)
        return bytes(changed)

    def _factor(self, path: Path) -> float:
        return max(self._slowed.get(path, ()), default=1.0) if self._slowed else 1.0

    def _count(self, path: Path, source: str, target: str) -> None:
        self._breaks[path] -= 1
        if self._breaks[path] <= 0:
            del self._breaks[path]
            self.broken(source, target)


def _node(name: str) -> str:
    return name.partition("-")[0]


class _Units:
    """Uniform numbers, drawn many at a time, as there is one for every message."""

    def __init__(self, entropy: SeededEntropy) -> None:
        self._entropy = entropy
        self._left: list[int] = []

    def within(self, bounds: tuple[float, float]) -> float:
        if not self._left:
            raw = self._entropy.token(_BATCH * 8)
            self._left = [int.from_bytes(raw[at : at + 8], "little") >> 11 for at in range(0, len(raw), 8)]
        return bounds[0] + self._left.pop() / (1 << 53) * (bounds[1] - bounds[0])
