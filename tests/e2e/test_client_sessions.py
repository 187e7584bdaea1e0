"""Sessions of clients, drawn step by step, against a running `tandem up`: every answer is the undisturbed one."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tandem.apps.chaos.live import parse_metrics, scrape, total
from tests.worlds.up_stage import Up, root, up

__all__ = ["root"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on the parent-death signal")

T = TypeVar("T")
_PROMPTS = 4
_TOKENS = 24
_PATIENCE_S = 60.0
_EVENTS = st.integers(1, 12)
_PROMPT = st.integers(0, _PROMPTS - 1)


class Place:
    """The platform, what each prompt's answer is, and one client's way to ask."""

    def __init__(self, runner: asyncio.Runner, running: Up) -> None:
        self._runner = runner
        self._target = running.target
        self.truth = [self.run(self.ask(prompt)) for prompt in range(_PROMPTS)]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(_PATIENCE_S):
                return await work

        return self._runner.run(bounded())

    async def running_requests(self) -> float:
        return total(parse_metrics(await scrape(self._target.host, self._target.port)), "tandem_requests_running")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._target.host, self._target.port)

    @staticmethod
    def post(prompt: int, *headers: str, **parameters: Any) -> bytes:
        body = {"model": "demo", "prompt": f"{prompt} lanterns " * 30, "max_tokens": _TOKENS, "temperature": 0}
        content = msgspec.json.encode({**body, "ignore_eos": True, **parameters})
        lines = ["POST /v1/completions HTTP/1.1", "host: x", f"content-length: {len(content)}", *headers, "", ""]
        return "\r\n".join(lines).encode() + content

    async def ask(self, prompt: int, *headers: str) -> str:
        reader, writer = await self.connect()
        try:
            writer.write(self.post(prompt, *headers))
            return await whole(reader)
        finally:
            writer.close()


async def whole(reader: asyncio.StreamReader) -> str:
    """The text of the next answer of a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    (length,) = [line[15:] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(length))
    assert head.startswith(b"http/1.1 200"), body
    text: str = msgspec.json.decode(body)["choices"][0]["text"]
    return text


async def events(reader: asyncio.StreamReader, most: int) -> tuple[str, str, str, bool]:
    """Request, last event id, text and whether it ended, of a stream's first `most` events."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert head.startswith("http/1.1 200"), head + (await reader.read(2000)).decode()
    (request,) = [line[14:] for line in head.split("\r\n") if line.startswith("x-request-id:")]
    text, last, ended = "", "", False
    while most and not ended:
        line = (await reader.readline()).decode().strip()
        if line.startswith("id: "):
            last = line[4:]
        elif line == "data: [DONE]":
            ended = True
        elif line.startswith("data: "):
            told = msgspec.json.decode(line[6:])
            assert "error" not in told, told
            text += "".join(choice["text"] for choice in told["choices"])
            most -= 1
            await reader.readline()  # its empty line makes it whole
    return request, last, text, ended


class Session(RuleBasedStateMachine):
    """One client, who does what clients do in any order."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.left: list[tuple[int, str, str, str]] = []
        """Streams that broke: prompt, request, last event, text so far."""
        self.keys = 0

    def judge(self, prompt: int, text: str) -> None:
        assert text == self.place.truth[prompt]

    @rule(prompt=_PROMPT)
    def asks(self, prompt: int) -> None:
        self.judge(prompt, self.place.run(self.place.ask(prompt)))

    @rule(prompt=_PROMPT, other=_PROMPT)
    def asks_twice_on_a_connection(self, prompt: int, other: int) -> None:
        async def both() -> tuple[str, str]:
            reader, writer = await self.place.connect()
            try:
                writer.write(self.place.post(prompt) + self.place.post(other))
                return await whole(reader), await whole(reader)
            finally:
                writer.close()

        first, second = self.place.run(both())
        self.judge(prompt, first)
        self.judge(other, second)

    @rule(prompt=_PROMPT, times=st.integers(1, 3))
    def asks_again_with_a_key(self, prompt: int, times: int) -> None:
        self.keys += 1
        key = f"idempotency-key: {id(self)}-{self.keys}"
        for _ in range(times):
            self.judge(prompt, self.place.run(self.place.ask(prompt, key)))

    @rule(prompt=_PROMPT, most=_EVENTS, resumable=st.booleans())
    def leaves_in_the_middle(self, prompt: int, most: int, resumable: bool) -> None:
        asked = self.place.post(prompt, stream=True, resumable=resumable)
        request, last, text, _ = self.place.run(self._stream(asked, most))
        assert self.place.truth[prompt].startswith(text)
        if resumable:
            self.left.append((prompt, request, last, text))

    @rule(prompt=_PROMPT)
    def hangs_up_at_once(self, prompt: int) -> None:
        async def sent() -> None:
            _, writer = await self.place.connect()
            writer.write(self.place.post(prompt, stream=True))
            await writer.drain()
            writer.transport.abort()

        self.place.run(sent())

    @precondition(lambda self: self.left)
    @rule(most=st.sampled_from((2, 5, 1000)))
    def comes_back(self, most: int) -> None:
        prompt, request, last, before = self.left.pop()
        lines = f"GET /v1/requests/{request}/events HTTP/1.1\r\nhost: x\r\nlast-event-id: {last}\r\n\r\n"
        _, then, rest, ended = self.place.run(self._stream(lines.encode(), most))
        if ended:
            self.judge(prompt, before + rest)
        else:
            assert self.place.truth[prompt].startswith(before + rest)
            self.left.append((prompt, request, then or last, before + rest))

    async def _stream(self, asked: bytes, most: int) -> tuple[str, str, str, bool]:
        reader, writer = await self.place.connect()
        try:
            writer.write(asked)
            return await events(reader, most)
        finally:
            writer.transport.abort()

    def teardown(self) -> None:
        while self.left:
            self.comes_back(1000)

        async def at_rest() -> None:
            while await self.place.running_requests():  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.02)

        self.place.run(at_rest())


def test_sessions_of_clients_end_with_the_answers_they_asked_for(root: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            quick = {"TANDEM_SIMULATED__BASE_S": "0.002"}
            opened = up(root, "--prefill", "1", "--decode", "1", settings=quick)
            running = runner.run(stack.enter_async_context(opened))
            runner.run(running.line("is served at"))
            place = Place(runner, running)
            made: Callable[[], Session] = lambda: Session(place)  # noqa: E731
            bounded = settings(
                max_examples=8,
                stateful_step_count=8,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            run_state_machine_as_test(made, settings=bounded)  # type: ignore[no-untyped-call]
        finally:
            runner.run(stack.aclose())
