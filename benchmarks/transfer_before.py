"""Two revisions measured in turn (ABBA): digests against `memcpy` on one core, verified pulls against copies, small
pulls over shared memory without verification."""

from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.tree_side import TreeSide

_PAIRS: Final = 6
_PIECES: Final = (
    (8 << 10, 32, ("copy", "digest", "pull", "shm", "tcp")),
    (64 << 10, 32, ("copy", "digest", "pull", "shm", "tcp")),
    (1 << 20, 128, ("copy", "digest", "shm", "tcp")),
    (5 << 20, 24, ("copy", "digest", "shm", "tcp")),
)


class _Side(TreeSide):
    """A process that measures transfers with one tree."""

    def __init__(self, tree: Path) -> None:
        super().__init__(Path(__file__).with_name("transfer_side.py"), tree)

    def measure(self, size: int, pieces: int, what: str) -> float:
        """GB/s."""
        return float(self.ask(f"{size} {pieces} {what}"))


def compare(before: Path) -> None:
    """Print GB/s of both, and how much faster this tree is: min, median, max over pairs."""
    sides = {"before": _Side(before), "after": _Side(Path(__file__).parents[1])}
    print(f"{'GB/s, median of each':<30}{'before':>9}{'after':>9}  after / before: min median max   after / copy")
    try:
        for size, pieces, kinds in _PIECES:
            _compare(sides, size, pieces, kinds)
    finally:
        for side in sides.values():
            side.end()


def _compare(sides: dict[str, _Side], size: int, pieces: int, kinds: tuple[str, ...]) -> None:
    copies = list[float]()
    for what in kinds:
        found: dict[str, list[float]] = {"before": [], "after": []}
        for pair in range(_PAIRS + 1):
            for name in (
                ("before", "after", "after", "before") if pair % 2 else ("after", "before", "before", "after")
            ):
                rate = sides[name].measure(size, pieces, what)
                if pair:  # The first touches every page once.
                    found[name].append(rate)
        ratios = [after / before for before, after in zip(found["before"], found["after"], strict=True)]
        copies = found["after"] if what == "copy" else copies
        label = f"{what} {pieces} x {size >> 10} KiB"
        middle = {name: median(rates) for name, rates in found.items()}
        print(
            f"{label:<30}{middle['before']:9.2f}{middle['after']:9.2f}{'':>18}{min(ratios):6.2f}{median(ratios):7.2f}"
            f"{max(ratios):6.2f}{middle['after'] / median(copies):12.2f}",
            flush=True,
        )
