"""What measurements share: contenders that take turns, medians over rounds, checks and the verdict line.

Contenders run one after the other inside every round, so that a ratio compares the same machine in the same state.
A check prints as `name: value (at least limit)`; `python -m benchmarks` collects these lines.
"""

import random
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")
ROUNDS: Final = 7


@dataclass(frozen=True)
class Check:
    """One figure against its limit. `at_least` says on which side of the limit it must lie."""

    name: str
    value: float
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def bound(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{'at least' if self.at_least else 'at most'} {self.limit:.4g}{unit}"

    def line(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name}: {self.value:.3g}{unit} ({self.bound})"


async def alternate(
    contenders: Mapping[str, Callable[[], Awaitable[T]]], rounds: int, warm: int = 1
) -> dict[str, list[T]]:
    """The result of every contender in each of `rounds` rounds, after `warm` rounds that do not count.

    Every other round goes backwards, so that a drift of the machine favours nobody.
    """
    results: dict[str, list[T]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(warm + rounds):
        for name in order if turn % 2 else reversed(order):
            result = await contenders[name]()
            if turn >= warm:
                results[name].append(result)
    return results


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of the ratio within each round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def median_interval(values: Sequence[float], share: float = 0.95, draws: int = 4000) -> tuple[float, float]:
    """Between what the median of `values` lies with this probability, by a bootstrap that always draws the same."""
    entropy = random.Random(0)
    medians = sorted(statistics.median(entropy.choices(values, k=len(values))) for _ in range(draws))
    outside = int(draws * (1 - share) / 2)
    return medians[outside], medians[-1 - outside]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all (0 < share <= 1) do not exceed. Needs one value at least."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1_000_000) * len(ordered) // 1_000_000) - 1)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, figures to the right."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def rounded(value: object) -> object:
    """Floats to four significant digits."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [rounded(each) for each in value]
        case _:
            return value


def verdict(checks: Sequence[Check], subject: str, unjudged: Sequence[str] = ()) -> int:
    """Print every check and, as the last line, the verdict; the process's exit status. `unjudged` says what could not
    be judged: nothing is met then, and neither is it where there is no check at all."""
    if not checks and not unjudged:
        unjudged = ("there was nothing to check",)
    for check in checks:
        print(check.line())
    unmet = [f"{check.name} is {check.value:.3g}, not {check.bound}" for check in checks if not check.met]
    missed = ([f"NOT MET: {'; '.join(unmet)}"] if unmet else []) + (
        [f"NOT JUDGED: {'; '.join(unjudged)}"] if unjudged else []
    )
    print(". ".join(missed) or f"MET: {subject}")
    return 1 if missed else 0
