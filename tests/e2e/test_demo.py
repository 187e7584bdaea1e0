"""`tandem demo` with the real engine: the answer, the timeline and the verdict, in bounded time."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts on the parent-death signal")


async def demo(root: Path, *flags: str) -> tuple[int, str]:
    """Exit status and everything printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tandem.apps.cli", "demo", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(root)},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 100)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.fixture
def root() -> Iterator[Path]:
    """A place for run directories with a short path, as Unix sockets need one."""
    path = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def nothing_in(path: Path) -> bool:
    return not list(path.iterdir())


@pytest.mark.parametrize("engine", ["torch", "simulated"])
async def test_the_demo_shows_a_whole_handoff(root: Path, engine: str) -> None:
    status, output = await demo(root, "--engine", engine)
    assert status == 0, output
    lines = output.splitlines()
    assert lines[-1].startswith("demo: OK: prefill → transfer → decode")
    for part in (
        "prefill-0",
        "decode-0",
        "kv.pull",
        "transfer   ",
        "computed none of the prompt",
        "placement  disagg",
    ):
        assert part in output, part
    assert nothing_in(root)


async def test_a_demo_that_cannot_start_says_why_in_its_last_line(root: Path) -> None:
    status, output = await demo(root, "--model", "/nowhere/model")
    assert status == 1
    last = output.splitlines()[-1]
    assert last.startswith("tandem demo: ")
    assert "/nowhere/model" in last
