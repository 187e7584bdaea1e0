"""Drawing with seeds on vLLM's first model runner: `draw_tokens` against cumulative sums over the whole vocabulary.

The second is how it was done before. Both draw the same tokens from the same logits, in turns, and logits are as
peaked as a language model's. Figures are medians of milliseconds per step, the verdict is their ratio.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import torch

from benchmarks.rounds import Check, alternate, median_ratio, table, verdict
from tandem.engine.torch.sampling import Cut, draw_tokens

RATIO_MAX: Final = 1.0
SHAPES: Final = ((256, 128_000), (16, 1536))
CUTS: Final = {"no cut": Cut(0, 1.0), "top_k 40": Cut(40, 0.95)}


def whole_rows(logits: torch.Tensor, cut: Cut, units: Sequence[float]) -> torch.Tensor:
    """Every row by sums over all tokens, in double precision."""
    if cut.top_k:
        bounds = logits.topk(cut.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < bounds, float("-inf"))
    probabilities = torch.softmax(logits, -1)
    if cut.top_p < 1:
        greatest = probabilities.topk(min(1024, logits.shape[1]), -1).values
        inside = (greatest.double().cumsum(-1) - greatest < cut.top_p).sum(-1).clamp(min=1)
        probabilities = probabilities * (probabilities >= greatest.gather(1, inside[:, None] - 1))
    cumulative = probabilities.double().cumsum(-1)
    targets = torch.tensor(units, dtype=torch.float64) * cumulative[:, -1]
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="that count (default %(default)s)")
    rounds = parser.parse_args().rounds
    checks, rows = [], []
    for requests, vocabulary in SHAPES:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(requests, vocabulary, generator=generator) * 4
        units = torch.rand(requests, generator=generator).tolist()
        for name, cut in CUTS.items():

            async def ours(cut: Cut = cut, logits: torch.Tensor = logits, units: list[float] = units) -> float:
                began = time.perf_counter()
                draw_tokens(logits, [cut] * len(units), units)
                return (time.perf_counter() - began) * 1e3

            async def before(cut: Cut = cut, logits: torch.Tensor = logits, units: list[float] = units) -> float:
                began = time.perf_counter()
                whole_rows(logits, cut, units)
                return (time.perf_counter() - began) * 1e3

            found = asyncio.run(alternate({"now": ours, "before": before}, rounds))
            what = f"[{requests}, {vocabulary}], {name}"
            if vocabulary > 100_000:
                checks.append(
                    Check(
                        f"ms per step now / before, {what}",
                        median_ratio(found["now"], found["before"]),
                        RATIO_MAX,
                        False,
                    )
                )
            rows.append((what, f"{median(found['before']):.2f}", f"{median(found['now']):.2f}"))
    print(table(("rows x vocabulary", "before ms", "now ms"), rows))
    return verdict(checks, "rows are drawn without sums over the whole vocabulary in double precision")


if __name__ == "__main__":
    sys.exit(main())
