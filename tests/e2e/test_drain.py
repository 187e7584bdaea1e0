"""Workers leave a running platform and nobody notices: real processes, simulated engines, the official client."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tandem.apps.cli.change_summary import sentences
from tandem.apps.cli.control import ControlRequest
from tandem.apps.cli.control_client import request_change
from tandem.apps.cli.registry import PlatformEntry, find
from tests.worlds.up_stage import Up, environment_in, nothing_in, root, up

__all__ = ["root"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and relies on the parent-death signal")
SHORT, LONG = 60, 1600
"""Tokens of an answer: some 0.3 s and some 8 s, so that a busy client hears of all before the first has ended."""


@dataclass
class Heard:
    """A stream as a client saw it. Times are seconds."""

    text: str = ""
    finish: str = ""
    longest_pause_s: float = 0.0


class Asking:
    """Streams of one platform, each with its own prompt and seed, so that its text is always the same."""

    def __init__(self, running: Up) -> None:
        self.url = f"http://127.0.0.1:{running.target.port}"
        self._api = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=60.0)
        self.begun = 0
        """Streams that have brought something."""

    async def stream(self, number: int, tokens: int) -> Heard:
        heard, at = Heard(), time.monotonic()
        chunks = await self._api.completions.create(
            model="demo", prompt=f"story number {number} " * 20, seed=number, max_tokens=tokens, stream=True
        )
        async for chunk in chunks:
            self.begun += not heard.text
            heard.longest_pause_s, at = max(heard.longest_pause_s, time.monotonic() - at), time.monotonic()
            heard.text += chunk.choices[0].text
            heard.finish = chunk.choices[0].finish_reason or ""
        return heard

    async def streams(self, lengths: Sequence[int]) -> list[Heard]:
        return await asyncio.gather(*(self.stream(number, tokens) for number, tokens in enumerate(lengths)))

    async def all_begun(self, count: int) -> None:
        async with asyncio.timeout(100):
            while self.begun < count:  # noqa: ASYNC110  (what is waited for happens in other processes)
                await asyncio.sleep(0.01)

    def platform(self, root: Path) -> PlatformEntry:
        return find(self.url, environment_in(root))


async def tandem(root: Path, *arguments: str) -> tuple[int, str]:
    """Run a command; its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tandem.apps.cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment_in(root),
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


def same(heard: Sequence[Heard], wanted: Sequence[Heard]) -> bool:
    return [(each.text, each.finish) for each in heard] == [(each.text, each.finish) for each in wanted]


async def test_scaling_down_and_up_under_load_breaks_no_stream(root: Path) -> None:
    lengths = [SHORT, LONG] * 6
    async with up(root, "--prefill", "1", "--decode", "2") as running:
        await running.line("is served at")
        asking = Asking(running)
        wanted = await asking.streams(lengths)
        asking.begun = 0
        streams = asyncio.create_task(asking.streams(lengths))
        await asking.all_begun(len(lengths))
        # Time enough for all of them to move, a few at once, and too little to end.
        said: list[str] = []
        change = await request_change(
            asking.platform(root), ControlRequest(scale={"decode": 1}, within_s=3.0), said.append
        )
        printed = "\n".join((*said, *sentences(change)))
        assert "decode-1 left after" in printed
        assert "went on on another worker" in printed, printed
        assert "cut off" not in printed
        assert [member.name for member in asking.platform(root).members] == ["router", "prefill-0", "decode-0"]
        heard = await streams
        assert same(heard, wanted)
        assert {each.finish for each in heard} == {"length"}

        status, printed = await tandem(root, "scale", "decode=2", "prefill=2", "--url", asking.url)
        assert status == 0, printed
        entry = asking.platform(root)
        assert {(member.name, member.state) for member in entry.members[1:]} == {
            ("prefill-0", "ready"),
            ("prefill-1", "ready"),
            ("decode-0", "ready"),
            ("decode-1", "ready"),
        }
        assert same(await asking.streams(lengths[:4]), wanted[:4])
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0
    assert nothing_in(root)


async def test_a_prefill_worker_leaves_after_its_exports_were_fetched(root: Path) -> None:
    async with up(root, "--prefill", "2", "--decode", "1", "--plain") as running:
        await running.line("is served at")
        asking = Asking(running)
        lengths = [8] * 40
        wanted = await asking.streams(lengths)
        streams = asyncio.create_task(asking.streams(lengths))
        status, printed = await tandem(root, "drain", "prefill-0", "--within", "10", "--url", asking.url)
        assert status == 0, printed
        assert "cut off" not in printed
        assert same(await streams, wanted)
        await running.line("prefill-0 has drained; starting it again")
        await running.line("prefill-0 is ready")
        assert same(await asking.streams(lengths[:4]), wanted[:4])


async def test_a_second_signal_hurries_and_the_stream_goes_on_in_the_next_life(root: Path) -> None:
    async with up(root, "--prefill", "0", "--decode", "1", "--plain") as running:
        await running.line("is served at")
        asking = Asking(running)
        wanted = await asking.stream(1, LONG)
        asking.begun = 0
        stream = asyncio.create_task(asking.stream(1, LONG))
        await asking.all_begun(1)
        pid = asking.platform(root).member("decode-0").pid
        assert pid is not None
        worker = psutil.Process(pid)
        os.kill(pid, signal.SIGTERM)
        await until_state(asking, root, "decode-0", "draining")
        assert worker.is_running()
        os.kill(pid, signal.SIGTERM)
        await running.line("decode-0 exited with status 0; starting it again", 10)
        assert same([await stream], [wanted])


async def test_stopping_lets_streams_end_and_ends_the_rest_with_a_typed_error(root: Path) -> None:
    bound = {"TANDEM_CORE__DEADLINES__DRAIN_S": "5", "TANDEM_DEADLINES__DRAIN_S": "5"}
    async with up(root, "--prefill", "1", "--decode", "1", settings=bound) as running:
        await running.line("is served at")
        asking = Asking(running)
        wanted = await asking.stream(0, SHORT)
        asking.begun = 0
        short, long = (asyncio.create_task(asking.stream(0, tokens)) for tokens in (SHORT, 4000))
        await asking.all_begun(2)
        running.process.send_signal(signal.SIGTERM)
        refused = await until_refused(asking.url)
        assert refused.json()["error"]["code"] == "draining"
        assert float(refused.headers["Retry-After"]) > 0
        assert same([await short], [wanted])
        with pytest.raises(openai.APIError) as ended:
            await long
        assert ended.value.code == "draining"
        assert await running.rest() == 0
    assert nothing_in(root)


async def until_refused(url: str) -> httpx.Response:
    """Ask until the router refuses."""
    async with httpx.AsyncClient() as client, asyncio.timeout(60):
        while True:
            answer = await client.post(
                f"{url}/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 1}
            )
            if answer.status_code == 503:
                return answer
            await asyncio.sleep(0.01)


async def test_what_cannot_be_is_refused_in_a_sentence(root: Path) -> None:
    async with up(root, "--prefill", "0", "--decode", "1") as running:
        await running.line("is served at")
        asking = Asking(running)
        for arguments, sentence in (
            (("scale", "decode=0"), "no worker would be left that can decode"),
            (("scale", "encode=2"), "there is no pool 'encode'; there are decode"),
            (("drain", "decode-7"), "there is no worker 'decode-7'; there are decode-0"),
            (("drain", "decode-0", "--within", "-1"), "within_s is -1, not between 0 and 3600"),
            (("drain", "decode-0", "--remove"), "no worker would be left that can decode"),
        ):
            status, printed = await tandem(root, *arguments, "--url", asking.url)
            assert status in (1, 2)
            assert sentence in printed
        control = asking.platform(root).control
        assert os.stat(control).st_mode & 0o777 == 0o600
        for line in (b"hello\n", b'{"scale": 3}\n', b"{}\n", b'{"describe": true, "x": 1}\n', b"[" * 100_000 + b"\n"):
            assert (await said(control, line))["error"]["code"] == "bad_setting"
        described = await said(control, b'{"describe": true}\n')
        assert [member["name"] for member in described["platform"]["members"]] == ["router", "decode-0"]
        status, printed = await tandem(root, "drain", "decode-0", "--url", "http://127.0.0.1:1")
        assert status == 1
        assert "start one with `tandem up --port 1`" in printed


async def until_state(asking: Asking, root: Path, name: str, state: str) -> None:
    async with asyncio.timeout(100):
        while asking.platform(root).member(name).state != state:  # noqa: ASYNC110  (of another process)
            await asyncio.sleep(0.02)


async def said(control: str, line: bytes) -> dict[str, Any]:
    """What the control socket answers to a line."""
    reader, writer = await asyncio.open_unix_connection(control, limit=1 << 20)
    writer.write(line)
    async with asyncio.timeout(100):
        answer: dict[str, Any] = json.loads(await reader.readline())
    writer.close()
    return answer
