"""One asker for streams: what it yields however the bytes are cut, how a stream may end, and how one is resumed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.client import http, sse
from tandem.apps.client.answer import AnswerFailed, Piece, RequestRefused, StreamFailed, error_of, read_piece
from tandem.apps.client.http import Client, Target
from tandem.apps.client.sse import EventParser, ServerSentEvent
from tandem.apps.client.stream import AnswerStream, Resumption, whole_answer
from tandem.apps.client.wire import BadResponse
from tests.worlds.answer_stub import BEGUN, END, ENTIRE, HEAD, REST, AnswerStub, chunk, refusal, target_of, whole

QUICK = Resumption(every_s=0.01, within_s=0.2)


# ---- events ----

STREAM = (
    b": comment\n\nid: 1\ndata: a\n: within an event\n\ndata: b\ndata:  c\nevent: x\nretry: 3\n\n"
    b"id: 3\r\ndata:d\r\n\r\n\n\ndata: e\nid: 4\n\ndata: cut off"
)
EVENTS = [
    ServerSentEvent("1", b"a"),
    ServerSentEvent("1", b"b\n c"),
    ServerSentEvent("3", b"d"),
    ServerSentEvent("4", b"e"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    events = EventParser("0")
    edges = [0, *sorted(cuts), len(STREAM)]
    assert [one for start, end in pairwise(edges) for one in events.feed(STREAM[start:end])] == EVENTS


def test_an_event_before_any_id_has_the_id_that_the_stream_went_on_from() -> None:
    assert EventParser("7").feed(b"data: a\n\n") == [ServerSentEvent("7", b"a")]


@pytest.mark.parametrize("endless", [b"data: " + b"x" * 90, b"data: x\n" * 12])
def test_an_event_without_end_is_refused(endless: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    events = EventParser()
    with pytest.raises(BadResponse, match="longer than"):
        [events.feed(endless) for _ in range(10)]


# ---- pieces ----


def test_both_endpoints_streamed_or_whole_have_their_text_in_one_place() -> None:
    for choice in (
        b'{"index":1,"text":"a"}',
        b'{"index":1,"delta":{"role":"assistant","content":"a"}}',
        b'{"index":1,"message":{"content":"a"},"finish_reason":"stop"}',
    ):
        (read,) = read_piece(b'{"id":"r","choices":[%b],"usage":null}' % choice, 2.5).choices
        assert (read.index, read.content) == (1, "a")
    assert read_piece(b'{"choices":[{"delta":{"content":null}}]}', 0.0).choices[0].content == ""


def test_usage_says_what_was_found_where() -> None:
    usage = read_piece(
        b'{"usage":{"prompt_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":4,"cached_tokens_by_tier":{"dram":4}}}}',
        0.0,
    ).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.cached_by_tier) == (9, 4, {"dram": 4})
    bare = read_piece(b'{"usage":{"prompt_tokens_details":null}}', 0.0).usage
    assert bare is not None
    assert (bare.cached_tokens, bare.cached_by_tier) == (0, {})


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'{"error":{"message":"full","code":"queue_full"}}', "queue_full", "503 queue_full: full"),
        (b'{"error":{"message":"full","code":null,"type":"busy"}}', "busy", "503 busy: full"),
        (b'{"error":{"message":"full","code":17}}', "17", "503 17: full"),
        (b"<html>", "unknown", "503 <html>"),
        (b"{}", "unknown", "503 {}"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(body: bytes, kind: str, words: str) -> None:
    refused = RequestRefused(503, body)
    assert (refused.kind, str(refused)) == (kind, words)
    assert (error_of(body) is None) == (kind == "unknown")


# ---- streams ----


Connect = Callable[[AnswerStub], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    servers: list[asyncio.Server] = []
    clients: list[Client] = []

    async def begin(stub: AnswerStub) -> Client:
        servers.append(await asyncio.start_server(stub.serve, "127.0.0.1", 0))
        clients.append(Client(target_of(servers[-1])))
        return clients[-1]

    yield begin
    for client in clients:
        await client.aclose()
    for server in servers:
        server.close()


async def read(stream: AnswerStream, into: list[Piece] | None = None) -> list[Piece]:
    """The pieces of a stream; also those before an error, in `into`."""
    came = [] if into is None else into
    async with aclosing(stream.pieces()) as pieces:
        async for piece in pieces:
            came.append(piece)
    return came


def text(pieces: list[Piece]) -> str:
    return "".join(choice.content for piece in pieces for choice in piece.choices)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_a_stream_is_read_to_its_end_however_its_bytes_come(connect: Connect, size: int) -> None:
    stub = AnswerStub([ENTIRE], size)
    stream = AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1")
    pieces = await read(stream)
    assert (text(pieces), stream.ended, stream.returns, stream.last_event_id) == (" a b", True, 0, "2")
    times = [piece.time_s for piece in pieces]
    assert times == sorted(times)
    assert abs(times[-1] - asyncio.get_running_loop().time()) < 60.0, "of the loop's clock"
    assert stub.asked[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"X-Request-Id: req-1\r\n" in stub.asked[0]


async def test_a_stream_without_an_end_mark_is_for_the_caller_to_judge(connect: Connect) -> None:
    stream = AnswerStream(await connect(AnswerStub([BEGUN + END])), "/v1/completions", b"{}")
    assert (text(await read(stream)), stream.ended) == (" a", False)


async def test_a_connection_that_breaks_is_an_error_after_what_came(connect: Connect) -> None:
    stream, pieces = AnswerStream(await connect(AnswerStub([BEGUN])), "/v1/completions", b"{}"), list[Piece]()
    with pytest.raises(ConnectionError):
        await read(stream, pieces)
    assert text(pieces) == " a"


async def test_a_connection_that_breaks_after_the_end_mark_is_no_error(connect: Connect) -> None:
    stream = AnswerStream(await connect(AnswerStub([ENTIRE.removesuffix(END)])), "/v1/completions", b"{}")
    assert (text(await read(stream)), stream.ended) == (" a b", True)


@pytest.mark.parametrize("tail", [END, b""])
async def test_an_error_event_is_raised_once_the_stream_has_been_read(connect: Connect, tail: bytes) -> None:
    late = b'data: {"error":{"message":"gone","code":"worker_lost"}}\n\ndata: {"usage":{"completion_tokens":1}}\n\n'
    stub, pieces = AnswerStub([BEGUN + chunk(late) + tail]), list[Piece]()
    stream = AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1", QUICK)
    with pytest.raises(StreamFailed, match="worker_lost: gone") as failed:
        await read(stream, pieces)
    assert failed.value.kind == "worker_lost"
    assert (len(pieces), pieces[-1].usage is not None) == (2, True)
    assert len(stub.asked) == 1, "there is nothing to come back for"


async def test_a_refusal_has_its_status_kind_and_wait(connect: Connect) -> None:
    stub = AnswerStub([refusal("503 Unavailable", "queue_full", "Retry-After: 4")])
    with pytest.raises(RequestRefused) as refused:
        await read(AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1", QUICK))
    assert (refused.value.status, refused.value.kind, refused.value.retry_after_s) == (503, "queue_full", 4.0)
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-x\r\n\r\n", BadResponse),
        (HEAD + b"zz\r\n", BadResponse),
        (HEAD + b"3\r\nabcdef\r\n", BadResponse),
        (HEAD + chunk(b"data: {\n\n") + END, msgspec.DecodeError),
        (HEAD + chunk(b'data: {"choices":7}\n\n') + END, msgspec.DecodeError),
    ],
)
async def test_what_is_no_answer_is_an_error_of_its_kind(
    connect: Connect, answer: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await read(AnswerStream(await connect(AnswerStub([answer])), "/v1/completions", b"{}"))


async def test_leaving_early_closes_the_connection(connect: Connect) -> None:
    stub = AnswerStub([BEGUN], hold=True)
    async with aclosing(AnswerStream(await connect(stub), "/v1/completions", b"{}").pieces()) as pieces:
        async for _ in pieces:
            break
    async with asyncio.timeout(100.0):
        await stub.left.wait()


# ---- coming back ----


async def test_a_broken_stream_is_resumed_after_the_last_event(connect: Connect) -> None:
    stub = AnswerStub([BEGUN, refusal("404 Not Found", "not_found"), b"", REST])
    stream = AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1", Resumption(0.01, 30.0))
    assert (text(await read(stream)), stream.ended, stream.returns) == (" a b", True, 3)
    for asked in stub.asked[1:]:
        assert asked.startswith(b"GET /v1/requests/req-1/events HTTP/1.1\r\n")
        assert b"Last-Event-ID: 1\r\n" in asked


async def test_a_stream_whose_end_mark_is_missing_is_resumed(connect: Connect) -> None:
    stub = AnswerStub([BEGUN + END, REST])
    stream = AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1", Resumption(0.01, 30.0))
    assert (text(await read(stream)), stream.returns) == (" a b", 1)


async def test_a_client_that_got_nothing_names_no_event(connect: Connect) -> None:
    stub = AnswerStub([HEAD, ENTIRE])
    stream = AnswerStream(await connect(stub), "/v1/completions", b"{}", "req-1", Resumption(0.01, 30.0))
    assert text(await read(stream)) == " a b"
    assert b"Last-Event-ID" not in stub.asked[1]


@pytest.mark.parametrize(
    ("last", "error"), [(refusal("404 Not Found", "not_found"), RequestRefused), (b"", ConnectionError)]
)
async def test_a_client_comes_back_within_its_time_only(
    connect: Connect, last: bytes, error: type[Exception]
) -> None:
    stream = AnswerStream(await connect(AnswerStub([BEGUN, last])), "/v1/completions", b"{}", "req-1", QUICK)
    with pytest.raises(error):
        await read(stream)
    assert stream.returns >= 1


async def test_nobody_listening_at_first_is_no_broken_stream() -> None:
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    client = Client(Target("127.0.0.1", port, False, ""))
    stream = AnswerStream(client, "/v1/completions", b"{}", "req-1", QUICK)
    with pytest.raises(ConnectionRefusedError):
        await read(stream)
    assert stream.returns == 0


# ---- whole answers ----


async def test_a_whole_answer_is_one_piece(connect: Connect) -> None:
    body = b'{"id":"cmpl-1","choices":[{"index":0,"text":"a b","finish_reason":"length"}]}'
    client = await connect(AnswerStub([whole(body)]))
    piece = await whole_answer(client, "/v1/completions", b"{}")
    assert (piece.id, text([piece])) == ("cmpl-1", "a b")


async def test_a_whole_answer_has_a_bound(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_BYTES_MAX", 1000)
    client = await connect(AnswerStub([whole(b" " * 1001)]))
    with pytest.raises(BadResponse, match="longer than 1000"):
        await whole_answer(client, "/v1/completions", b"{}")


async def test_a_refused_whole_answer_is_a_typed_error(connect: Connect) -> None:
    with pytest.raises(AnswerFailed) as failed:
        await whole_answer(await connect(AnswerStub([refusal("429 Slow", "over_quota")])), "/v1/completions", b"{}")
    assert failed.value.kind == "over_quota"
