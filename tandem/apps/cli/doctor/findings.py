"""The checks that were made, and their results."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Verdict = Literal["ok", "problem", "not checked"]
_MARKS: Final = {"ok": "ok", "problem": "PROBLEM", "not checked": "not checked"}


class Finding(msgspec.Struct, frozen=True):
    """One check of one pool, or of the service where `pool` is empty. `advice` is what to do about a problem, or how
    it could be checked."""

    check: str
    pool: str
    verdict: Verdict
    said: str
    advice: str = ""

    @property
    def line(self) -> str:
        where = f" {self.pool}" if self.pool else ""
        advice = f"\n{'':13}-> {self.advice}" if self.advice else ""
        return f"{_MARKS[self.verdict]:12} {self.check}{where}: {self.said}{advice}"


def ok(check: str, pool: str, said: str) -> Finding:
    return Finding(check, pool, "ok", said)


def problem(check: str, pool: str, said: str, advice: str) -> Finding:
    return Finding(check, pool, "problem", said, advice)


def unchecked(check: str, pool: str, said: str, advice: str = "") -> Finding:
    return Finding(check, pool, "not checked", said, advice)


def text_of(findings: Sequence[Finding]) -> str:
    """All of them as lines, and how many there are of each kind."""
    counts = ", ".join(f"{sum(each.verdict == kind for each in findings)} {kind}" for kind in _MARKS)
    return "\n".join((*(each.line for each in findings), counts))


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing that was checked is wrong."""
    return all(each.verdict != "problem" for each in findings)
