"""`python -m benchmarks [NAME…] [--json FILE]`: every measurement in turn, each in a process of its own.

What a measurement prints goes through as it comes; its check lines are collected into one table at the end. Exits
non-zero when a limit is not met or a measurement fails.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.rounds import table

NAMES: Final = (
    "engine",
    "chunking",
    "sampling",
    "transfer",
    "stage_copies",
    "tiers",
    "overlap",
    "router",
    "naming",
    "placement",
    "simulator",
    "autoscale",
    "operator_scale",
    "operator_pods",
    "discovery",
    "autoscale_fleet",
    "startup",
    "disconnect",
    "overload",
    "full_pools",
    "abuse",
    "reconnect",
    "index",
    "redis_index",
)
_SENTENCE: Final = re.compile(
    r"^(?P<name>.+): (?P<value>[\d.e+-]+)[^(]*\((?P<side>at least|at most) (?P<limit>[\d.]+)"
)
_COLUMNS: Final = re.compile(
    r"^(?P<name>\S.*?)\s+[\d.]+\s+[\d.]+\s+(?P<value>[\d.]+)\s+(?P<side>>=) (?P<limit>[\d.]+) "
)


@dataclass(frozen=True)
class CheckRow:
    """One check of one measurement."""

    measurement: str
    check: str
    value: float
    limit: str
    met: bool


@dataclass(frozen=True)
class MeasurementOutcome:
    """One measurement: its exit status, the last line it printed, and its checks."""

    name: str
    status: int
    verdict: str
    rows: tuple[CheckRow, ...]


def read_rows(name: str, lines: Sequence[str]) -> tuple[CheckRow, ...]:
    """The checks among what a measurement printed. A table's title stands before the names of its checks."""
    rows, title = [], ""
    for line in lines:
        if match := _SENTENCE.match(line):
            rows.append(_row(name, match["name"], match))
        elif match := _COLUMNS.match(line):
            rows.append(_row(name, f"{title}: {match['name']}", match))
        elif "GB/s" in line:
            title = line.partition("  ")[0]
    return tuple(rows)


def _row(measurement: str, check: str, match: re.Match[str]) -> CheckRow:
    value, limit = float(match["value"]), float(match["limit"])
    at_most = match["side"] == "at most"
    met = value <= limit if at_most else value >= limit
    return CheckRow(measurement, check, value, f"{'<=' if at_most else '>='} {limit:g}", met)


def run(name: str) -> MeasurementOutcome:
    """Run a measurement to its end, showing what it prints."""
    print(f"== {name} ==", flush=True)
    lines = []
    with subprocess.Popen(
        [sys.executable, "-u", "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    print(flush=True)
    spoken = [line for line in lines if line]
    return MeasurementOutcome(
        name, process.returncode, spoken[-1] if spoken else "it printed nothing", read_rows(name, lines)
    )


def show(outcomes: Sequence[MeasurementOutcome]) -> None:
    """One line per check; a measurement that failed without one gets a line too."""
    rows = []
    for outcome in outcomes:
        for row in outcome.rows:
            rows.append((row.check, row.measurement, f"{row.value:.3g}", row.limit, "met" if row.met else "NOT MET"))
        if outcome.status and all(row.met for row in outcome.rows):
            rows.append((outcome.verdict[:80], outcome.name, "", "", f"FAILED ({outcome.status})"))
    print(table(("check", "measurement", "value", "limit", "verdict"), rows))


def main() -> int:
    """Run what is asked for, in the given order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file, too")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"there is no measurement {unknown[0]!r}; there are {', '.join(NAMES)}")
    outcomes = [run(name) for name in arguments.names or NAMES]
    show(outcomes)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    failed = [outcome.name for outcome in outcomes if outcome.status]
    print(f"\nNOT MET: {', '.join(failed)}" if failed else "\nMET: every limit")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
