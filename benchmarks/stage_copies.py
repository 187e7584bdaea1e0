"""What vLLM's stage costs: copies between caches and slots against `memcpy`, how much of a long hand-off is not
hidden behind computing, and up to which size blocks are better hashed on the event loop.

`--before TREE` measures another revision in the same run, in pairs (ABBA). Computing is a wait here: the figures are
of what the stage, the connector and the transfer do beside it. Nothing is asked for; `--json FILE` keeps the figures.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.tree_side import TreeSide
from tandem.core.kv import Layout
from tandem.engine import digest_threads
from tandem.engine.hashing import is_over

PAIRS: Final = 4
TOKENS: Final = 7000
CHUNK: Final = 2048
CHUNK_S: Final = 0.1
"""What a step of `CHUNK` tokens computes."""
_HERE: Final = Path(__file__).parents[1]
_LAYERS_FIRST, _BLOCKS_FIRST = (0, 1, 2, 3, 4), (1, 0, 2, 3, 4)
_SHAPES: Final = (
    ("tiny blocks", 4, 2, 1, 32),
    ("1B", 16, 8, 1, 128),
    ("8B", 32, 8, 1, 256),
    ("8B, a rank of TP 4", 32, 2, 4, 256),
    ("MLA", 61, 1, 1, 576),
)
"""Layers, head slots of the rank, ranks, numbers of 16 bits per position."""


@dataclass(frozen=True)
class TreeSamples:
    """`values` by tree, of every measurement."""

    name: str
    unit: str
    values: dict[str, list[float]]

    def middle(self, tree: str) -> float:
        return median(self.values[tree])

    @property
    def ratios(self) -> list[float]:
        """After / before, by pair."""
        return [after / before for before, after in zip(self.values["before"], self.values["after"], strict=True)]


class Side(TreeSide):
    """A process that measures what vLLM's stage costs with one tree."""

    def __init__(self, tree: Path) -> None:
        super().__init__(Path(__file__).with_name("stage_side.py"), tree)

    def measure(self, what: dict[str, Any]) -> float:
        return float(json.loads(self.ask(json.dumps(what)))["value"])


def in_pairs(sides: dict[str, Side], name: str, unit: str, what: dict[str, Any], pairs: int) -> TreeSamples:
    """Forth and back; the first round does not count, as it touches every page once."""
    values: dict[str, list[float]] = {tree: [] for tree in sides}
    for number in range(pairs + 1):
        order = [*sides, *reversed(sides)] if number % 2 else [*reversed(sides), *sides]
        for tree in order:
            found = sides[tree].measure(what)
            if number:
                values[tree].append(found)
    return TreeSamples(name, unit, values)


def shown(figure: TreeSamples, memcpy: TreeSamples | None = None) -> str:
    text = f"{figure.name:<52}" + "".join(f"{figure.middle(tree):9.1f}" for tree in figure.values)
    if memcpy is not None:
        text += f"{figure.middle('after') / memcpy.middle('after'):10.2f}"
    if "before" in figure.values:
        text += f"{min(figure.ratios):12.2f}{median(figure.ratios):6.2f}{max(figure.ratios):6.2f}"
    return text


def copies(sides: dict[str, Side], pairs: int) -> list[TreeSamples]:
    """GB/s of one thread by layout."""
    memcpy = in_pairs(sides, "memcpy, 128 MiB", "GB/s", {"how": "memcpy"}, pairs)
    columns = "".join(f"{tree:>9}" for tree in sides)
    print(f"{'copies, GB/s of a thread':<52}{columns}{'/ memcpy':>10}{_ratio_head(sides)}")
    print(shown(memcpy), flush=True)
    figures = [memcpy]
    for label, layers, units, tensor, content in _SHAPES:
        for lying, axes, apart in (
            ("blocks first", _BLOCKS_FIRST, False),
            ("layers first", _LAYERS_FIRST, False),
            ("layers apart", _LAYERS_FIRST, True),
        ):
            for order in ("neighbours", "scattered"):
                for how in ("save", "load"):
                    what = {
                        "how": how, "name": f"{label}, {lying}", "order": order, "layers": layers, "units": units,
                        "tensor": tensor, "content": content, "axes": axes, "apart": apart,
                    }  # fmt: skip
                    name = f"{label}, {lying}, {order}: {how}"
                    figures.append(in_pairs(sides, name, "GB/s", what, pairs))
                    print(shown(figures[-1], memcpy), flush=True)
    return figures


def hand_off(sides: dict[str, Side], pairs: int) -> list[TreeSamples]:
    """Milliseconds that the last step's saving, the transfer and the load are not hidden behind computing."""
    what = {"how": "handoff", "tokens": TOKENS, "chunk": CHUNK, "chunk_s": CHUNK_S}
    head = f"hand-off of {TOKENS} tokens, exposed, ms"
    columns = "".join(f"{tree:>9}" for tree in sides)
    print(f"\n{head:<52}{columns}{_ratio_head(sides)}", flush=True)
    for side in sides.values():  # Every page of both stages is touched once.
        for _ in range(2):
            side.measure(what)
    found = in_pairs(sides, "steps of 2048 tokens, 512 KiB per block, shm", "ms", what, pairs)
    figure = TreeSamples(
        found.name, "ms", {tree: [1e3 * each for each in values] for tree, values in found.values.items()}
    )
    print(shown(figure), flush=True)
    return [figure]


def _ratio_head(sides: dict[str, Side]) -> str:
    return "  after / before: min median max" if "before" in sides else ""


async def hashing(rounds: int = 100) -> list[TreeSamples]:
    """How long the event loop is kept by hashing blocks, and by having threads do it."""
    print(f"\n{'digests: microseconds of the event loop':<52}{'here':>9}{'handed over':>14}{'until words':>14}")
    figures = []
    for size, each in ((16, 8), (64, 8), (64, 64), (256, 64), (256, 256), (512, 64), (512, 512), (1024, 1024)):
        layout = Layout("bench", "plain", "bfloat16", 2, 1, (each << 10) // 2048, 8, 64)
        threads, pieces = digest_threads.DigestThreads(layout), size // each
        data = [memoryview(bytearray(os.urandom(each << 10))) for _ in range(pieces * max(1, 32768 // size))]
        here, loop, until = list[float](), list[float](), list[float]()
        for number in range(rounds):
            first = number * pieces % len(data)
            for inline in (True, False):
                digest_threads.INLINE_BYTES = (1 << 40) if inline else 0  # type: ignore[misc]
                used, began = time.thread_time(), time.perf_counter()
                await is_over(threads.begin(data[first : first + pieces]))
                (here if inline else loop).append((time.thread_time() - used) * 1e6)
                if not inline:
                    until.append((time.perf_counter() - began) * 1e6)
        threads.close()
        name = f"{pieces} x {each} KiB"
        figures.append(TreeSamples(name, "us", {"here": here, "handed over": loop, "until words": until}))
        print(f"{name:<52}{median(here):9.0f}{median(loop):14.0f}{median(until):14.0f}", flush=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="TREE", help="compare with another revision's tree")
    parser.add_argument("--only", choices=("copies", "handoff", "hashing"), help="one part")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    trees = {"after": _HERE} if given.before is None else {"before": given.before.resolve(), "after": _HERE}
    sides = {name: Side(tree) for name, tree in trees.items()}
    figures = list[TreeSamples]()
    try:
        if given.only in (None, "copies"):
            figures += copies(sides, given.pairs)
        if given.only in (None, "handoff"):
            figures += hand_off(sides, given.pairs)
        if given.only in (None, "hashing"):
            figures += asyncio.run(hashing())
    finally:
        for side in sides.values():
            side.end()
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    print(f"\n{len(figures)} figures, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
