"""Rounds and summaries as people read them: lines, and a Markdown table."""

from collections.abc import Sequence
from typing import Final

from tandem.apps.chaos.drill.result import Round, Summary

_COLUMNS: Final = (
    "fault",
    "during",
    "engine",
    "rounds",
    "requests",
    "misuses",
    "lost",
    "duplicated",
    "wrong",
    "no end",
    "leaked blocks",
    "longest pause",
    "recovery",
    "result",
)


def round_line(number: int, of: int, result: Round) -> str:
    """One round in a line, and a line for each thing that was wrong."""
    recovery = "not whole again" if result.recovery_s is None else f"whole again after {result.recovery_s:.2f} s"
    broken = f", {result.broken} connections broke" if result.broken else ""
    misuses = f", {result.misuses} misuses" if result.misuses else ""
    resumed = f" and {result.resumed} went on" if result.resumed else ""
    asked = f"{result.requests} requests{misuses}{broken}{resumed}"
    line = (
        f"{result.kind} during {result.stage} {number}/{of}: {result.victim}, {asked}, "
        f"longest pause {result.longest_pause_s:.2f} s, {recovery}  {'ok' if result.passed else 'FAILED'}"
    )
    return "\n".join((line, *(f"  {problem}" for problem in result.problems)))


def verdict(cell: Summary) -> str:
    """The figures of a cell in a line."""
    return (
        f"{'FAIL' if cell.failed else 'PASS'}  {cell.kind} during {cell.stage}: lost {cell.lost}, "
        f"duplicated {cell.duplicated}, wrong {cell.wrong}, without an end {cell.without_end}, "
        f"blocks leaked {cell.blocks_leaked}, longest pause {cell.longest_pause_s:.2f} s, "
        f"recovery {_seconds(cell.recovery_s)}"
    )


def markdown(cells: Sequence[Summary]) -> str:
    """A table of all cells, aligned so that it reads as plain text too."""
    rows = [_COLUMNS, *(_row(cell) for cell in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def _row(cell: Summary) -> tuple[str, ...]:
    return (
        cell.kind,
        cell.stage,
        cell.engine,
        str(cell.rounds),
        f"{cell.requests}" + (f" ({cell.broken} broken, {cell.resumed} resumed)" if cell.broken else ""),
        str(cell.misuses),
        str(cell.lost),
        str(cell.duplicated),
        str(cell.wrong),
        str(cell.without_end),
        str(cell.blocks_leaked),
        f"{cell.longest_pause_s:.2f} s",
        _seconds(cell.recovery_s),
        f"{cell.failed} FAILED" if cell.failed else "pass",
    )


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"
