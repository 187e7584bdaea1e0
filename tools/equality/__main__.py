"""`python -m tools.equality`: prefill and decode apart against one engine, over tcp and over shared memory.

float32 must give identical answers under concurrent load, draws on an edge apart (`tools.equality.compare`).
bfloat16 must, without exception, where both sides compute the same chunks in the same batches; under concurrent load
a sequence may part from the truth at a position whose two greatest logits lie closer than EPSILON. What is excused
is counted, and may concern FLIPS_MAX of the prompts at most.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tools.equality.compare import HEAD, ComparisonTally
from tools.equality.models import Subject, demo, random_llama
from tools.equality.requests import all_waves, greedy, unmixed
from tools.equality.runs import BLOCK_TOKENS, CHUNK_TOKENS, Setting, compare, truth, truth_with_stops

EPSILON = 0.125
"""Two bfloat16 steps of a hidden value move a logit of magnitude 16 by about this much."""
FLIPS_MAX = 0.01
SCHEMES = ("tcp", "shm")


async def main(device: str = "cpu") -> int:
    print(f"P=2, D=2, blocks of {BLOCK_TOKENS} tokens, chunks of at most {CHUNK_TOKENS}; against one engine\n{HEAD}")
    tallies = []
    with tempfile.TemporaryDirectory(prefix="tandem-equality-") as folder:
        for subject in (demo(), random_llama(Path(folder))):
            tallies += await _float32(subject, device)
        tallies += await _bfloat16(device)
    failures = [f"{tally.title}: {failure}" for tally in tallies for failure in tally.failures]
    for failure in failures[:40]:
        print(failure)
    prompts, flips = (sum(tally.prompts for tally in tallies), sum(tally.flips for tally in tallies))
    verdict = "FAILED" if failures else "OK"
    print(f"equality: {verdict}: {prompts} prompts, {flips} excused near-ties and edges, {len(failures)} failures")
    return 1 if failures else 0


async def _float32(subject: Subject, device: str) -> list[ComparisonTally]:
    setting = Setting(subject, device=device)
    waves, truths = await truth_with_stops(setting, all_waves(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    return [_shown(await compare(setting, scheme, waves, truths)) for scheme in SCHEMES]


async def _bfloat16(device: str) -> list[ComparisonTally]:
    anything, story = demo(), demo(story_only=True)
    alone = Setting(anything, "bfloat16", prefix_cache=False, device=device)
    mixed = Setting(story, "bfloat16", device=device)
    exact = unmixed(all_waves(anything.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    near = greedy(all_waves(story.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    exact_truths, near_truths = await truth(alone, exact), await truth(mixed, near)
    tallies = []
    for scheme in SCHEMES:
        tallies.append(_shown(await compare(alone, scheme, exact, exact_truths), "same chunks"))
        tallies.append(_shown(await compare(mixed, scheme, near, near_truths, EPSILON), "mixed batches"))
    return tallies


def _shown(tally: ComparisonTally, how: str = "") -> ComparisonTally:
    tally.title += f" {how}" if how else ""
    allowed = 0 if how == "same chunks" else FLIPS_MAX * tally.prompts
    if tally.flips > allowed:
        tally.failures.append(f"{tally.flips} excused differences, {allowed:g} are allowed")
    print(tally.line(), flush=True)
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="where both sides compute: cpu, cuda or cuda:N")
    sys.exit(asyncio.run(main(parser.parse_args().device)))
