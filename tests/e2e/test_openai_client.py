"""The official OpenAI client works unmodified against the real server."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from router.api.auth import load_keys
from router.api.settings import ApiSettings
from router.generation import Generation, Sink, Usage
from router.http_server.response_writer import ResponseWriterLimits
from tandem.core.errors import TandemError
from tests.worlds.front_server import Served, serving
from tests.worlds.front_stage import CONTEXT, MODEL, Script, silent
from tests.worlds.outputs import said

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def client(served: Served, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, max_retries=0, timeout=100.0
    )


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Script()) as running:
        yield running


async def eventually(met: Callable[[], object]) -> None:
    async with asyncio.timeout(100.0):
        while not met():  # noqa: ASYNC110  (the other side is another event loop's socket)
            await asyncio.sleep(0.01)


async def test_chat(served: Served) -> None:
    async with client(served) as api:
        answer = await api.chat.completions.create(model=MODEL, messages=HI, n=2, seed=5, max_tokens=4)
        assert [choice.message.content for choice in answer.choices] == ["Hello 0", "Hello 1"]
        assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 1
        assert answer._request_id == answer.id


async def test_chat_logprobs(served: Served) -> None:
    async with client(served) as api:
        answer = await api.chat.completions.create(
            model=MODEL,
            messages=HI,
            logprobs=True,
            top_logprobs=3,
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [len(token.top_logprobs) for token in logprobs.content] == [3, 3]
        assert logprobs.content[0].bytes == [72]


async def test_chat_stream(served: Served) -> None:
    async with client(served) as api:
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello 0"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 21


async def test_the_accumulating_stream_helper() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (1,), "Hello"))
        sink.output(said(0, 2, (2,), " 0", (), "stop"))
        sink.done(Usage(19, 2, 0))

    async with serving(Script(play)) as served, client(served) as api:
        async with api.chat.completions.stream(model=MODEL, messages=HI) as stream:
            async for _ in stream:
                pass
        final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello 0"


async def test_completions(served: Served) -> None:
    async with client(served) as api:
        answer = await api.completions.create(model=MODEL, prompt=["a", "b"], n=2, logprobs=1)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.tokens == ["H", "0"]
        stream = await api.completions.create(model=MODEL, prompt=[1, 2], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello 0"


async def test_models(served: Served) -> None:
    async with client(served) as api:
        assert [model.id async for model in api.models.list()] == [MODEL]
        assert (await api.models.retrieve(MODEL)).owned_by == "tandem"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other")


async def test_bad_requests_are_typed(served: Served) -> None:
    async with client(served) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(model=MODEL, messages=HI, temperature=9)
        assert (refused.value.param, refused.value.code) == ("temperature", "invalid_request")
        with pytest.raises(openai.BadRequestError) as refused:
            await api.completions.create(model=MODEL, prompt="x", best_of=3)
        assert (refused.value.param, refused.value.code) == ("best_of", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as refused:
            await api.completions.create(model=MODEL, prompt="x" * CONTEXT)
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as missing:
            await api.chat.completions.create(model="other", messages=HI)
        assert missing.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("over_quota", openai.RateLimitError),
        ("queue_full", openai.InternalServerError),
        ("deadline_exceeded", openai.InternalServerError),
    ],
)
async def test_refusals_are_typed(code: str, kind: type[openai.APIStatusError]) -> None:
    async with (
        serving(Script(refusal=TandemError(code, "not now", retry_after_s=4))) as served,
        client(served) as api,
    ):
        with pytest.raises(kind) as refused:
            await api.chat.completions.create(model=MODEL, messages=HI)
        assert refused.value.code == code
        assert (refused.value.response.headers.get("retry-after") == "4") == (code != "deadline_exceeded")


async def test_the_client_retries_what_can_be_retried() -> None:
    class Once(Script):
        refused = False

        def start(self, generation: Generation, sink: Sink):  # type: ignore[no-untyped-def]
            if not self.refused:
                self.refused = True
                raise TandemError("queue_full", "full", retry_after_s=0.1)
            return super().start(generation, sink)

    async with serving(Once()) as served, client(served).with_options(max_retries=1) as api:
        assert (await api.chat.completions.create(model=MODEL, messages=HI)).choices


async def test_keys_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a", "sk-c": {"tenant": "c", "models": ["z"]}}}'
    )
    async with serving(Script(), keys=load_keys(path)) as served:
        async with client(served, "sk-a") as api:
            assert (await api.chat.completions.create(model=MODEL, messages=HI)).choices
        async with client(served, "sk-b") as api:
            with pytest.raises(openai.AuthenticationError):
                await api.models.list()
        async with client(served, "sk-c") as api:
            with pytest.raises(openai.PermissionDeniedError):
                await api.chat.completions.create(model=MODEL, messages=HI)


async def test_an_error_in_mid_stream_raises_in_the_client() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (1,), "word"))
        sink.failed(TandemError("worker_lost", "both are gone"))

    async with serving(Script(play)) as served, client(served) as api:
        stream = await api.chat.completions.create(model=MODEL, messages=HI, stream=True)
        texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        assert texts == ["", "word"]
        with pytest.raises(openai.APIError, match="both are gone"):
            await anext(stream)


async def test_closing_a_stream_cancels_the_request() -> None:
    async with serving(Script(silent)) as served, client(served) as api:

        async def read_one() -> None:
            stream = await api.chat.completions.create(model=MODEL, messages=HI, stream=True)
            await anext(stream)
            await stream.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(read_one())
            await eventually(lambda: served.script.started)
            served.script.only.sink.output(said(0, 1, (1,), "word"))
        await eventually(lambda: served.script.only.cancelled)
        assert served.door.open_requests == 0


async def test_a_body_over_the_limit_is_seen_as_413_even_while_it_is_being_sent() -> None:
    async with serving(Script(), settings=ApiSettings(body_bytes_max=10_000)) as served:
        url = f"http://127.0.0.1:{served.port}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=100.0) as http:
            refused = await http.post(url, content=b"x" * 5_000_000)
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(500):
                    yield b"x" * 10_000

            refused = await http.post(url, content=pieces())
            assert refused.status_code == 413


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_served() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=100_000, stall_s=0.3, farewell_s=0.2))
    async with serving(Script(silent), settings=settings) as served:
        body = f'{{"model": "{MODEL}", "prompt": "x", "stream": true}}'.encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port)) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.sendall(head + body)
            await eventually(lambda: served.script.started)
            sink = served.script.only.sink
            for position in range(1, 4000):
                sink.output(said(0, position, (1,), "word" * 1000))
            await eventually(lambda: served.script.only.cancelled)
            assert served.script.only.cancelled == "slow_client"
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"http://127.0.0.1:{served.port}/health")).status_code == 200
            lazy.settimeout(10.0)
            end = await asyncio.to_thread(_drain, lazy)
            assert b"slow_client" in end or not end.endswith(b"0\r\n\r\n"), "it ended as if complete"


def _drain(connection: socket.socket) -> bytes:
    """The last bytes that arrive before the end, however it comes."""
    last = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            last = (last + piece)[-1000:]
    return last


async def test_a_port_in_use_is_one_clear_sentence() -> None:
    async with serving(Script()) as other:
        flags = ("--host=127.0.0.1", f"--port={other.port}", "--workers=127.0.0.1:9")
        router = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(60.0):
            said, _ = await router.communicate()
    assert router.returncode == 1
    assert f"bad_setting: cannot listen on 127.0.0.1:{other.port}" in said.decode()
