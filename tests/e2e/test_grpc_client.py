"""A generated gRPC client: the REST interface's semantics as typed streams, every refusal as status and detail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as stubs
from router.api.auth import Keys, load_keys
from router.api.settings import ApiSettings
from router.generation import Generation, Sink, Usage
from router.http_server.response_writer import ResponseWriterLimits
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tests.worlds.front_server import Served, serving
from tests.worlds.front_stage import CONTEXT, MODEL, Script, silent
from tests.worlds.outputs import said


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Script()) as running:
        yield running


async def eventually(met: Callable[[], object]) -> None:
    async with asyncio.timeout(60.0):
        while not met():  # noqa: ASYNC110  (the other side is another thread's socket)
            await asyncio.sleep(0.01)


def stub(channel: grpc.aio.Channel) -> Any:
    return stubs.InferenceStub(channel)  # type: ignore[no-untyped-call]


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"model": MODEL, "text": "hi", **fields})


async def generate(served: Served, asked: pb.GenerateRequest, **metadata: str) -> list[pb.GenerateChunk]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        call = stub(channel).Generate(asked, metadata=tuple(metadata.items()), timeout=100)
        return [chunk async for chunk in call]


async def refusal(served: Served, asked: pb.GenerateRequest, **metadata: str) -> tuple[grpc.StatusCode, pb.Error]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await generate(served, asked, **metadata)
    trailing: Any = failed.value.trailing_metadata()
    error = pb.Error.FromString(dict(trailing)["tandem-error-bin"])
    assert failed.value.details() == error.message
    return failed.value.code(), error


async def test_connections_above_the_bound_are_closed_and_calls_go_on() -> None:
    async with serving(Script(), settings=ApiSettings(grpc_connections_max=2)) as served:
        where = "127.0.0.1", served.grpc_port
        async with grpc.aio.insecure_channel(f"{where[0]}:{where[1]}") as channel:
            listed = stub(channel).ListModels
            assert [model.id for model in (await listed(pb.ListModelsRequest(), timeout=100)).models] == [MODEL]
            silent_one = await asyncio.open_connection(*where)
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*where)
                async with asyncio.timeout(100.0):
                    assert await reader.read() == b"", "nothing is said to a connection that is too many"
                writer.close()
            async with asyncio.timeout(100.0):
                assert await silent_one[0].read(1) != b"", "one that fits is greeted"
            assert len((await listed(pb.ListModelsRequest(), timeout=100)).models) == 1
            silent_one[1].close()
        async with grpc.aio.insecure_channel(f"{where[0]}:{where[1]}") as channel:
            again = stub(channel).ListModels(pb.ListModelsRequest(), timeout=20, wait_for_ready=True)
            assert len((await again).models) == 1, "places are given back"


async def test_text_is_continued(served: Served) -> None:
    *chunks, last = await generate(served, request(parameters=pb.Parameters(max_tokens=7, seed=3)))
    assert "".join(chunk.text for chunk in chunks) == "Hello 0"
    assert [list(chunk.tokens) for chunk in chunks] == [[72], [48]]
    assert [chunk.finish_reason for chunk in chunks] == ["", "length"]
    assert last.usage == pb.Usage(prompt_tokens=2, completion_tokens=2, cached_tokens=1)
    assert not last.tokens
    generation = served.script.only.generation
    assert (generation.stopping.max_tokens, generation.seed) == (7, 3)
    assert {chunk.request_id for chunk in (*chunks, last)} == {generation.request_id}


async def test_chat_and_token_ids_and_several_sequences(served: Served) -> None:
    chat = pb.Chat(messages=[pb.Message(role="user", content="hi")])
    chunks = await generate(served, request(chat=chat, parameters=pb.Parameters(n=2, logprobs=2)))
    assert [chunk.index for chunk in chunks[:-1]] == [0, 1, 0, 1]
    assert [len(chunk.logprobs[0].top) for chunk in chunks[:-1]] == [2] * 4
    assert bytes(unpack_tokens(served.script.only.generation.prompt)) == b"user: hi\nassistant:"
    await generate(served, request(token_ids=pb.TokenIds(ids=[5, 6])))
    assert unpack_tokens(served.script.started[1].generation.prompt) == (5, 6)


async def test_parameters_that_are_zero_are_not_taken_for_unset(served: Served) -> None:
    parameters = pb.Parameters(
        temperature=0, top_p=0.5, logit_bias={7: -3.5}, stop=["x"], stop_token_ids=[1], top_k=0
    )
    await generate(served, request(parameters=parameters))
    generation = served.script.only.generation
    assert (generation.sampling.temperature, generation.sampling.top_p) == (0.0, 0.5)
    assert generation.sampling.logit_bias == ((7, -3.5),)
    assert (generation.stopping.stop, generation.stopping.stop_token_ids) == (("x",), (1,))


async def test_what_ended_a_sequence_is_told() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (1,), "a", (), "stop", "STOP"))
        sink.output(said(1, 1, (2,), "b", (), "stop", 99))
        sink.done(Usage(1, 2, 0))

    async with serving(Script(play)) as served:
        first, second, _ = await generate(served, request(parameters=pb.Parameters(n=2)))
        assert (first.finish_reason, first.stop_string) == ("stop", "STOP")
        assert second.stop_token == 99


async def test_models(served: Served) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        answer = await stub(channel).ListModels(pb.ListModelsRequest())
    assert [(model.id, model.context_tokens) for model in answer.models] == [(MODEL, CONTEXT)]


async def test_ids_and_traces_travel_in_metadata(served: Served) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        metadata = (("x-request-id", "mine"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
        call = stub(channel).Generate(request(), metadata=metadata)
        assert dict(await call.initial_metadata())["x-request-id"] == "mine"
        assert [chunk async for chunk in call]
    generation = served.script.only.generation
    assert (generation.request_id, generation.trace.trace_id) == ("mine", trace)


@pytest.mark.parametrize(
    ("asked", "status", "code", "param"),
    [
        (request(parameters=pb.Parameters(temperature=9)), "INVALID_ARGUMENT", "invalid_request", "temperature"),
        (
            request(parameters=pb.Parameters(temperature=float("nan"))),
            "INVALID_ARGUMENT",
            "invalid_request",
            "temperature",
        ),
        (request(parameters=pb.Parameters(n=0)), "INVALID_ARGUMENT", "invalid_request", "n"),
        (request(parameters=pb.Parameters(top_p=float("inf"))), "INVALID_ARGUMENT", "invalid_request", "top_p"),
        (pb.GenerateRequest(model=MODEL), "INVALID_ARGUMENT", "invalid_request", "input"),
        (request(text=""), "INVALID_ARGUMENT", "invalid_request", "prompt"),
        (request(chat=pb.Chat()), "INVALID_ARGUMENT", "invalid_request", "messages"),
        (request(token_ids=pb.TokenIds(ids=[1 << 30])), "INVALID_ARGUMENT", "invalid_request", "prompt"),
        (request(model=""), "INVALID_ARGUMENT", "invalid_request", "model"),
        (request(model="other"), "NOT_FOUND", "model_not_found", "model"),
        (request(text="x" * CONTEXT), "INVALID_ARGUMENT", "context_length_exceeded", "prompt"),
        (request(text="x" * 20_000), "INVALID_ARGUMENT", "body_too_large", ""),
    ],
)
async def test_bad_input_is_refused_by_name(asked: pb.GenerateRequest, status: str, code: str, param: str) -> None:
    async with serving(Script(), settings=ApiSettings(body_bytes_max=10_000)) as served:
        found, error = await refusal(served, asked)
        assert (found.name, error.code, error.param) == (status, code, param)
        assert not served.script.started
        assert served.door.open_requests == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("over_quota", "RESOURCE_EXHAUSTED"),
        ("queue_full", "UNAVAILABLE"),
        ("draining", "UNAVAILABLE"),
        ("no_workers", "UNAVAILABLE"),
        ("deadline_exceeded", "DEADLINE_EXCEEDED"),
        ("kv_corrupt", "UNAVAILABLE"),
    ],
)
async def test_refusals_have_their_status_and_retry_after(code: str, status: str) -> None:
    async with serving(Script(refusal=TandemError(code, "not now", retry_after_s=2.5))) as served:
        found, error = await refusal(served, request())
        assert (found.name, error.retry_after_s) == (status, 2.5)
        assert error.code == ("worker_lost" if code == "kv_corrupt" else code)


async def test_keys_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"salt_key": "0123456789abcdef", "keys": {"a": "a", "c": {"tenant": "c", "models": ["z"]}}}')
    async with serving(Script(), keys=load_keys(path)) as served:
        assert (await refusal(served, request()))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (await refusal(served, request(), authorization="Bearer c"))[0] is grpc.StatusCode.PERMISSION_DENIED
        assert await generate(served, request(), authorization="Bearer a")
        assert served.script.only.generation.tenant == "a"


def keyed(tmp_path: Path) -> Keys:
    path = tmp_path / "keys.json"
    path.write_text('{"salt_key": "0123456789abcdef", "keys": {"a": "a"}}')
    return load_keys(path)


@asynccontextmanager
async def unsaid(served: Served, method: str = "Generate", **metadata: str) -> AsyncIterator[Any]:
    """A call whose message has not been sent."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        begin: Any = channel.stream_stream
        made = begin(f"/tandem.v1.Inference/{method}")
        yield made(metadata=tuple(metadata.items()), timeout=100)


@pytest.mark.parametrize("method", ["Generate", "Resume", "ListModels"])
async def test_who_has_no_key_is_refused_before_the_message_is_taken(method: str, tmp_path: Path) -> None:
    """Otherwise whoever is not let in makes the router hold as many messages as there may be calls."""
    async with serving(Script(), keys=keyed(tmp_path)) as served, unsaid(served, method) as call:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_message_far_too_large_is_not_taken() -> None:
    async with serving(Script(), settings=ApiSettings(body_bytes_max=10_000)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate(served, request(text="x" * 200_000))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.door.bodies.held == 0
        assert await generate(served, request())


async def test_whoever_says_nothing_gives_way_to_those_who_do() -> None:
    settings = ApiSettings(body_bytes_max=1 << 20, bodies_bytes_max=1 << 20)
    async with serving(Script(), settings=settings) as served, unsaid(served) as silent_call:
        # Its headers have come when its id has.
        await silent_call.initial_metadata()
        assert await generate(served, request())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await silent_call.read()
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert served.door.open_requests == 0


async def test_a_call_without_a_message_is_refused(served: Served) -> None:
    async with unsaid(served) as call:
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_messages_count_with_the_bodies_in_hand() -> None:
    async with serving(Script(), settings=ApiSettings(bodies_bytes_max=20)) as served:
        found, error = await refusal(served, request(text="x" * 30))
        assert (found.name, error.code) == ("UNAVAILABLE", "queue_full")
        assert served.door.bodies.held == 0


async def test_an_error_in_mid_stream_follows_what_was_sent() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (1,), "word"))
        sink.failed(TandemError("deadline_exceeded", "too late"))

    async with (
        serving(Script(play)) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel,
    ):
        call = stub(channel).Generate(request())
        assert (await call.read()).text == "word"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_closing_the_call_cancels_the_request() -> None:
    async with (
        serving(Script(silent)) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel,
    ):
        call = stub(channel).Generate(request())
        await eventually(lambda: served.script.started)
        served.script.only.sink.output(said(0, 1, (1,), "word"))
        assert (await call.read()).text == "word"
        call.cancel()
        await eventually(lambda: served.script.only.cancelled)
        assert served.door.open_requests == 0


async def test_a_client_that_does_not_read_is_ended() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=100_000))
    async with (
        serving(Script(silent), settings=settings) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel,
    ):
        call = stub(channel).Generate(request())
        await eventually(lambda: served.script.started)
        for position in range(1, 500):
            served.script.only.sink.output(said(0, position, (1,), "word" * 1000))
        await eventually(lambda: served.script.only.cancelled)
        assert served.script.only.cancelled == "slow_client"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_request_nobody_ends_is_ended_at_its_deadline() -> None:
    async with serving(Script(silent), settings=ApiSettings(settle_s=0.05)) as served:
        found, error = await refusal(served, request(parameters=pb.Parameters(timeout=0.1)))
        assert (found.name, error.code) == ("DEADLINE_EXCEEDED", "deadline_exceeded")
        assert served.script.only.cancelled == "deadline_exceeded"


async def test_a_message_that_is_none_is_refused(served: Served) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        raw: Any = channel.unary_stream("/tandem.v1.Inference/Generate", None, None)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in raw(b"\xff\xff\xff"):
                pass
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
