"""Workers of one node hand KV over by shared memory, those of two nodes over TCP: real processes with one directory,
of which each is told its node."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.apps.cli.router_client import metrics_page
from tests.worlds.processes import Running

pytestmark = pytest.mark.slow
PROVED_S = 60.0


async def paths(client: httpx.AsyncClient, url: str) -> dict[str, str]:
    """How each decode worker gets its KV, once both pairs have been proved."""
    async with asyncio.timeout(PROVED_S):
        while True:
            listed = (await client.get(f"{url}/v1/workers")).json()["data"]
            found = {
                each["id"]: [pair["path"] for pair in each["pairs"]] for each in listed if each["role"] == "decode"
            }
            if len(found) == 2 and all(len(each) == 1 and each[0] for each in found.values()):
                return {name: each[0] for name, each in found.items()}
            await asyncio.sleep(0.1)


async def test_the_node_decides(tmp_path: Path) -> None:
    (tmp_path / "ticket").write_text("6b" * 32 + "\n")
    (tmp_path / "shared").mkdir()
    nodes = {"p0": "node-a", "d0": "node-a", "d1": "node-b"}
    async with AsyncExitStack() as ending:

        async def start(module: str, *flags: str) -> Running:
            running = await Running.start(module, "--ticket_key_file", str(tmp_path / "ticket"), *flags)
            ending.push_async_callback(running.end)
            return running

        workers = dict[str, Running]()
        for name, node in nodes.items():
            workers[name] = await start(
                "prefill_worker" if name == "p0" else "decode_worker",
                *("--worker_id", name, "--model_name", "tiny", "--metrics_bind", "127.0.0.1:0"),
                *("--kv.transports", "shm,tcp", "--kv.shm_directory", str(tmp_path / "shared"), "--kv.node", node),
            )
        for worker in workers.values():
            await worker.until("ready")
        members = [{"address": worker.told["listening.address"]} for worker in workers.values()]
        (tmp_path / "workers").write_text(json.dumps({"workers": members}))
        router = await start(
            "router",
            *("--port", "0", "--workers_file", str(tmp_path / "workers"), "--model_name", "tiny"),
            *("--core.placement.prefer", "disaggregated"),
        )
        await router.until("ready")
        url = f"http://{router.told['listening.address']}"
        async with httpx.AsyncClient(timeout=60.0) as client:
            assert await paths(client, url) == {"d0": "shm", "d1": "tcp"}
            asked: dict[str, Any] = {"model": "tiny", "prompt": "word " * 300, "max_tokens": 4}
            answers = await asyncio.gather(*(client.post(f"{url}/v1/completions", json=asked) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
        for name in ("d0", "d1"):
            page = await metrics_page(workers[name].told["metrics.address"], 10.0) or ""
            assert "tandem_kv_fallbacks_total{" not in page, "another node's memory is passed over, and no failure"
