"""`python -m tools.equality`: prefill and decode apart against one engine, over tcp and over shared memory.

float32 must give identical answers under concurrent load. bfloat16 must, too, where both sides compute the same
chunks in the same batches; under concurrent load a sequence may part from the truth at a position whose two
greatest logits lie closer than EPSILON, on at most FLIPS_MAX of the prompts.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.e2e.platform import PlatformSettings
from tools.equality.asks import Wave, all_waves, greedy, unmixed
from tools.equality.compare import HEAD, Tally
from tools.equality.models import Subject, demo, random_llama
from tools.equality.runs import BLOCK_TOKENS, CHUNK_TOKENS, Answers, Setting, compare, truth, truth_with_stops

EPSILON = 0.125
"""Two bfloat16 steps of a hidden value move a logit of magnitude 16 by about this much."""
FLIPS_MAX = 0.01
SCHEMES = ("tcp", "shm")


async def main() -> int:
    print(f"P=2, D=2, blocks of {BLOCK_TOKENS} tokens, chunks of at most {CHUNK_TOKENS}; against one engine\n{HEAD}")
    tallies = []
    with tempfile.TemporaryDirectory(prefix="tandem-equality-") as folder:
        for subject in (demo(), random_llama(Path(folder))):
            tallies += await _float32(subject)
        tallies += await _bfloat16(demo())
    failures = [f"{tally.title}: {failure}" for tally in tallies for failure in tally.failures]
    for failure in failures[:40]:
        print(failure)
    prompts = sum(tally.prompts for tally in tallies)
    parts = f"{prompts} prompts, {sum(tally.flips for tally in tallies)} near-ties decided differently"
    print(f"equality: {'FAILED' if failures else 'OK'}: {parts}, {len(failures)} failures")
    return 1 if failures else 0


async def _float32(subject: Subject) -> list[Tally]:
    setting = Setting(subject)
    waves, truths = await truth_with_stops(setting, all_waves(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    return [
        await _shown(f"{subject.name} float32 {scheme}", setting.platform(scheme), waves, truths)
        for scheme in SCHEMES
    ]


async def _bfloat16(subject: Subject) -> list[Tally]:
    full = all_waves(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS)
    alone, mixed = Setting(subject, "bfloat16", prefix_cache=False), Setting(subject, "bfloat16")
    exact, near = unmixed(full), greedy(full)
    exact_truths, near_truths = await truth(alone, exact), await truth(mixed, near)
    tallies = []
    for scheme in SCHEMES:
        title = f"{subject.name} bfloat16 {scheme}"
        tallies.append(await _shown(f"{title} same chunks", alone.platform(scheme), exact, exact_truths))
        concurrent = await _shown(f"{title} mixed batches", mixed.platform(scheme), near, near_truths, EPSILON)
        if concurrent.flips > FLIPS_MAX * concurrent.prompts:
            concurrent.failures.append(f"{concurrent.flips} flips on {concurrent.prompts} prompts are too many")
        tallies.append(concurrent)
    return tallies


async def _shown(
    title: str, settings: PlatformSettings, waves: tuple[Wave, ...], truths: Answers, gap_max: float | None = None
) -> Tally:
    tally = await compare(title, settings, waves, truths, gap_max)
    print(tally.line(), flush=True)
    return tally


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
