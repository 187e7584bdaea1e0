"""Two revisions measured in turn (ABBA): digests against `memcpy` on one core, verified pulls against copies, small
pulls over shared memory without verification."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

_PAIRS: Final = 6
_END_S: Final = 30.0
_PIECES: Final = (
    (8 << 10, 32, ("copy", "digest", "pull", "shm", "tcp")),
    (64 << 10, 32, ("copy", "digest", "pull", "shm", "tcp")),
    (1 << 20, 128, ("copy", "digest", "shm", "tcp")),
    (5 << 20, 24, ("copy", "digest", "shm", "tcp")),
)


@dataclass
class _Side:
    """A process that measures with one tree."""

    process: "subprocess.Popen[str]"

    def measure(self, size: int, pieces: int, what: str) -> float:
        """GB/s."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{size} {pieces} {what}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """It ends with its input; the processes that it has started end with it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(_END_S)


def _side(tree: Path) -> _Side:
    script = Path(__file__).parent / "transfer_side.py"
    # The tree comes before the folder of the script, which Python would look into first.
    start = f"import sys, runpy; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
    command, environment = [sys.executable, "-P", "-c", start], {**os.environ, "PYTHONPATH": str(tree)}
    pipe = subprocess.PIPE
    return _Side(subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True))


def compare(before: Path) -> None:
    """Print GB/s of both, and how much faster this tree is: min, median, max over pairs."""
    sides = {"before": _side(before), "after": _side(Path(__file__).parents[1])}
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
