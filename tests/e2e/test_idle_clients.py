"""Clients that connect and say nothing, more than a router's process has descriptors for."""

import asyncio
import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from router.http_server.connections_max import ConnectionsMax, connections_within
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target
from tandem.process.system import DESCRIPTORS_KEPT
from tests.worlds.processes import START_S, Running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bounds descriptors with ulimit")
DESCRIPTORS = 256
SILENT = 400


async def limited_router(log: Path) -> Running:
    """A router without workers that may have so many descriptors; what it logs goes to a file."""
    flags = "--events --engine simulated --port 0 --metrics_bind 127.0.0.1:0 --workers 127.0.0.1:9"
    script = f"ulimit -n {DESCRIPTORS} && exec {sys.executable} -m router {flags} 2>{log}"
    started = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE)
    running = Running(started)
    await running.until("listening")
    return running


def target_of(running: Running, event: str) -> Target:
    host, _, port = running.told[f"{event}.address"].rpartition(":")
    return Target(host, int(port), False, "")


async def test_silent_clients_hold_up_neither_probes_nor_resets_who_asks(tmp_path: Path) -> None:
    router = await limited_router(tmp_path / "log")
    public, probes = target_of(router, "listening"), target_of(router, "metrics")
    try:
        with ExitStack() as stack:
            for _ in range(SILENT):
                stack.enter_context(closing(socket.create_connection((public.host, public.port), timeout=START_S)))
            for path in ("/health", "/metrics") * 10:
                assert (await send_request(probes, "GET", path, timeout_s=START_S))[0] == 200
            asked = [send_request(public, "GET", "/health", timeout_s=START_S) for _ in range(40)]
            for status, body in await asyncio.gather(*asked):
                assert status == 200 or (status == 503 and b'"queue_full"' in body), "ask raises at resets"
            _, page = await send_request(probes, "GET", "/metrics", timeout_s=START_S)
            assert b"tandem_connections_refused_total 0.0" not in page
        assert "Too many open files" not in (tmp_path / "log").read_text()
    finally:
        await router.end()


def test_the_bounds_of_such_a_process_leave_clients_most() -> None:
    bounds = connections_within(DESCRIPTORS - DESCRIPTORS_KEPT, 8192)
    assert bounds == ConnectionsMax(92, turned=16, probes=8)
