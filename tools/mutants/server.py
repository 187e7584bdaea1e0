"""A process in a copy of the code that runs tests in forks of itself: what is not Tandem's is imported once.

One JSON object a line comes in (`RunRequest`) and one goes out (`RunReport`). The code of the copy may change between
two lines."""

import contextlib
import importlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

_QUIET_S: Final = 30.0
"""A run that computes nothing for so long waits for what never comes."""
_LOOK_S: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class RunRequest(msgspec.Struct):
    """Run `tests`, or of these files the tests `only`, in that order, with at most `cpu_s` of the processor (zero: no
    bound). `cover`: note the lines that each test runs of these files. `through`: go on after a failure.
    `begin_s`: begin no test later than that (zero: no bound)."""

    tests: list[str]
    cpu_s: int = 0
    only: list[str] = []
    cover: list[str] = []
    through: bool = False
    begin_s: float = 0.0


class Test(msgspec.Struct):
    """What one test did: whether it passed, its processor time, the lines it ran by file."""

    passed: bool
    cpu_s: float
    lines: dict[str, list[int]] = {}


class RunReport(msgspec.Struct):
    """How a run ended: `passed`, `failed`, `cpu` or `hung`; by test what it did; the end of its output."""

    end: str
    tests: dict[str, Test] = {}
    output: str = ""


class _Notes:
    """A plugin of pytest that notes what each test does."""

    def __init__(self, ask: RunRequest) -> None:
        self._order = {name: number for number, name in enumerate(ask.only)}
        self._until = time.monotonic() + ask.begin_s if ask.begin_s else float("inf")
        self.tests: dict[str, Test] = {}
        self._traced: Any = None
        if ask.cover:
            coverage = importlib.import_module("coverage")
            self._traced = coverage.Coverage(data_file=None, include=ask.cover, config_file=False)
            self._traced.start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order:
            wanted = [item for item in items if item.nodeid in self._order]
            items[:] = sorted(wanted, key=lambda item: self._order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if time.monotonic() > self._until:
            item.session.shouldstop = "the time is over"
            return True
        begun, test = time.process_time(), Test(True, 0.0)
        self.tests[item.nodeid] = test
        if self._traced is not None:
            self._traced.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            test.cpu_s = time.process_time() - begun
            if self._traced is not None:
                self._traced.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid].passed = False

    def lines(self) -> None:
        """Add to each test the lines it ran. Lines that run on import are of the test named ''."""
        if self._traced is None:
            return
        self._traced.stop()
        data = self._traced.get_data()
        for file in data.measured_files():
            name = os.path.relpath(file)
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    self.tests.setdefault(test, Test(True, 0.0)).lines.setdefault(name, []).append(line)


def _run(ask: RunRequest, told: Path) -> int:
    """In a fork: run the tests and leave what they did in `told`."""
    notes = _Notes(ask)
    flags = [] if ask.through else ["-x"]
    status = pytest.main([*flags, "-p", "no:cacheprovider", "--no-header", "--tb=short", *ask.tests], plugins=[notes])
    notes.lines()
    told.write_bytes(msgspec.json.encode(notes.tests))
    return int(status)


def _import_foreign(tests: list[str]) -> None:
    """Import what collecting these tests imports, but for what lies here: that is what changes."""
    names = Path("foreign")
    child = os.fork()
    if child == 0:
        _to_file(Path("collected"))
        # Only bytecode of good code is kept.
        sys.dont_write_bytecode = False
        pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", *tests])
        here = os.getcwd()
        foreign = [
            name
            for name, module in list(sys.modules.items())
            if (file := getattr(module, "__file__", None)) and not file.startswith(here) and name != "__main__"
        ]
        names.write_text("\n".join(foreign))
        os._exit(0)
    os.waitpid(child, 0)
    for name in names.read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _to_file(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _cpu_s(pid: int) -> float:
    """Processor time of a child that has not been waited for, and of what it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _watched(pid: int) -> str:
    """Wait for a child; gives how it ended. A child that stands still is killed."""
    heard, used = time.monotonic(), 0.0
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if os.WIFSIGNALED(status):
                return "cpu" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "failed"
            return "passed" if os.WEXITSTATUS(status) == 0 else "failed"
        now, uses = time.monotonic(), _cpu_s(pid)
        if uses - used > 0.03:
            heard, used = now, uses
        elif now - heard > _QUIET_S:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(_LOOK_S)


def serve(ask: RunRequest) -> RunReport:
    """Run what is asked for in a fork, in a session of its own of which nothing is left."""
    told, output = Path("told"), Path("output")
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        _to_file(output)
        if ask.cpu_s:
            resource.setrlimit(resource.RLIMIT_CPU, (ask.cpu_s, ask.cpu_s + 5))
        status = 3
        try:
            status = _run(ask, told)
        finally:
            os._exit(status)
    end = _watched(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    tests = msgspec.json.decode(told.read_bytes(), type=dict[str, Test]) if told.exists() else {}
    return RunReport(end, tests, output.read_text(errors="replace")[-3000:])


def main() -> None:
    """Serve until the input ends. The first line are the tests to import for."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import_foreign(msgspec.json.decode(sys.stdin.buffer.readline(), type=list[str]))
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(serve(msgspec.json.decode(line, type=RunRequest))) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
