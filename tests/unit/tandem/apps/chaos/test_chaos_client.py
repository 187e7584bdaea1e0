"""Judged clients against a server that breaks off, refuses and goes on: what each of them takes down."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from tandem.apps.chaos.client import LEAVES, PLAIN, RESUMES, WHOLE, ChaosClient
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import BROKEN, DONE, FAILED, REFUSED, WITHOUT_END
from tandem.apps.client.http import Target
from tandem.apps.client.stream import Resumption

ASK = ChaosRequest("ask", False, "prompt", 8, 1, 1, 0.0)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(place: int, text: str) -> bytes:
    return f'id: {place}\ndata: {{"choices":[{{"index":0,"text":"{text}"}}]}}\n\n'.encode()


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def refusal(status: str, code: str) -> bytes:
    body = b'{"error":{"message":"no","code":"%b"}}' % code.encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


ENTIRE = HEAD + chunk(event(1, " a") + event(2, " b") + b"data: [DONE]\n\n") + b"0\r\n\r\n"
BEGUN = HEAD + chunk(event(1, " a"))
REST = HEAD + chunk(event(2, " b") + b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass
class Stub:
    """Answers connection after connection with what is next, the last for ever, and closes each."""

    answers: list[bytes]
    hold: bool = False
    """Say nothing and keep the connection."""
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next((line.split(b":")[1] for line in head.split(b"\r\n") if b"Content-Length" in line), b"0"))
        await reader.readexactly(length)
        self.asked.append(head)
        if self.hold:
            await reader.read()
        else:
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()
        writer.close()


Start = Callable[..., "asyncio.Future[ChaosClient]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[asyncio.Server] = []
    callers: list[ChaosClient] = []

    async def begin(stub: Stub, end_within_s: float = 10.0) -> ChaosClient:
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        servers.append(server)
        port = server.sockets[0].getsockname()[1]
        callers.append(ChaosClient(Target("127.0.0.1", port, False, ""), "model", "run", end_within_s))
        return callers[-1]

    yield lambda *arguments, **named: asyncio.ensure_future(begin(*arguments, **named))
    for caller in callers:
        await caller.aclose()
    for server in servers:
        server.close()


async def test_an_answer_is_heard_to_its_end(start: Start) -> None:
    heard = await (await start(Stub([ENTIRE]))).ask(ASK)
    assert (heard.end, heard.texts, heard.came_back) == (DONE, {0: " a b"}, False)


@pytest.mark.parametrize("manner", [PLAIN, LEAVES])
async def test_a_client_that_does_not_come_back_has_heard_the_beginning(start: Start, manner: str) -> None:
    stub = Stub([BEGUN])
    heard = await (await start(stub)).ask(ASK, manner=manner)
    assert (heard.end, heard.texts) == (BROKEN, {0: " a"})
    assert len(stub.asked) == 1


async def test_a_client_that_comes_back_goes_on_where_it_was(start: Start) -> None:
    stub = Stub([BEGUN, refusal("404 Not Found", "not_found"), refusal("503 Unavailable", "no_workers"), REST])
    heard = await (await start(stub)).ask(ASK, manner=RESUMES)
    assert (heard.end, heard.texts, heard.resumed) == (DONE, {0: " a b"}, True)
    assert stub.asked[-1].startswith(f"GET /v1/requests/{heard.request_id}/events ".encode())
    assert b"Last-Event-ID: 1\r\n" in stub.asked[-1]


async def test_an_answer_that_was_begun_and_cannot_be_gone_on_with_is_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.apps.chaos.client._RESUMPTION", Resumption(0.1, 0.3))
    heard = await (await start(Stub([BEGUN, refusal("404 Not Found", "not_found")]))).ask(ASK, manner=RESUMES)
    assert heard.end == FAILED


async def test_one_of_which_nothing_was_heard_may_have_died_with_its_router(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.apps.chaos.client._RESUMPTION", Resumption(0.1, 0.3))
    heard = await (await start(Stub([HEAD, refusal("404 Not Found", "not_found")]))).ask(ASK, manner=RESUMES)
    assert heard.end == BROKEN


async def test_an_error_in_the_stream_is_an_end_that_nobody_comes_back_from(start: Start) -> None:
    told = chunk(b'data: {"error":{"message":"gone","code":"worker_lost"}}\n\n') + b"0\r\n\r\n"
    stub = Stub([BEGUN + told])
    heard = await (await start(stub)).ask(ASK, manner=RESUMES)
    assert (heard.end, len(stub.asked)) == (FAILED, 1)


async def test_silence_is_no_end(start: Start) -> None:
    heard = await (await start(Stub([b""], hold=True), end_within_s=0.1)).ask(ASK)
    assert heard.end == WITHOUT_END


async def test_an_answer_can_be_asked_for_in_one_body(start: Start) -> None:
    body = b'{"choices":[{"index":0,"text":" a b","finish_reason":"length"}],"usage":{"completion_tokens":2}}'
    stub = Stub([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)])
    heard = await (await start(stub)).ask(ASK, manner=WHOLE)
    assert (heard.end, heard.texts, heard.finishes, heard.tokens) == (DONE, {0: " a b"}, {0: "length"}, 2)


@pytest.mark.parametrize(
    ("answer", "end", "kind"),
    [
        (BEGUN, BROKEN, "ConnectionResetError"),
        (BEGUN + b"0\r\n\r\n", BROKEN, "cut off"),
        (HEAD + b"zz\r\n", BROKEN, "BadResponse"),
        (HEAD + chunk(b"data: {\n\n"), BROKEN, "DecodeError"),
        (refusal("503 Unavailable", "no_workers"), FAILED, "no_workers"),
    ],
)
async def test_an_end_has_its_reason_in_a_word(start: Start, answer: bytes, end: str, kind: str) -> None:
    heard = await (await start(Stub([answer]))).ask(ASK)
    assert (heard.end, heard.kind) == (end, kind)
    assert heard.status == (503 if end == FAILED else 200)


async def test_a_client_may_leave_before_its_usual_time(start: Start) -> None:
    caller = await start(Stub([b""], hold=True), end_within_s=60.0)
    assert (await caller.ask(ASK, end_within_s=0.05)).end == WITHOUT_END


def test_a_request_says_what_its_manner_needs() -> None:
    plain = msgspec.json.decode(ASK.body("model", "salt"))
    assert (plain["stream"], plain["stream_options"], plain["cache_salt"]) == (True, {"include_usage": True}, "salt")
    assert "resumable" not in plain
    assert msgspec.json.decode(ASK.body("model", "", resumable=True))["resumable"] is True
    whole = msgspec.json.decode(ASK.body("model", "", stream=False))
    assert not whole.keys() & {"stream", "stream_options", "cache_salt"}


async def test_nobody_there_is_a_refusal() -> None:
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    heard = await ChaosClient(Target("127.0.0.1", port, False, ""), "model", "run", 5.0).ask(ASK)
    assert heard.end == REFUSED
