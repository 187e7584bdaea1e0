"""A conversation that comes back: its first token when the prompt is read from DRAM, NVMe, the store or a peer,
against computing it again; and whether the cost model knows where one begins to beat the other.

Real processes with the torch engine and a random model, small enough for the crossing to lie among the lengths.
Prompts are asked again when later ones have driven them out of the pool, each beside a new one of the same length,
now before and now after it: what computing costs is taken at the same time as what bringing costs. For each way to
bring them two platforms take turns: one made to bring whatever it can, in which both curves are measured, and one
whose worker decides by itself and says what it expects of either way. Both crossings are found alike, between the
lengths where the median of the differences changes its sign: the measured one of times to the first token, the one
that the cost model predicts of what it said. Each is told with the interval that nine in ten samples drawn again
from the pairs give. Writes a plot of tokens against milliseconds. Exits non-zero when the two crossings differ by
more than LIMIT, or when one of them does not lie within the lengths.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.overlap import build_model
from benchmarks.returning_curves import CostEstimate, Crossing, PromptPair, apart, leads_of
from benchmarks.returning_platforms import TIERS, Answer, PromptClient, run_both
from benchmarks.rounds import Check, table, verdict
from tandem.apps.chaos.live import LivePlatform
from tandem.core.entropy import SeededEntropy, below

LENGTHS: Final = (32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768)
LIMIT: Final = 0.2
_REPEATS: Final = 24
_WARM: Final = (64, 768, 128, 512, 32, 256)
"""Prompts that come back first and do not count: what either way costs is learned from them."""
_WARM_TIMES: Final = 5
_FILL: Final = 10
"""So many of the longest prompts drive out what was asked before."""
_QUIET_S: Final = 0.05
"""After a new prompt, until its blocks have been copied."""
_SETTLE_S: Final = 2.0
_TOGETHER: Final = 3
"""Prompts asked before they come back to another worker, of which there are two: an odd number."""


@dataclass
class Measured:
    """What was measured of one way. `asked` are the pairs of the platform that decides by itself."""

    pairs: list[PromptPair] = field(default_factory=list)
    asked: list[PromptPair] = field(default_factory=list)
    sayings: list[CostEstimate] = field(default_factory=list)

    @property
    def brought(self) -> list[PromptPair]:
        return [pair for pair in self.pairs if pair.came]


def prompts(lengths: Sequence[int], repeats: int, seed: int) -> list[tuple[int, ...]]:
    """`repeats` of each length, in an order that mixes lengths; all different from their first block on."""
    entropy = SeededEntropy(seed, "returning")
    return [tuple(8 + below(entropy, 900) for _ in range(length + 1)) for _ in range(repeats) for length in lengths]


class Turns:
    """Asks the two platforms of one way in turns, and keeps what comes of it."""

    def __init__(self, tier: str, made: LivePlatform, free: LivePlatform) -> None:
        self.measured = Measured()
        self._tier = tier
        self._made, self._free = PromptClient(made), PromptClient(free)

    async def close(self) -> None:
        await self._made.close()
        await self._free.close()

    async def all(self, wanted: Sequence[Sequence[int]]) -> None:
        for prompt in wanted:
            for asker in (self._made, self._free):
                await self._new(asker, prompt)

    async def pair(self, number: int, prompt: Sequence[int], new: Sequence[int]) -> None:
        """A prompt that comes back and a new one, one after the other, on either platform. `number` says in which of
        four orders."""
        for asker in self._order(number):
            beside = None
            if number % 2:
                beside = await self._new(asker, new)
            again = await asker.ask(prompt)
            await self._note(asker, prompt, again, beside or await self._new(asker, new))

    async def elsewhere(self, number: int, wanted: Sequence[Sequence[int]]) -> None:
        """An odd number of prompts, then all of them again: each comes to the worker that did not have it."""
        for asker in self._order(number):
            new = [await asker.ask(prompt) for prompt in wanted]
            for prompt, beside in zip(wanted, new, strict=True):
                await self._note(asker, prompt, await asker.ask(prompt), beside)

    def _order(self, number: int) -> Sequence[PromptClient]:
        return (self._made, self._free) if number // 2 % 2 else (self._free, self._made)

    async def _new(self, asker: PromptClient, new: Sequence[int]) -> Answer:
        answer = await asker.ask(new)
        await asyncio.sleep(_QUIET_S)
        return answer

    async def _note(self, asker: PromptClient, prompt: Sequence[int], again: Answer, new: Answer) -> None:
        tokens = len(prompt) - 1
        pair = PromptPair(tokens, new.first_ms, again.first_ms, again.found.get(self._tier, 0))
        if asker is self._made:
            self.measured.pairs.append(pair)
            return
        self.measured.asked.append(pair)
        said = await asker.said(again, tokens)
        if said is not None:
            self.measured.sayings.append(said)


async def measure(
    made: LivePlatform, free: LivePlatform, tier: str, lengths: Sequence[int], repeats: int
) -> Measured:
    """Ask everything, then everything again."""
    turns, warm, wanted = Turns(tier, made, free), prompts(_WARM, _WARM_TIMES, 99), prompts(lengths, repeats, 1)
    try:
        if tier == "peer":
            for number, group in enumerate(_groups(warm)):
                await turns.elsewhere(number, group)
            turns.measured = Measured()
            for number, group in enumerate(_groups(wanted)):
                await turns.elsewhere(number, group)
            return turns.measured
        await turns.all(warm)
        await turns.all(wanted)
        await asyncio.sleep(_SETTLE_S)
        await turns.all(prompts((lengths[-1],), _FILL, 98))
        await asyncio.sleep(_SETTLE_S)
        await turns.all(warm)
        for number, (prompt, new) in enumerate(zip(wanted, prompts(lengths, repeats, 50), strict=True)):
            # Every length has every order equally often.
            await turns.pair(number % len(lengths) + number // len(lengths), prompt, new)
    finally:
        await turns.close()
    return turns.measured


def _groups(wanted: Sequence[Sequence[int]]) -> list[Sequence[Sequence[int]]]:
    whole = len(wanted) // _TOGETHER * _TOGETHER
    return [wanted[start : start + _TOGETHER] for start in range(0, whole, _TOGETHER)]


def main() -> int:
    given = _parser().parse_args()
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="tandem-returning-", dir=given.directory) as name:
        folder = Path(name)
        model = folder / "model"
        build_model(model, given.hidden, given.layers, LENGTHS[-1] + 64)
        common = ("--model", str(model), "--kv-memory", given.kv_memory)
        for tier in given.only or TIERS:
            work = partial(measure, tier=tier, lengths=LENGTHS, repeats=given.repeats)
            found[tier] = run_both(common, tier, folder, work)
            if given.raw is not None:
                given.raw.write_text(json.dumps({tier: asdict(measured) for tier, measured in found.items()}))
    return report(found, given.plot)


def report(found: dict[str, Measured], plot: Path | None) -> int:
    checks = []
    for tier, measured in found.items():
        print(f"{tier}, medians in ms", table(_HEAD, _rows(measured)), sep="\n")
        real, said = (Crossing.of(leads_of(samples)) for samples in (measured.brought, measured.sayings))
        print(f"{tier}: bringing is faster from {_told(real)}; the cost model predicts {_told(said)}\n")
        off = apart(said.tokens, real.tokens)
        checks.append(Check(f"crossing {tier}, predicted against measured", off, LIMIT, at_least=False))
    if plot is not None:
        draw(plot, found)
    return verdict(checks, "the cost model knows where bringing begins to pay")


def _told(crossing: Crossing) -> str:
    tokens = "none of the lengths" if crossing.tokens is None else f"{crossing.tokens:.0f} tokens"
    low = f"{crossing.low:.0f}" if crossing.low > 0 else "less than the shortest"
    high = f"{crossing.high:.0f}" if crossing.high < float("inf") else "more than the longest"
    return f"{tokens} on ({low} to {high})"


_HEAD: Final = ("tokens", "pairs", "computed", "brought", "lead", "said: computed", "brought", "lead", "by itself")


def _rows(measured: Measured) -> list[list[str]]:
    rows = []
    for length in _lengths(measured.pairs):
        pairs = [pair for pair in measured.brought if pair.tokens == length]
        said = [each for each in measured.sayings if each.tokens == length]
        alone = [pair.came for pair in measured.asked if pair.tokens == length]
        rows.append(
            [
                str(length),
                str(len(pairs)),
                _median([pair.new_ms for pair in pairs]),
                _median([pair.again_ms for pair in pairs]),
                _median([pair.lead_ms for pair in pairs]),
                _median([each.compute_ms for each in said]),
                _median([each.bring_ms for each in said]),
                _median([each.lead_ms for each in said]),
                f"{sum(alone)}/{len(alone)}",
            ]
        )
    return rows


def _lengths(pairs: Sequence[PromptPair]) -> list[int]:
    return sorted({pair.tokens for pair in pairs})


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def draw(path: Path, found: dict[str, Measured]) -> None:
    """Tokens against milliseconds, one panel for each way. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 6.5), layout="constrained")
    for axes, (tier, measured) in zip(figure.subplots(2, 2).flat, found.items(), strict=False):
        pairs = {n: [pair for pair in measured.brought if pair.tokens == n] for n in _lengths(measured.brought)}
        computed = [statistics.median(pair.new_ms for pair in each) for each in pairs.values()]
        brought = [statistics.median(pair.again_ms for pair in each) for each in pairs.values()]
        axes.plot(list(pairs), computed, label="computed", color="black", marker="o", markersize=3)
        axes.plot(list(pairs), brought, label="brought", color="tab:blue", marker="o", markersize=3)
        real, said = (Crossing.of(leads_of(samples)) for samples in (measured.brought, measured.sayings))
        if real.tokens is not None:
            axes.axvspan(real.low, real.high, color="tab:blue", alpha=0.15)
            axes.axvline(real.tokens, color="tab:blue", linewidth=1, label=f"crossing {real.tokens:.0f}")
        if said.tokens is not None:
            axes.axvline(
                said.tokens, color="tab:red", linestyle="--", linewidth=1, label=f"predicted {said.tokens:.0f}"
            )
        axes.set(
            title=tier, xlabel="prompt tokens that come back", ylabel="TTFT (ms)", xlim=(0, None), ylim=(0, None)
        )
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.returning", description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--kv-memory", default="4Mi", help="KV pool of a worker (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=_REPEATS)
    parser.add_argument("--only", nargs="+", choices=TIERS, help="only these")
    parser.add_argument("--directory", type=Path, help="where NVMe segments go; on a disk that takes direct I/O")
    parser.add_argument("--raw", type=Path, help="write all pairs and sayings to this file")
    parser.add_argument("--plot", type=Path, help="write the curves to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
