"""Judged clients against a server that breaks off, refuses and goes on: what each of them takes down."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from tandem.apps.chaos.client import LEAVES, PLAIN, RESUMES, WHOLE, ChaosClient
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import BROKEN, DONE, FAILED, REFUSED, WITHOUT_END
from tandem.apps.client.http import Target
from tandem.apps.client.stream import Resumption
from tests.worlds.answer_stub import BEGUN, ENTIRE, HEAD, REST, AnswerStub, chunk, refusal, target_of, whole

ASK = ChaosRequest("ask", False, "prompt", 8, 1, 1, 0.0)

Start = Callable[..., "asyncio.Future[ChaosClient]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[asyncio.Server] = []
    callers: list[ChaosClient] = []

    async def begin(stub: AnswerStub, end_within_s: float = 10.0) -> ChaosClient:
        servers.append(await asyncio.start_server(stub.serve, "127.0.0.1", 0))
        callers.append(ChaosClient(target_of(servers[-1]), "model", "run", end_within_s))
        return callers[-1]

    yield lambda *arguments, **named: asyncio.ensure_future(begin(*arguments, **named))
    for caller in callers:
        await caller.aclose()
    for server in servers:
        server.close()


async def test_an_answer_is_heard_to_its_end(start: Start) -> None:
    heard = await (await start(AnswerStub([ENTIRE]))).ask(ASK)
    assert (heard.end, heard.texts, heard.came_back) == (DONE, {0: " a b"}, False)


@pytest.mark.parametrize("manner", [PLAIN, LEAVES])
async def test_a_client_that_does_not_come_back_has_heard_the_beginning(start: Start, manner: str) -> None:
    stub = AnswerStub([BEGUN])
    heard = await (await start(stub)).ask(ASK, manner=manner)
    assert (heard.end, heard.texts) == (BROKEN, {0: " a"})
    assert len(stub.asked) == 1


async def test_a_client_that_comes_back_goes_on_where_it_was(start: Start) -> None:
    stub = AnswerStub([BEGUN, refusal("404 Not Found", "not_found"), refusal("503 Unavailable", "no_workers"), REST])
    heard = await (await start(stub)).ask(ASK, manner=RESUMES)
    assert (heard.end, heard.texts, heard.resumed) == (DONE, {0: " a b"}, True)
    assert stub.asked[-1].startswith(f"GET /v1/requests/{heard.request_id}/events ".encode())
    assert b"Last-Event-ID: 1\r\n" in stub.asked[-1]


async def test_an_answer_that_was_begun_and_cannot_be_gone_on_with_is_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.apps.chaos.client._RESUMPTION", Resumption(0.1, 0.3))
    heard = await (await start(AnswerStub([BEGUN, refusal("404 Not Found", "not_found")]))).ask(ASK, manner=RESUMES)
    assert heard.end == FAILED


async def test_one_of_which_nothing_was_heard_may_have_died_with_its_router(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.apps.chaos.client._RESUMPTION", Resumption(0.1, 0.3))
    heard = await (await start(AnswerStub([HEAD, refusal("404 Not Found", "not_found")]))).ask(ASK, manner=RESUMES)
    assert heard.end == BROKEN


async def test_an_error_in_the_stream_is_an_end_that_nobody_comes_back_from(start: Start) -> None:
    told = chunk(b'data: {"error":{"message":"gone","code":"worker_lost"}}\n\n') + b"0\r\n\r\n"
    stub = AnswerStub([BEGUN + told])
    heard = await (await start(stub)).ask(ASK, manner=RESUMES)
    assert (heard.end, len(stub.asked)) == (FAILED, 1)


async def test_silence_is_no_end(start: Start) -> None:
    heard = await (await start(AnswerStub([b""], hold=True), end_within_s=0.1)).ask(ASK)
    assert heard.end == WITHOUT_END


async def test_an_answer_can_be_asked_for_in_one_body(start: Start) -> None:
    body = b'{"choices":[{"index":0,"text":" a b","finish_reason":"length"}],"usage":{"completion_tokens":2}}'
    stub = AnswerStub([whole(body)])
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
    heard = await (await start(AnswerStub([answer]))).ask(ASK)
    assert (heard.end, heard.kind) == (end, kind)
    assert heard.status == (503 if end == FAILED else 200)


async def test_a_client_may_leave_before_its_usual_time(start: Start) -> None:
    caller = await start(AnswerStub([b""], hold=True), end_within_s=60.0)
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
