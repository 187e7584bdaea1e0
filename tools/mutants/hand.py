"""Faults thought of by people: `tests/mutants/hand.toml` says what stands where, what it becomes, which tests must
notice, and whom it would hurt. All of them must be noticed."""

import tomllib
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Final

import msgspec

from tools.mutants.copies import ROOT, Copy
from tools.mutants.server import RunReport, RunRequest

FILE: Final = ROOT / "tests/mutants/hand.toml"
_TIMES: Final = 5
"""A run with a fault may take so many times the processor time of the good code, and some seconds for imports."""
_IMPORTS_S: Final = 20


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stands` is in `file` once and becomes `becomes`; `tests` must fail then. `harm` is what a user would see."""

    file: str
    stands: str
    becomes: str
    tests: tuple[str, ...]
    harm: str

    def planted(self, root: Path = ROOT) -> str:
        """The file with the fault. Raises `ValueError` when the code has moved on."""
        text = (root / self.file).read_text()
        if text.count(self.stands) != 1:
            raise ValueError(
                f"{self.file} has {text.count(self.stands)} times, and should have once: {self.stands!r}"
            )
        return text.replace(self.stands, self.becomes)


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    fault: tuple[Fault, ...]


def faults(file: Path = FILE) -> tuple[Fault, ...]:
    """All of them, in order."""
    return msgspec.convert(tomllib.loads(file.read_text()), _Listing).fault


def bound_s(clean_s: float) -> int:
    """Processor time for a run that takes `clean_s` without a fault."""
    return _IMPORTS_S + ceil(_TIMES * clean_s)


def judge(wanted: Sequence[Fault]) -> int:
    """Judge these and tell; gives how many nobody noticed."""
    tests = sorted({test for fault in wanted for test in fault.tests})
    unnoticed = 0
    with Copy(sorted({test.partition("::")[0] for test in tests})) as copy:
        clean = copy.run(RunRequest(tests, through=True))
        if clean.end != "passed":
            print(clean.output)
            raise SystemExit("the tests fail without a fault")
        for fault in wanted:
            cost_s = sum(each.cpu_s for name, each in clean.tests.items() if _one_of(name, fault.tests))
            told = copy.run_with(fault.file, fault.planted(), RunRequest(list(fault.tests), bound_s(cost_s)))
            unnoticed += told.end == "passed"
            print(
                f"{'SURVIVED' if told.end == 'passed' else 'killed  '} {fault.file}: {fault.harm} ({by(told)})",
                flush=True,
            )
    print(f"{len(wanted) - unnoticed} of {len(wanted)} faults were noticed")
    return unnoticed


def by(told: RunReport) -> str:
    """The test that noticed, or how the run ended."""
    failed = [name for name, test in told.tests.items() if not test.passed]
    return failed[0] if failed else told.end


def _one_of(name: str, tests: Sequence[str]) -> bool:
    return any(name == test or name.startswith((f"{test}::", f"{test}[")) for test in tests)
