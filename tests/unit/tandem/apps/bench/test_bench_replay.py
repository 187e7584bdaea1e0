"""The client, the probe and the whole command against a small server that can misbehave in every way."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tandem.apps.bench.completion import Style, complete, request_body
from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.probe import find_model, find_style
from tandem.apps.bench.replay import Settings, replay
from tandem.apps.bench.workload import Item, Piece, Workload
from tandem.apps.cli.main import main
from tandem.apps.client.http import Client, Target, parse_target
from tandem.core.errors import TandemError
from tandem.core.slo import Slo

Request = dict[str, Any]
Refusal = Callable[[Request], tuple[int, str] | None]


class StubServer:
    """Speaks just enough of the API. `refuse` decides per request; `fault` breaks the stream."""

    def __init__(self, refuse: Refusal = lambda request: None, fault: str = "") -> None:
        self.refuse = refuse
        self.fault = fault
        self.requests: list[Request] = []
        self.listed: Request = {"id": "stub"}
        self.connections = 0
        self.dropped = 0
        """Streams that hung until their client closed the connection."""
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        if head.startswith("get /v1/models"):
            self._plain(writer, 200, {"data": [self.listed]})
            return True
        request = json.loads(body)
        self.requests.append(request)
        refused = self.refuse(request)
        if refused is not None:
            self._plain(writer, refused[0], {"error": {"message": "no", "code": refused[1]}})
            return True
        return await self._stream(reader, writer, request)

    def _plain(self, writer: asyncio.StreamWriter, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        count, fault = request["max_tokens"], self.fault
        for index in range(count):
            if fault == "break" and index == 1:
                return False
            if fault == "hang" and index == 1:
                # A client that has not read everything resets it.
                with suppress(ConnectionError):
                    async with asyncio.timeout(60):
                        await reader.read()
                self.dropped += 1
                return False
            finish = "length" if index == count - 1 and fault != "no_finish" else None
            self._event(writer, {"choices": [self._choice(request, finish)]})
            await writer.drain()
            await asyncio.sleep(0)
        if fault == "error":
            self._event(writer, {"error": {"message": "late", "code": "deadline_exceeded"}})
        usage = {"prompt_tokens": 48, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 8}}
        self._event(writer, {"choices": [], "usage": usage})
        writer.write(self._chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return True

    def _choice(self, request: Request, finish: str | None) -> object:
        if "messages" in request:
            return {"delta": {"content": "x"}, "finish_reason": finish}
        return {"text": "x", "finish_reason": finish}

    def _event(self, writer: asyncio.StreamWriter, value: object) -> None:
        writer.write(self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n"))

    def _chunk(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece)


@pytest.fixture
async def server() -> AsyncIterator[tuple[StubServer, Target]]:
    stub = StubServer()
    yield stub, parse_target(await stub.start())
    await stub.stop()


def workload(count: int, output_tokens: int = 5) -> Workload:
    return Workload("w", tuple(Item(0.002 * index, (Piece(index, 6),), output_tokens) for index in range(count)))


def settings(**changes: Any) -> Settings:
    return Settings(Style("stub"), TokenRange(), **changes)


async def test_a_replay_measures_every_request(server: tuple[StubServer, Target]) -> None:
    stub, target = server
    seen: list[object] = []
    outcomes = await replay(target, workload(20), settings(), seen.append)
    assert [outcome.error for outcome in outcomes] == [None] * 20
    assert len(seen) == 20
    assert all(outcome.output_tokens == 5 and len(outcome.gaps_s) == 4 for outcome in outcomes)
    assert all((outcome.prompt_tokens, outcome.cached_tokens) == (48, 8) for outcome in outcomes)
    assert all(
        outcome.scheduled_s <= outcome.sent_s <= (outcome.first_s or 0) <= outcome.end_s for outcome in outcomes
    )
    assert {len(request["prompt"]) for request in stub.requests} == {6}


async def test_connections_are_kept(server: tuple[StubServer, Target]) -> None:
    stub, target = server
    outcomes = await replay(target, workload(12), settings(in_flight_max=1), lambda outcome: None)
    assert all(outcome.ok for outcome in outcomes)
    assert stub.connections == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("break", "connection:ConnectionResetError"),
        ("hang", "timeout"),
        ("error", "stream:deadline_exceeded"),
        ("no_finish", "no_finish"),
    ],
)
async def test_every_way_to_break_is_an_error_of_its_own_kind(
    server: tuple[StubServer, Target], fault: str, error: str
) -> None:
    stub, target = server
    stub.fault = fault
    for timeout_s in (0.3, 3.0, 30.0):
        (outcome,) = await replay(target, workload(1), settings(timeout_s=timeout_s), lambda outcome: None)
        assert outcome.error in (error, "timeout")
        if outcome.first_s is not None:
            break  # on a busy machine the first token may be late, too
    assert outcome.error == error
    assert outcome.first_s is not None


async def test_refusals_are_counted_by_status_and_code(server: tuple[StubServer, Target]) -> None:
    stub, target = server
    stub.refuse = lambda request: (503, "queue_full")
    outcomes = await replay(target, workload(3), settings(), lambda outcome: None)
    assert {outcome.error for outcome in outcomes} == {"http_503:queue_full"}


async def test_nobody_listening_is_refused() -> None:
    client = Client(Target("127.0.0.1", 1, False, ""))
    style = Style("m")
    outcome = await complete(client, style, request_body(style, [1], 1), 0.0, 0.0, 5.0)
    assert outcome.error == "refused"


@pytest.mark.parametrize("accepts", ["all", "no ignore_eos", "no ids", "text only", "no usage"])
async def test_the_probe_finds_the_most_exact_style(server: tuple[StubServer, Target], accepts: str) -> None:
    stub, target = server
    expected = {
        "all": Style("stub"),
        "no ignore_eos": Style("stub", ignore_eos=False),
        "no ids": Style("stub", token_ids=False),
        "text only": Style("stub", token_ids=False, ignore_eos=False),
        "no usage": Style("stub", token_ids=False, ignore_eos=False, usage=False),
    }[accepts]

    def refuse(request: Request) -> tuple[int, str] | None:
        bad = (
            (not expected.token_ids and not isinstance(request["prompt"], str))
            or (not expected.ignore_eos and "ignore_eos" in request)
            or (not expected.usage and "stream_options" in request)
        )
        return (400, "unsupported_parameter") if bad else None

    stub.refuse = refuse
    client = Client(target)
    assert await find_model(client, None, 5.0) == ("stub", Slo())
    stub.listed["slo"] = {"ttft_ms": 900, "itl_ms": 50}
    assert await find_model(client, None, 5.0) == ("stub", Slo(ttft_s=0.9, itl_s=0.05))
    assert await find_model(client, "other", 5.0) == ("other", Slo())
    for foreign in (None, "gold", {"ttft_ms": "fast"}, [1]):
        stub.listed["slo"] = foreign
        assert await find_model(client, None, 5.0) == ("stub", Slo())
    style, tokens_per_word = await find_style(client, "stub", False, False, TokenRange(), 5.0)
    assert style == expected
    assert tokens_per_word == 1.0
    await client.aclose()


async def test_the_probe_says_why_nothing_works(server: tuple[StubServer, Target]) -> None:
    stub, target = server
    stub.refuse = lambda request: (401, "invalid_api_key")
    client = Client(target)
    with pytest.raises(TandemError, match="http_401:invalid_api_key"):
        await find_style(client, "stub", True, False, TokenRange(), 5.0)
    await client.aclose()


@pytest.fixture
def running() -> Iterator[tuple[StubServer, str]]:
    """The stub on a loop of its own thread, for commands that bring their own loop."""
    stub, loop = StubServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield stub, asyncio.run_coroutine_threadsafe(stub.start(), loop).result(60)
    asyncio.run_coroutine_threadsafe(stub.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


FAST = ["--synthetic", "20:4", "--rate", "400", "--requests", "40"]


def test_the_command_writes_its_report(
    running: tuple[StubServer, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = running
    report = tmp_path / "report.json"
    status = main(["bench", "--url", url, *FAST, "--slo", "ttft=5", "--json", str(report), "--fail-on-error"])
    assert status == 0
    read = json.loads(report.read_text())
    assert (read["requests"], read["succeeded"], read["goodput_share"]) == (40, 40, 1.0)
    assert read["ttft_s"]["p99"] >= read["ttft_s"]["p50"] > 0
    assert "errors       0 of 40" in capsys.readouterr().out


def test_errors_fail_the_command_only_when_asked(running: tuple[StubServer, str]) -> None:
    stub, url = running
    stub.refuse = lambda request: (503, "queue_full") if request["max_tokens"] == 5 else None
    assert main(["bench", "--url", url, *FAST]) == 0
    assert main(["bench", "--url", url, *FAST, "--fail-on-error"]) == 1


def test_capacity_is_searched_within_bounds(
    running: tuple[StubServer, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub, url = running
    stub.refuse = lambda request: (503, "queue_full") if len(stub.requests) > 200 else None
    found = tmp_path / "capacity.json"
    search = ["--find-capacity", "--slo", "ttft=5", "--trial-seconds", "0.05", "--json", str(found)]
    status = main(["bench", "--url", url, "--synthetic", "8:2", "--rate", "100", "--requests", "500", *search])
    assert status == 0
    read = json.loads(found.read_text())
    assert 100 <= read["capacity_per_s"] < read["fails_at_per_s"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("capacity: ")


def test_what_the_server_says_is_held_is_judged_unless_the_user_says_otherwise(
    running: tuple[StubServer, str], tmp_path: Path
) -> None:
    stub, url = running
    stub.listed["slo"] = {"ttft_ms": 5000, "tpot_ms": 4000}
    report = tmp_path / "report.json"
    for given, judged in (([], {"ttft": 5.0, "tpot": 4.0}), (["--slo", "e2e=9"], {"e2e": 9.0})):
        assert main(["bench", "--url", url, *FAST, *given, "--json", str(report)]) == 0
        assert json.loads(report.read_text())["slo"] == judged


def test_wrong_use_is_one_sentence(running: tuple[StubServer, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", running[1], "--synthetic", "8:2", "--find-capacity"]) == 2
    assert main(["bench", "--trace", "/nowhere.jsonl", "--url", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 2
    assert "--slo" in said[0]
    assert "/nowhere.jsonl" in said[1]
