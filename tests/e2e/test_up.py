"""`tandem up` as a person uses it: real processes, simulated engines, signals, crashes, nothing left behind."""

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target
from tests.worlds.up_stage import START_S, Up, gone, nothing_in, root, up

__all__ = ["root"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal")


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
    async with asyncio.timeout(100):
        while True:
            status, body = await running.chat()
            if status != 503:
                assert status == 200, body
                return
            await asyncio.sleep(0.1)


async def streaming(target: Target) -> None:
    """Wait until a request runs, by the router's own count."""
    async with asyncio.timeout(100):
        while True:
            _, metrics = await send_request(target, "GET", "/metrics")
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
