"""Ready means proved, on real processes: the first request is handed off, broken transports and states are told."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.apps.cli.router_client import send_request
from tests.worlds.up_stage import Up, environment_in, root, up

__all__ = ["root"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal")

HAND_OFF = {"TANDEM_CORE__PLACEMENT__PREFER": "disaggregated"}
"""Whatever it costs: then only a pair that has not been proved keeps a prompt from being handed off."""
NOBODY = "127.0.0.2"
"""A loopback address on which nothing of ours listens."""


async def get(running: Up, path: str) -> Any:
    status, body = await send_request(running.target, "GET", path)
    assert status == 200, body
    return msgspec.json.decode(body)


async def workers(running: Up) -> dict[str, dict[str, Any]]:
    return {worker["id"]: worker for worker in (await get(running, "/v1/workers"))["data"]}


async def first_answer(running: Up) -> dict[str, Any]:
    """Ask once; gives the attributes of where the request was placed and how its blocks came."""
    status, body = await running.chat()
    assert status == 200, body
    request_id = msgspec.json.decode(body)["id"]
    async with asyncio.timeout(100):
        while True:
            status, body = await send_request(running.target, "GET", f"/v1/requests/{request_id}")
            spans = msgspec.json.decode(body).get("spans") if status == 200 else None
            if spans:
                break
            await asyncio.sleep(0.05)
    of = {span["name"]: span["attributes"] for span in spans}
    path = of["kv.pull"]["path"] if "kv.pull" in of else ""
    return {"mode": of["place"]["mode"], "path": path, "place": of["place"]}


async def test_the_first_request_is_handed_off_and_workers_and_pairs_can_be_seen(root: Path) -> None:
    async with up(root, "--prefill", "1", "--decode", "2", settings=HAND_OFF) as running:
        await running.line("is served at")
        answer = await first_answer(running)
        assert (answer["mode"], answer["path"], answer["place"]["path"]) == ("disaggregated", "shm", "shm")
        listed = await workers(running)
        assert {name: (worker["role"], worker["state"], worker["canary"]) for name, worker in listed.items()} == {
            "prefill-0": ("prefill", "ready", "self"),
            "decode-0": ("decode", "ready", "self"),
            "decode-1": ("decode", "ready", "self"),
        }
        assert listed["prefill-0"]["transports"] == ["shm", "tcp"]
        await paired(running, "prefill-0", "decode-0", "decode-1")
        decode = next(one for one in running.family() if "decode-0" in one.cmdline())
        decode.send_signal(signal.SIGSTOP)
        try:
            await seen(running, "decode-0", "fenced")
            other = await first_answer(running)
            assert other["place"]["decode"] == "decode-1"
        finally:
            decode.send_signal(signal.SIGCONT)
        epoch = listed["decode-0"]["epoch"]
        again = await seen(running, "decode-0", "ready")
        assert again["epoch"] != epoch
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


async def paired(running: Up, prefill: str, *decodes: str) -> None:
    """Wait until canaries have gone from a prefill worker to all of these: one of them is enough to be served."""
    async with asyncio.timeout(100):
        while True:
            pairs = {
                pair["worker"]: (pair["state"], pair["path"]) for pair in (await workers(running))[prefill]["pairs"]
            }
            if pairs == dict.fromkeys(decodes, ("closed", "shm")):
                return
            await asyncio.sleep(0.05)


async def seen(running: Up, worker: str, state: str, within_s: float = 60.0) -> dict[str, Any]:
    """Wait until a worker is listed in a state."""
    async with asyncio.timeout(within_s):
        while True:
            listed = (await workers(running)).get(worker)
            if listed is not None and listed["state"] == state:
                return listed
            await asyncio.sleep(0.05)


async def test_a_worker_whose_tcp_address_nobody_reaches_does_without_it(root: Path) -> None:
    broken = {"TANDEM_KV__ADVERTISE": NOBODY, **HAND_OFF}
    async with up(root, "--prefill", "1", "--decode", "1", settings=broken) as running:
        await running.line("is served at")
        prefill = (await workers(running))["prefill-0"]
        assert prefill["transports"] == ["shm"]
        (problem,) = prefill["problems"]
        assert problem.startswith(f"tcp: transfer_failed: cannot reach tcp://{NOBODY}:")
        assert (await first_answer(running))["path"] == "shm"
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


async def test_a_worker_without_any_working_transport_does_not_start_and_says_why(root: Path) -> None:
    key = root / "key"
    key.write_text(os.urandom(32).hex())
    argv = [sys.executable, "-m", "prefill_worker", "--events", "--engine", "simulated", "--kv.transports", "tcp"]
    argv += ["--kv.advertise", NOBODY, "--ticket_key_file", str(key)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment_in(root)
    )
    try:
        out, _err = await asyncio.wait_for(process.communicate(), 100)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1
    told = [msgspec.json.decode(line) for line in out.splitlines()]
    assert "alive" in [line["event"] for line in told]
    assert "ready" not in [line["event"] for line in told]
    failed = next(line for line in told if line["event"] == "failed")
    assert failed["code"] == "transfer_failed"
    assert f"tcp: transfer_failed: cannot reach tcp://{NOBODY}:" in failed["message"]
