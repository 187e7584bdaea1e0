"""A seeded sample of the faults of some files, each judged by the tests that run the lines it stands in."""

import math
import random
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import msgspec

from tools.mutants.copies import ROOT, Copy
from tools.mutants.hand import bound_s, by
from tools.mutants.planting import Planted, faults_of
from tools.mutants.server import RunRequest, Test

GROUPS: Final = ROOT / "tests/mutants/groups.toml"
HARMLESS: Final = ROOT / "tests/mutants/harmless.toml"
TESTS_S: Final = 30.0
"""Clean processor time of the tests that judge one fault at most, the quickest first."""
_Z95: Final = 1.96


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files by pattern, and the test files that are about them."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[str]:
        return _matching(self.files)

    def test_paths(self) -> list[str]:
        return _matching(self.tests)


class Harmless(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault nobody needs to notice: the line `was` of `file` becomes `becomes`; `why` it hurts nobody."""

    file: str
    was: str
    becomes: str
    why: str


class Judged(NamedTuple):
    """What became of a fault: `killed`, `survived`, `harmless`, or `unrun` where no test runs its lines."""

    fault: Planted
    end: str
    by: str


def groups(file: Path = GROUPS) -> tuple[Group, ...]:
    return msgspec.convert(tomllib.loads(file.read_text())["group"], tuple[Group, ...])


def harmless(file: Path = HARMLESS) -> dict[tuple[str, str, str], str]:
    """Why, by file, line and what it becomes."""
    listed = msgspec.convert(tomllib.loads(file.read_text()).get("harmless", []), tuple[Harmless, ...])
    return {(each.file, each.was, each.becomes): each.why for each in listed}


def sampled(
    files: Sequence[str], count: int, seed: str, lines: Mapping[str, set[int]] | None = None
) -> list[Planted]:
    """`count` faults of these files, or all; with `lines` only those that stand in them. Faults that change nothing
    that is compiled are passed over."""
    every = [(file, fault) for file in files for fault in faults_of(file, (ROOT / file).read_text())]
    random.Random(seed).shuffle(every)
    found: list[Planted] = []
    for file, plant in every:
        if len(found) == count:
            break
        fault = plant()
        if lines is not None and not lines.get(file, set()) & set(range(fault.first, fault.last + 1)):
            continue
        try:
            compile(fault.text, file, "exec")
        except SyntaxError:
            continue
        found.append(fault)
    return found


class Reach:
    """Which tests run which lines, and how long each takes on good code."""

    def __init__(self, tests: Mapping[str, Test], tests_s: float) -> None:
        self._tests_s = tests_s
        self.failing = sorted(name for name, test in tests.items() if not test.passed)
        self._tests = {name: test for name, test in tests.items() if test.passed and name}
        self._imported = {file: set(lines) for file, lines in tests[""].lines.items()} if "" in tests else {}

    def of(self, fault: Planted) -> list[str]:
        """The quickest tests of those that run the fault's lines, then of those that run others of its function.

        What a coroutine runs after an exception was thrown into it, as at the end of a timeout, no tracer sees before
        Python 3.12. What runs on import concerns all.
        """
        wanted, around = set(range(fault.first, fault.last + 1)), set(fault.around)
        found = [name for name, test in self._tests.items() if around & set(test.lines.get(fault.file, ()))]
        at_it = {name for name in found if wanted & set(self._tests[name].lines[fault.file])}
        if not found and wanted & self._imported.get(fault.file, set()):
            found = list(self._tests)
        if not found:
            return []
        found.sort(key=lambda name: (name not in at_it, self._tests[name].cpu_s))
        total = 0.0
        for number, name in enumerate(found):
            total += self._tests[name].cpu_s
            if total > self._tests_s and number:
                return found[:number]
        return found

    def cost_s(self, tests: Sequence[str]) -> float:
        return sum(self._tests[name].cpu_s for name in tests)


def judge(
    faults: Sequence[Planted],
    tests: Sequence[str],
    jobs: int,
    until: float = float("inf"),
    reach_s: float = 0.0,
    tests_s: float = TESTS_S,
) -> list[Judged]:
    """Judge these by what these test files have, each by tests of `tests_s` of the processor at most.

    Faults that are not begun by `until` (monotonic) are left out. Tests that the run which finds out their lines has
    not begun within `reach_s` judge nothing (zero: no bound).
    """
    copies: SimpleQueue[Copy] = SimpleQueue()
    files = sorted({fault.file for fault in faults})
    known = harmless()
    with ThreadPoolExecutor(jobs) as threads:
        made = list(threads.map(lambda _: Copy(tests), range(jobs)))
        try:
            reach = Reach(_covered(made, threads, files, tests, reach_s), tests_s)
            if reach.failing:
                print(f"left out, as they fail without a fault: {', '.join(reach.failing)}")
            for copy in made:
                copies.put(copy)

            def one(fault: Planted) -> Judged | None:
                if time.monotonic() > until:
                    return None
                if why := known.get((fault.file, fault.was, fault.becomes)):
                    return Judged(fault, "harmless", why)
                return _judged(fault, reach, copies)

            judged = [each for each in threads.map(one, faults) if each is not None]
        finally:
            for copy in made:
                copy.__exit__(None, None, None)
    return judged


def _covered(
    copies: Sequence[Copy], threads: ThreadPoolExecutor, files: Sequence[str], tests: Sequence[str], reach_s: float
) -> dict[str, Test]:
    """Run the tests on good code, some in each copy."""
    shares = [tests[number :: len(copies)] for number in range(len(copies))]
    asks = [RunRequest(list(share), cover=list(files), through=True, begin_s=reach_s) for share in shares]
    found: dict[str, Test] = {}
    for copy, told in zip(
        copies, threads.map(lambda pair: pair[0].run(pair[1]), zip(copies, asks, strict=True)), strict=True
    ):
        if not told.tests and copy is not None:
            raise SystemExit(f"tests cannot be run on good code: {told.output}")
        imported = found.get("", Test(True, 0.0)).lines | told.tests.get("", Test(True, 0.0)).lines
        found.update(told.tests)
        found[""] = Test(True, 0.0, imported)
    return found


def _judged(fault: Planted, reach: Reach, copies: "SimpleQueue[Copy]") -> Judged:
    tests = reach.of(fault)
    if not tests:
        return Judged(fault, "unrun", "no test runs it")
    copy = copies.get()
    try:
        files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
        ask = RunRequest(files, bound_s(reach.cost_s(tests)), only=tests)
        told = copy.run_with(fault.file, fault.text, ask)
    finally:
        copies.put(copy)
    return Judged(fault, "survived" if told.end == "passed" else "killed", by(told))


class MutantTally(NamedTuple):
    """How many of the judged faults that could hurt were killed, survived, or stand in lines no test runs."""

    killed: int
    survived: int
    unrun: int

    @property
    def share(self) -> float:
        """Killed, of all of them."""
        every = sum(self)
        return self.killed / every if every else 1.0

    @property
    def run_share_at_most(self) -> float:
        """Upper end of the 95 % interval (Wilson's) of the share that tests kill where they run the line."""
        count, z2 = self.killed + self.survived, _Z95**2
        if not count:
            return 1.0
        share = self.killed / count
        spread = _Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
        return (share + z2 / (2 * count) + spread) / (1 + z2 / count)


def tell(name: str, judged: Sequence[Judged]) -> MutantTally:
    """Print survivors and the sum."""
    for each in judged:
        if each.end in ("survived", "unrun"):
            fault = each.fault
            print(f"{each.end} {fault.file}:{fault.first}: {fault.was}  ->  {fault.becomes}")
    ends = Counter(each.end for each in judged)
    tally = MutantTally(ends["killed"], ends["survived"], ends["unrun"])
    slow = sum(each.by in ("cpu", "hung") for each in judged)
    print(
        f"{name}: {tally.killed} of {sum(tally)} killed ({tally.share:.0%}; {slow} of them by their time), "
        f"{tally.unrun} in lines that none of these tests runs, {ends['harmless']} harmless",
        flush=True,
    )
    return tally


def changed_lines(since: str) -> dict[str, set[int]]:
    """Lines of Python files that have changed since a revision, by file, tests and tools left out. None where the
    revision is not there, as in a clone without history."""
    found = subprocess.run(
        [
            "git",
            "diff",
            "-U0",
            "--diff-filter=AM",
            since,
            "--",
            "*.py",
            ":!tests",
            ":!tools",
            ":!benchmarks",
            ":!protos",
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        print(f"what has changed since {since} is not known: {found.stderr.strip().splitlines()[-1]}")
    lines: dict[str, set[int]] = {}
    file = ""
    for line in found.stdout.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            begin, _, count = line.split("+")[1].split(" ")[0].partition(",")
            lines.setdefault(file, set()).update(range(int(begin), int(begin) + int(count or 1)))
    return lines


def tests_of(file: str) -> list[str]:
    """Unit tests that import a file by name."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    wanted = (f"from {module} import", f"import {module}\n", f"from {package} import {name}\n")
    return [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob("tests/unit/**/test_*.py"))
        if any(each in path.read_text() for each in wanted)
    ]


def _matching(patterns: Sequence[str]) -> list[str]:
    found = sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})
    assert found, f"nothing is named {patterns}"
    return found
