"""The file of a running platform is edited: two revisions side by side on one machine, and no request notices."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.worlds.up_stage import Up, root, up

__all__ = ["root"]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal"),
]


def write(path: Path, **spec: Any) -> None:
    """A service of one prefill and one decode worker."""
    pools = [{"name": "p", "role": "prefill", "replicas": 1}, {"name": "d", "role": "decode", "replicas": 1}]
    whole = {"model": {"name": "demo"}, "engine": {"type": "simulated"}, "pools": pools, **spec}
    metadata = {"name": "laptop"}
    service = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": whole}
    path.write_text(yaml.safe_dump(service))


async def ask(client: httpx.AsyncClient, number: int) -> str:
    body = {"model": "demo", "prompt": f"story number {number} " * 20, "seed": number, "max_tokens": 60}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def workers(client: httpx.AsyncClient) -> dict[str, str]:
    """Revisions by worker."""
    found = (await client.get("/v1/workers")).json()["data"]
    return {each["id"]: each["revision"] for each in found}


async def carried_out(running: Up) -> None:
    await running.line(r"the edited file (is|could not be) carried out", within_s=90)
    assert running.lines[-1] == "the edited file is carried out", "\n".join(running.lines)


async def test_an_edit_rolls_over_under_load_without_a_failed_request(root: Path) -> None:
    path = root / "service.yaml"
    write(path)
    async with up(root, str(path)) as running:
        await running.line("is served at")
        url = f"http://127.0.0.1:{running.target.port}"
        async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
            before = await workers(client)
            assert len(set(before.values())) == 1
            texts: Counter[tuple[int, str]] = Counter()
            stop = asyncio.Event()

            async def keep_asking(lane: int) -> None:
                turn = 0
                while not stop.is_set():
                    number = lane * 3 + turn % 3
                    texts[number, await ask(client, number)] += 1
                    turn += 1

            lanes = [asyncio.create_task(keep_asking(lane)) for lane in range(3)]
            async with asyncio.timeout(100.0):
                while not texts:  # noqa: ASYNC110  (other processes answer)
                    await asyncio.sleep(0.02)
            write(path, tiers={"dram": "64Mi"})
            await carried_out(running)
            stop.set()
            await asyncio.gather(*lanes)
            after = await workers(client)
            assert set(after) == {"p-1", "d-1"}
            assert len(set(after.values())) == 1
            assert not set(after.values()) & set(before.values())
            counted = {each["revision"]: each for each in (await client.get("/v1/revisions")).json()["data"]}
            assert set(counted) == {*before.values(), *after.values()}
            assert all(each["requests"] > 0 and each["errors"] == 0 for each in counted.values())
            assert len({number for number, _ in texts}) == len(texts), "a request's text is always the same"


async def test_numbers_change_without_a_new_revision_and_what_cannot_change_is_said(root: Path) -> None:
    path = root / "service.yaml"
    write(path)
    async with up(root, str(path)) as running:
        await running.line("is served at")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.target.port}", timeout=60.0) as client:
            before = await workers(client)
            path.write_text("spec: [")
            await running.line(r"the edited file is not carried out: .* is not YAML", within_s=20)
            write(path, redis="redis://127.0.0.1:1")
            await running.line(
                "the edited file is not carried out: spec.redis cannot change while it runs", within_s=20
            )
            pools = [
                {"name": "p", "role": "prefill", "replicas": 1},
                {"name": "d", "role": "decode", "replicas": 2},
            ]
            write(path, pools=pools)
            await carried_out(running)
            after = await workers(client)
            assert set(after) == {"p-0", "d-0", "d-1"}
            assert set(after.values()) == set(before.values())


async def test_aliases_are_served_from_the_start_and_when_they_are_edited(root: Path) -> None:
    path = root / "service.yaml"
    write(path, model={"name": "demo", "aliases": ["first"]})
    async with up(root, str(path)) as running:
        await running.line("is served at")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.target.port}", timeout=60.0) as client:
            before = await workers(client)
            assert await names(client) == ["demo", "first"]
            answer = await client.post("/v1/completions", json={"model": "first", "prompt": "hi", "max_tokens": 2})
            assert (answer.status_code, answer.json()["model"]) == (200, "first")
            write(path, model={"name": "demo", "aliases": ["second"]})
            await carried_out(running)
            async with asyncio.timeout(100.0):
                while await names(client) != ["demo", "second"]:  # noqa: ASYNC110  (another process tells nobody)
                    await asyncio.sleep(0.1)
            assert await workers(client) == before


async def names(client: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await client.get("/v1/models")).json()["data"]]
