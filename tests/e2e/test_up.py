"""`tandem up` as a person uses it: real processes, simulated engines, signals, crashes, nothing left behind."""

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from tandem.bench.client import Target
from tandem.cli.ask import ask
from tandem.cli.ports import free_port

START_S = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal")


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
        return await ask(self.target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=30)


@asynccontextmanager
async def up(root: Path, *flags: str, port: int | None = None) -> AsyncIterator[Up]:
    """Start the command in a temporary directory of its own, and let nothing of it survive the test."""
    port = free_port("127.0.0.1") if port is None else port
    argv = [sys.executable, "-m", "tandem.cli", "up", "--engine", "simulated", "--port", str(port), *flags]
    environment = {**os.environ, "TMPDIR": str(root), "PYTHONUNBUFFERED": "1"}
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


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


async def gone(processes: Sequence[psutil.Process], within_s: float = 10.0) -> None:
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


async def test_it_serves_explains_and_stops_without_leaving_anything(root: Path) -> None:
    async with up(root, "--prefill", "1", "--decode", "2") as running:
        await running.line(r"demo is served at http://127\.0\.0\.1:\d+/v1")
        await running.line(r"^curl -N http://.*/v1/chat/completions")
        status, body = await running.chat()
        assert status == 200, body
        family = running.family()
        assert len(family) >= 4
        running.process.send_signal(signal.SIGINT)
        assert await running.rest() == 0, running.lines
        assert running.lines[-1] == "stopped"
        await gone(family)
    assert nothing_in(root)


async def test_a_killed_worker_is_told_restarted_and_serves_again(root: Path) -> None:
    async with up(root, "--prefill", "1", "--decode", "1") as running:
        await running.line("is served at")
        victim = next(one for one in running.family() if "decode-0" in one.cmdline())
        victim.kill()
        await running.line(r"decode-0 was killed by signal 9; starting it again in 0\.5 s", 10)
        await running.line("decode-0 is ready")
        await answered(running)
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


async def test_nothing_outlives_a_killed_supervisor(root: Path) -> None:
    async with up(root, "--prefill", "1", "--decode", "1") as running:
        await running.line("is served at")
        family = running.family()
        running.process.kill()
        await running.process.wait()
        await gone(family)


async def test_a_second_interrupt_does_not_wait_for_streams(root: Path) -> None:
    async with up(root, "--prefill", "0", "--decode", "1") as running:
        await running.line("is served at")
        stream = asyncio.create_task(running.chat(max_tokens=3000))
        await streaming(running.target)
        running.process.send_signal(signal.SIGINT)
        await running.line("stopping; running streams may end first", 10)
        running.process.send_signal(signal.SIGINT)
        await running.line("stopping now", 10)
        assert await running.rest(20) == 0
        await asyncio.gather(stream, return_exceptions=True)


async def answered(running: Up) -> None:
    """Ask until the router has found the worker again."""
    async with asyncio.timeout(10):
        while True:
            status, body = await running.chat()
            if status != 503:
                assert status == 200, body
                return
            await asyncio.sleep(0.1)


async def streaming(target: Target) -> None:
    """Wait until a request runs, by the router's own count."""
    async with asyncio.timeout(30):
        while True:
            _, metrics = await ask(target, "GET", "/metrics")
            if re.search(r"^tandem_requests_running [1-9]", metrics.decode(), re.MULTILINE):
                return
            await asyncio.sleep(0.05)


async def test_a_closed_terminal_stops_it_cleanly(root: Path) -> None:
    async with up(root, "--prefill", "0", "--decode", "1") as running:
        await running.line("is served at")
        family = running.family()
        running.process.send_signal(signal.SIGHUP)
        assert await running.rest() == 0
        await gone(family)
    assert nothing_in(root)


async def test_an_interrupt_while_starting_stops_everything(root: Path) -> None:
    async with up(root, "--prefill", "1", "--decode", "1") as running:
        await running.line("is loading|is ready")
        family = running.family()
        running.process.send_signal(signal.SIGINT)
        assert await running.rest() in (0, 130)
        await gone(family)
    assert nothing_in(root)


async def test_a_port_in_use_is_told_before_anything_starts(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        async with up(root, port=port) as running:
            assert await running.rest() == 2
    expected = f"tandem up: port {port} on 127.0.0.1 is in use; choose another with --port"
    assert running.lines == [expected]
    assert nothing_in(root)


async def test_a_bad_model_is_one_clear_sentence(root: Path) -> None:
    async with up(root, "--engine", "torch", "--model", "/nowhere/model") as running:
        assert await running.rest(START_S) == 1
    assert running.lines[-1].startswith("tandem up: ")
    assert "/nowhere/model" in running.lines[-1]
