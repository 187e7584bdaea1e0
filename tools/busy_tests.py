"""`python -m tools.busy_tests`: the tests on a machine that is busy with something else, and in any order.

`whole` runs every test once beside four processes that compute all the time; `waiting` runs the files in which
something waits for a socket, a thread or another process, five times in random order beside eight. What fails in
either, and not alone, goes by the clock, by an order or by what another test left behind. The names of what fails are
printed at once: a round that is broken off keeps them.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.process.parent_death import die_with

if TYPE_CHECKING:
    import pytest

_TESTS: Final = Path("tests")
_OTHERS: Final = ("cluster", "ray", "sim", "vllm", "vllm_versions")
"""Folders whose tests need programs or environments of their own, or go by virtual time."""
_WAITS: Final = re.compile(
    r"\b(socket|sockets|thread|threads|threading|Thread\w*|to_thread|run_in_executor|start_server|open_connection"
    r"|grpc|httpx|urllib|redis|subprocess|multiprocessing|Popen|spawn|listen|listening|serving|connect)\b"
)
_NAMED: Final = ("unit/router/api/test_front_rest.py", "e2e/test_openai_client.py")
"""Files that a review named for verdicts by the clock, whether or not they wait for anything themselves."""
_SPIN: Final = "import time\nend = time.monotonic() + float({seconds})\nwhile time.monotonic() < end: pass"
_LONGEST_S: Final = 4 * 3600.0


def waiting() -> list[str]:
    """The test files in which something waits for a socket, a thread or another process; sorted paths."""
    files = (file for file in _TESTS.rglob("test_*.py") if file.relative_to(_TESTS).parts[0] not in _OTHERS)
    named = {_TESTS / name for name in _NAMED}
    return sorted(str(file) for file in files if file in named or _WAITS.search(file.read_text()))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """`processes` that compute all the time, at this process's priority, until the block ends."""
    arrange = die_with(parent=os.getpid())
    spin = [sys.executable, "-c", _SPIN.format(seconds=_LONGEST_S)]
    started = [subprocess.Popen(spin, preexec_fn=arrange) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def main() -> int:
    """Run what was asked for; the exit status is that of the first round that failed, else 0."""
    options = _options()
    files = waiting() if options.what == "waiting" else []
    rounds = options.rounds or (5 if files else 1)
    processes = options.busy if options.busy is not None else (8 if files else 4)
    failed = 0
    with busy(processes):
        for number in range(options.seed, options.seed + rounds):
            order = ("--random-order-bucket=module", f"--random-order-seed={number}") if files else ()
            says = ("-p", "tools.busy_tests", "-n", str(options.jobs), "--dist", "loadfile")
            pytest = (sys.executable, "-m", "pytest", *says, *order, *files)
            print(f"busy_tests: {len(files) or 'all'} files, seed {number}, beside {processes} processes", flush=True)
            begin = time.monotonic()
            status = subprocess.run(pytest, check=False).returncode
            print(f"busy_tests: seed {number}: {time.monotonic() - begin:.0f} s, status {status}", flush=True)
            failed = failed or status
    return failed


def pytest_runtest_logreport(report: "pytest.TestReport") -> None:
    """A hook of pytest: print the name of a test that has failed."""
    if report.failed:
        print(f"\nFAILED {report.nodeid} ({report.when})", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.busy_tests", description=__doc__)
    parser.add_argument("what", choices=("whole", "waiting"))
    parser.add_argument("--rounds", type=int, help="how often; 1 of whole, 5 of waiting unless given")
    parser.add_argument("--busy", type=int, help="processes beside; 4 with whole, 8 with waiting unless given")
    parser.add_argument("--seed", type=int, default=1, help="of the first round's order, one more each round")
    parser.add_argument("--jobs", type=int, default=2, help="pytest's own processes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
