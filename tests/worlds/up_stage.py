"""`tandem up` as a process under test: started in a directory of its own, read line by line, ended in any case."""

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from tandem.apps.cli.ports import free_port
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target

START_S = 60.0


class Up:
    """A running `tandem up` and everything it has printed."""

    def __init__(self, process: asyncio.subprocess.Process, target: Target) -> None:
        self.process = process
        self.target = target
        self.lines: list[str] = []

    async def line(self, pattern: str, within_s: float = START_S) -> "re.Match[str]":
        """The first line from now on that matches."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while raw := await self.process.stdout.readline():
                self.lines.append(raw.decode().rstrip())
                found = re.search(pattern, self.lines[-1])
                if found:
                    return found
        raise AssertionError(f"no line matches {pattern!r}:\n" + "\n".join(self.lines))

    async def rest(self, within_s: float = 30.0) -> int:
        """Read to the end; gives the exit status."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()

    def family(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    async def chat(self, words: int = 80, max_tokens: int = 8) -> tuple[int, bytes]:
        content = " ".join(["lantern"] * words)
        body = {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
        return await send_request(
            self.target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=30
        )


@asynccontextmanager
async def up(
    root: Path, *flags: str, port: int | None = None, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Up]:
    """Start the command in a temporary directory of its own, and let nothing of it survive the test. `settings` are
    environment variables for all its processes."""
    port = free_port("127.0.0.1") if port is None else port
    chosen = "--engine" in flags or (flags[:1] and flags[0].endswith(".yaml"))
    engine = () if chosen else ("--engine", "simulated")
    argv = [sys.executable, "-m", "tandem.apps.cli", "up", *flags, *engine, "--port", str(port)]
    environment = environment_in(root, settings)
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment
    )
    running = Up(process, Target("127.0.0.1", port, False, ""))
    try:
        yield running
    finally:
        left = running.family() if process.returncode is None else []
        if process.returncode is None:
            process.kill()
            await process.wait()
        for one in left:
            if one.is_running():
                one.kill()


def environment_in(root: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of processes whose run directories and registry are in `root`."""
    ours = {"TMPDIR": str(root), "XDG_RUNTIME_DIR": "", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **ours, **(settings or {})}


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


async def gone(processes: Sequence[psutil.Process], within_s: float = 60.0) -> None:
    """Wait until none of the processes runs."""
    async with asyncio.timeout(within_s):
        while True:
            if not alive(processes):
                return
            await asyncio.sleep(0.02)


@pytest.fixture
def root() -> Iterator[Path]:
    """A place for run directories with a short path, as Unix sockets need one."""
    path = Path(tempfile.mkdtemp(prefix="up-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def nothing_in(path: Path) -> bool:
    return not list(path.iterdir())
