"""Children on a lifeline end with the process that started them, however it ended, and take their group along."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.process.local_processes import LocalProcesses
from tandem.process.processes import Command

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[4])}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


def on_lifeline(directory: Path, code: str) -> Command:
    """A command that runs `code` as a module on a lifeline."""
    (directory / "lifeline_program.py").write_text(code)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{directory}:{ENVIRONMENT['PYTHONPATH']}"}
    return Command(
        "x", [sys.executable, "-m", "tandem.process.lifeline", "lifeline_program", "--a", "b"], environment
    )


async def ended(pidfd: int) -> None:
    """Wait until the process behind a pidfd has ended."""
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, readable.set)
    await asyncio.wait_for(readable.wait(), 100)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from tandem.process.local_processes import LocalProcesses
from tandem.process.processes import Command
from tests.unit.tandem.process import test_lifeline as here

async def main():
    directory = Path(sys.argv[1])
    process = await LocalProcesses(directory, lifeline=True).start(here.on_lifeline(directory, here.FAMILY))
    grandchild = await process.lines()
    print(process.pid, grandchild[0], flush=True)
    await process.wait()

asyncio.run(main())
"""

THREADED = """
import os, subprocess, sys, threading, time
def start():
    global child
    child = subprocess.Popen(
        [sys.executable, "-m", "tandem.process.lifeline", "lifeline_program"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )
    grandchild = child.stdout.readline().decode().strip()
    print(child.pid, grandchild, flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(600)
"""


async def family_of(directory: Path, code: str) -> tuple[asyncio.subprocess.Process, int, int, int]:
    """A parent that runs `code`, the pid of its child, and pidfds of child and grandchild."""
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{directory}:{ENVIRONMENT['PYTHONPATH']}"}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(directory), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    child, grandchild = map(int, (await asyncio.wait_for(parent.stdout.readline(), 60)).split())
    return parent, child, os.pidfd_open(child), os.pidfd_open(grandchild)


@pytest.mark.parametrize("stopped", [False, True])
async def test_child_and_grandchild_end_when_the_parent_is_killed(tmp_path: Path, stopped: bool) -> None:
    # A stopped child runs nothing of its own: the kernel ends it.
    parent, child, child_fd, grandchild_fd = await family_of(tmp_path, PARENT)
    if stopped:
        os.kill(child, signal.SIGSTOP)
    parent.kill()
    await parent.wait()
    await ended(child_fd)
    await ended(grandchild_fd)


async def test_a_child_outlives_the_thread_that_started_it_and_ends_with_the_process(tmp_path: Path) -> None:
    on_lifeline(tmp_path, FAMILY)
    parent, child, child_fd, grandchild_fd = await family_of(tmp_path, THREADED)
    os.kill(child, 0)
    parent.kill()
    await parent.wait()
    await ended(child_fd)
    await ended(grandchild_fd)


SHOWS = """
import os, sys
print(__name__, sys.argv[1:], os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev, flush=True)
sys.exit(int(sys.argv[2] == "b") * 7)
"""


async def test_flags_and_exit_status_are_those_of_the_module(tmp_path: Path) -> None:
    process = await LocalProcesses(tmp_path, lifeline=True).start(on_lifeline(tmp_path, SHOWS))
    assert await process.lines() == ["__main__ ['--a', 'b'] True"]
    assert await process.wait() == 7


async def test_a_signal_reaches_the_module(tmp_path: Path) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    process = await LocalProcesses(tmp_path, lifeline=True).start(on_lifeline(tmp_path, code))
    assert await process.lines() == ["up"]
    process.signal(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM


async def test_no_descriptor_stays_after_the_end_nor_after_a_failed_start(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    control = LocalProcesses(tmp_path, lifeline=True)
    for _ in range(3):
        process = await control.start(on_lifeline(tmp_path, "pass"))
        while await process.lines() is not None:
            pass
        await process.wait()
        with pytest.raises(TandemError, match="/nowhere/python cannot be run"):
            await control.start(Command("x", ["/nowhere/python"], ENVIRONMENT))
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_pipe_that_had_ended_before_ends_the_child_alone_where_it_leads_no_group(tmp_path: Path) -> None:
    command = on_lifeline(tmp_path, "import time; time.sleep(600)")
    done = subprocess.run(command.argv, input=b"", env=dict(command.env), timeout=100)
    assert done.returncode == -signal.SIGKILL


def test_without_a_module_it_says_how_to_use_it() -> None:
    argv = [sys.executable, "-m", "tandem.process.lifeline"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, env=ENVIRONMENT)
    assert done.returncode == 2
    assert "usage" in done.stderr
