"""`tandem drill` against a `tandem up` of real processes: what it strikes, what it says, and what it leaves."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.apps.cli.ports import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

_UP_S = 60.0
_DRILL_S = 90.0


@pytest.fixture
def root() -> Iterator[Path]:
    """A place for run directories with a short path, as Unix sockets need one."""
    path = Path(tempfile.mkdtemp(prefix="drill-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def environment(root: Path) -> dict[str, str]:
    own = {"TMPDIR": str(root), "XDG_RUNTIME_DIR": str(root), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


@asynccontextmanager
async def up(root: Path, *flags: str) -> AsyncIterator[str]:
    """A platform with simulated engines; gives its URL once everything is ready."""
    port = free_port("127.0.0.1")
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tandem.apps.cli",
            "up",
            "--engine",
            "simulated",
            "--port",
            str(port),
            "--plain",
            *flags,
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(root),
    )
    try:
        await said(process, b"curl -N")
        reading = asyncio.ensure_future(drained(process))
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60.0) == 0
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(_UP_S):
        while line := await process.stdout.readline():
            lines.append(line)
            if text in line:
                return
    raise AssertionError(b"".join(lines).decode())


async def drained(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65536):
        pass


async def drill(root: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and everything printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tandem.apps.cli", "drill", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(root),
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _DRILL_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_platform_passes_drills_and_says_with_which_figures(root: Path) -> None:
    results = root / "drills.json"
    async with up(root, "--prefill", "1", "--decode", "2", "--drills") as url:
        where = ("--url", url, "--streams", "4", "--abusers", "3", "--rounds", "1", "--json", str(results))
        status, output = await drill(root, "corrupt-kv", "--during", "transfer", "decode", *where)
        assert status == 0, output
        report: dict[str, Any] = msgspec.json.decode(results.read_bytes())
        assert [each["stage"] for each in report["rounds"]] == ["transfer", "decode"]
        for each in report["rounds"]:
            assert each["victim"].startswith("decode-")
            assert each["requests"] >= 4
            assert each["misuses"] >= 3
            assert each["recovery_s"] is not None
            assert each["problems"] == []
        table = [line for line in output.splitlines() if line.startswith("| corrupt-kv")]
        assert len(table) == 2, output
        assert all("pass" in line for line in table)


async def test_what_cannot_be_drilled_is_refused_with_the_cure(root: Path) -> None:
    status, output = await drill(root, "kill-decode", "--url", f"http://127.0.0.1:{free_port('127.0.0.1')}")
    assert status == 1, output
    assert "no `tandem up` of this user serves" in output
    async with up(root, "--prefill", "0", "--decode", "1") as url:
        status, output = await drill(root, "corrupt-kv", "--during", "decode", "--url", url)
        assert status == 2, output
        assert "tandem up --drills" in output
        status, output = await drill(root, "kill-prefill", "--during", "decode", "--url", url)
        assert status == 2, output
        assert "prefill worker" in output
