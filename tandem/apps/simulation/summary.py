"""The results of many seeds: sums that child processes send back, and the table at the end. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.apps.simulation.faults.injector import Fault
from tandem.apps.simulation.world import Report


@dataclass
class Summary:
    """Sums over seeds. `ends` counts requests by how they ended, `faults` counts by kind, `features` worlds by what
    they have."""

    seeds: int = 0
    ends: "Counter[str]" = field(default_factory=Counter)
    faults: "Counter[str]" = field(default_factory=Counter)
    handed_off: int = 0
    corrupted: int = 0
    refused: int = 0
    brought: "Counter[str]" = field(default_factory=Counter)
    features: "Counter[str]" = field(default_factory=Counter)
    looked_up: "Counter[str]" = field(default_factory=Counter)
    longest_pause_s: float = 0.0
    virtual_s: float = 0.0

    @property
    def requests(self) -> int:
        return self.ends.total()

    def add(self, other: "Summary") -> None:
        self.seeds += other.seeds
        self.ends += other.ends
        self.faults += other.faults
        self.handed_off += other.handed_off
        self.corrupted += other.corrupted
        self.refused += other.refused
        self.brought += other.brought
        self.features += other.features
        self.looked_up += other.looked_up
        self.longest_pause_s = max(self.longest_pause_s, other.longest_pause_s)
        self.virtual_s += other.virtual_s


def summary_of(report: Report) -> Summary:
    """One seed's report."""
    return Summary(
        seeds=1,
        ends=Counter(outcome.error or outcome.end for outcome in report.outcomes),
        faults=Counter(kind_of(fault) for fault in report.faults),
        handed_off=report.handed_off,
        corrupted=report.corrupted,
        refused=report.refused,
        brought=Counter(report.brought),
        features=Counter(report.features),
        looked_up=Counter(report.looked_up),
        longest_pause_s=max((outcome.longest_pause_s for outcome in report.outcomes), default=0.0),
        virtual_s=report.virtual_s,
    )


def kind_of(fault: Fault) -> str:
    """The fault's class in words: `EngineError` is an `engine error`."""
    name = type(fault).__name__
    return "".join(
        f" {letter.lower()}" if letter.isupper() and at else letter.lower() for at, letter in enumerate(name)
    )


def table(summary: Summary, wall_s: float) -> str:
    """Everything in two columns; counts by kind are indented below their sum."""
    rows = [("seeds", f"{summary.seeds:,}"), *_by_kind(summary.features), ("requests", f"{summary.requests:,}")]
    rows += _by_kind(summary.ends)
    rows += [("faults", f"{summary.faults.total():,}"), *_by_kind(summary.faults)]
    rows += [
        ("hand-offs", f"{summary.handed_off:,}"),
        ("blocks corrupted", f"{summary.corrupted:,}"),
        ("blocks refused and computed instead", f"{summary.refused:,}"),
        ("blocks brought instead of computed", f"{summary.brought.total():,}"),
        *_by_kind(summary.brought),
        ("prompts looked up in Redis", f"{summary.looked_up.total():,}"),
        *_by_kind(summary.looked_up),
        ("longest pause in a stream", f"{summary.longest_pause_s:.2f} s"),
        ("virtual time", f"{summary.virtual_s:,.0f} s"),
        ("real time", f"{wall_s:.1f} s"),
        ("requests per second", f"{summary.requests / max(wall_s, 1e-9):,.0f}"),
    ]
    return aligned(rows)


def _by_kind(counts: "Counter[str]") -> list[tuple[str, str]]:
    return [(f"  {kind}", f"{count:,}") for kind, count in sorted(counts.items())]


def aligned(rows: Iterable[tuple[str, str]]) -> str:
    """Names to the left, figures to the right."""
    lines = list(rows)
    names, figures = max(len(name) for name, _ in lines), max(len(figure) for _, figure in lines)
    return "\n".join(f"{name:<{names}}  {figure:>{figures}}" for name, figure in lines)
