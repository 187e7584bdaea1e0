"""`tandem up --store`: what the workers computed comes back from the store when all of them, or it, were killed."""

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from tandem.apps.cli.router_client import send_request
from tests.worlds.up_stage import Up, root, up

__all__ = ["root"]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal"),
]
_PROMPT = " ".join(["lantern"] * 300)
_STORE_S = 20.0
_SERVICE = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {{name: demo}}
spec:
  engine: {{type: simulated}}
  pools:
  - {{name: prefill, role: prefill}}
  - {{name: decode, role: decode}}
  store: {{dram: 64Mi, nvme: 64Mi, nvmeDir: {disk}}}
"""


async def told(running: Up) -> tuple[str, dict[str, int]]:
    """The answer to the same prompt, and where its tokens came from."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": 8,
        "temperature": 0,
        "seed": 3,
    }
    status, answer = 503, b""
    async with asyncio.timeout(_STORE_S):
        while status == 503:  # The router has not met the workers that have just come back.
            status, answer = await send_request(
                running.target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=30
            )
            await asyncio.sleep(0.1)
    assert status == 200, answer
    said = msgspec.json.decode(answer)
    usage = said["usage"]["prompt_tokens_details"]
    return said["choices"][0]["message"]["content"], usage["cached_tokens_by_tier"]


def process_of(running: Up, name: str) -> psutil.Process:
    return next(one for one in running.family() if name in one.cmdline())


async def restarted(running: Up, *names: str) -> None:
    """Kill processes and wait until each is ready again."""
    victims = [process_of(running, name) for name in names]
    for victim in victims:
        victim.kill()
    waiting = set(names)
    while waiting:
        found = await running.line(rf"({'|'.join(sorted(waiting))}) is ready")
        waiting.discard(found[1])


async def on_disk(folder: Path, pages: int) -> None:
    """Wait until the store has written so many records."""
    async with asyncio.timeout(_STORE_S):
        while True:
            files = [path.read_bytes() for path in (folder / "kv-store-0").glob("*.kv")]
            if sum(data.count(b"TdKv\x01\x00") for data in files) >= pages:
                return
            await asyncio.sleep(0.2)


async def test_blocks_outlive_every_worker_and_the_store_itself(root: Path) -> None:
    disk, spec = root / "nvme", root / "service.yaml"
    spec.write_text(_SERVICE.format(disk=disk))
    async with up(root, str(spec)) as running:
        await running.line("is served at")
        text, first = await told(running)
        assert first["store"] == 0
        blocks = await stored_blocks(running)
        await on_disk(disk, blocks)

        await restarted(running, "prefill-0", "decode-0")
        again, from_store = await told(running)
        assert again == text
        assert from_store["store"] > 0.8 * 16 * blocks, from_store

        await restarted(running, "kv-store-0")
        await restarted(running, "prefill-0", "decode-0")
        again, from_store = await told(running)
        assert again == text
        assert from_store["store"] > 0.8 * 16 * blocks, from_store
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0, running.lines


async def stored_blocks(running: Up) -> int:
    """Full blocks of the prompt, of 16 tokens each."""
    body = {"model": "demo", "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": 1}
    _, answer = await send_request(
        running.target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=30
    )
    return int(msgspec.json.decode(answer)["usage"]["prompt_tokens"]) // 16
