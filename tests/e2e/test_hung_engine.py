"""A worker whose engine process is stopped, in a platform of real processes: it gets nothing new, everything is
answered as ever, and it takes work again as soon as its engine goes on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tandem.apps.cli.router_client import send_request
from tests.worlds.up_stage import Up, root, up

__all__ = ["root"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

CHANGE_S = 60.0
"""How soon is measured elsewhere (docs/measurements.md); here a busy machine has time."""
COUNT = 6
PROMPT = 300
LONG = 400
ANSWER_S = 25.0
"""Far below the 31 to 42 s that a request would wait for an engine that is not known to be hung."""


@asynccontextmanager
async def hung(running: Up, name: str) -> AsyncIterator[None]:
    """The engine process of this worker is stopped, and the router knows it."""
    engine = engine_process(running, name)
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        await until(running, lambda states: states[name] == "alive")
        yield
        assert engine.is_running()
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    await until(running, lambda states: set(states.values()) == {"ready"})


def engine_process(running: Up, name: str) -> psutil.Process:
    """The process in which a worker's engine computes."""
    children = [child for one in running.family() if name in one.cmdline() for child in one.children()]
    (found,) = [child for child in children if "tandem.engine.torch.child" in child.cmdline()]
    return found


async def until(running: Up, holds: Callable[[dict[str, str]], bool]) -> None:
    """Wait until it holds of the states of the workers, by name."""
    async with asyncio.timeout(CHANGE_S):
        while True:
            _, page = await send_request(running.target, "GET", "/v1/workers")
            if holds({each["id"]: each["state"] for each in msgspec.json.decode(page)["data"]}):
                return
            await asyncio.sleep(0.1)


async def answers(running: Up, salt: str, max_tokens: int = 12) -> tuple[list[str], list[str]]:
    """Ids and texts of some requests at once, each of its own prompt. With a salt of their own they find nothing in
    the caches of those before."""

    async def one(number: int) -> dict[str, Any]:
        body = {
            "model": "demo",
            "prompt": [5 + (37 * number + 11 * at) % 400 for at in range(PROMPT)],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_salt": salt,
        }
        async with asyncio.timeout(ANSWER_S):
            status, page = await send_request(
                running.target, "POST", "/v1/completions", msgspec.json.encode(body), timeout_s=ANSWER_S
            )
        assert status == 200, page
        return dict(msgspec.json.decode(page))

    found = await asyncio.gather(*map(one, range(COUNT)))
    return [each["id"] for each in found], [each["choices"][0]["text"] for each in found]


async def attempted_on(running: Up, request_ids: list[str]) -> set[str]:
    """The workers on which anything of these requests was tried."""
    found = set[str]()
    for request_id in request_ids:
        _, page = await send_request(running.target, "GET", f"/v1/requests/{request_id}")
        attempts = [each["attributes"] for each in msgspec.json.decode(page)["spans"] if each["name"] == "attempt"]
        found |= {each[role] for each in attempts for role in ("prefill", "decode") if each.get(role)}
    return found


async def test_a_hung_engine_gets_nothing_new_until_it_goes_on(root: Path) -> None:
    exact = {"TANDEM_TORCH__DTYPE": "float32"}
    async with up(root, "--engine", "torch", "--prefill", "1", "--decode", "2", settings=exact) as running:
        await running.line("is served at")
        await until(running, lambda states: set(states.values()) == {"ready"})
        _, right = await answers(running, "one")
        _, long = await answers(running, "two", LONG)

        streams = asyncio.create_task(answers(running, "three", LONG))
        await asyncio.sleep(0.5)
        async with hung(running, "decode-1"):
            ids, texts = await answers(running, "four")
            assert texts == right
            assert "decode-1" not in await attempted_on(running, ids)
            assert (await streams)[1] == long
        async with hung(running, "decode-0"):
            # Only the one that was hung before is left to answer.
            ids, texts = await answers(running, "five")
            assert texts == right
            assert "decode-1" in await attempted_on(running, ids)
            assert "decode-0" not in await attempted_on(running, ids)
        async with hung(running, "prefill-0"):
            ids, texts = await answers(running, "six")
            assert texts == right
            assert "prefill-0" not in await attempted_on(running, ids)
        ids, texts = await answers(running, "seven")
        assert texts == right
        assert "prefill-0" in await attempted_on(running, ids)
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


async def test_what_was_just_sent_to_a_hung_engine_is_answered_elsewhere(root: Path) -> None:
    """Requests come at the moment at which the engine stops, before anybody knows."""
    exact = {"TANDEM_TORCH__DTYPE": "float32"}
    async with up(root, "--engine", "torch", "--prefill", "1", "--decode", "2", settings=exact) as running:
        await running.line("is served at")
        await until(running, lambda states: set(states.values()) == {"ready"})
        _, right = await answers(running, "one")
        for name in ("decode-0", "prefill-0"):
            stopped = engine_process(running, name)
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                _, texts = await answers(running, name)
                assert texts == right
            finally:
                os.kill(stopped.pid, signal.SIGCONT)
            await until(running, lambda states: set(states.values()) == {"ready"})
