"""The HTTP/1.1 server on real sockets: framing, early requests, bad input, and applications that fail."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from router.api.errors import explain
from router.http_server import connection as http_connection
from router.http_server.cycle import Message, Receive
from router.http_server.response_writer import CONNECTION_EXTENSION, Send
from router.http_server.server import HttpServer

Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _body(receive: Receive) -> bytes:
    pieces, more = [], True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        pieces.append(message["body"])
        more = message["more_body"]
    return b"".join(pieces)


async def _respond(send: Send, body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class App:
    """Echoes what it was asked; some paths misbehave."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[str] = []
        self.gone: list[str] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.append(path)
        if path == "/fault":
            raise RuntimeError("a fault")
        if path == "/silence":
            return
        if path in ("/stream", "/stream-fault"):
            await self._stream(send, fault=path != "/stream")
            return
        if path == "/wait":
            await self._wait(path, receive)
        body = await _body(receive)
        if path == "/headers":
            await _respond(send, b", ".join([b": ".join(each) for each in scope["headers"]]))
            assert (await receive())["type"] == "http.disconnect"
            return
        await _respond(send, f"{scope['method']} {path} {scope['query_string'].decode()} ".encode() + body)
        assert (await receive())["type"] == "http.disconnect"

    async def _stream(self, send: Send, *, fault: bool) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for word in (b"one ", b"two ", b""):
            await send({"type": "http.response.body", "body": word, "more_body": True})
        if fault:
            raise RuntimeError("in mid-stream")
        await send({"type": "http.response.body", "body": b"three", "more_body": False})

    async def _wait(self, path: str, receive: Receive) -> None:
        opened = asyncio.create_task(self.open.wait())
        await opened


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[App, HttpServer, int]]:
    app: Any = App()
    server = HttpServer(app, explain=explain)
    port = await server.start("127.0.0.1", 0)
    try:
        yield app, server, port
    finally:
        await server.close(0.2)


async def _ask(port: int, *pieces: bytes) -> Wires:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    return reader, writer


async def _answer(wires: Wires) -> tuple[int, dict[str, str], bytes]:
    """The next response of a connection; of a chunked one the chunks as they came."""
    reader, _ = wires
    async with asyncio.timeout(60.0):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            body = await reader.read()
    return int(status.split()[1]), headers, body


async def _rest(wires: Wires) -> bytes:
    reader, writer = wires
    async with asyncio.timeout(60.0):
        rest = await reader.read()
    writer.close()
    return rest


def _request(path: str, *, method: str = "GET", body: bytes = b"", version: str = "1.1", headers: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/{version}\r\nhost: x\r\n{headers}{length}\r\n".encode() + body


async def test_one_connection_serves_request_after_request() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/a?b=c"))
        assert (await _answer(wires))[2] == b"GET /a b=c "
        wires[1].write(_request("/%C3%A9", method="POST", body=b"text"))
        assert (await _answer(wires))[2] == "POST /é  text".encode()
        wires[1].write(_request("http://elsewhere/absolute"))
        status, headers, body = await _answer(wires)
        assert (status, body) == (200, b"GET /absolute  ")
        assert "connection" not in headers
        wires[1].write(_request("/last", headers="connection: close\r\n"))
        assert (await _answer(wires))[1]["connection"] == "close"
        assert await _rest(wires) == b""


async def test_requests_sent_early_are_answered_in_order() -> None:
    async with serving() as (app, _, port):
        wires = await _ask(port, b"".join(_request(path, method="POST", body=b"x") for path in ("/wait", "/b", "/c")))
        await asyncio.sleep(0.02)
        assert app.asked == ["/wait"]
        app.open.set()
        assert [(await _answer(wires))[2] for _ in range(3)] == [b"POST /wait  x", b"POST /b  x", b"POST /c  x"]
        wires[1].close()


async def test_too_many_requests_sent_early_are_told_so_after_those_before_them() -> None:
    async with serving() as (app, _, port):
        wires = await _ask(port, _request("/wait") + _request("/b") * 40)
        await asyncio.sleep(0.02)
        app.open.set()
        assert [(await _answer(wires))[0] for _ in range(17)] == [200] * 17
        status, headers, body = await _answer(wires)
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert json.loads(body)["error"]["code"] == "queue_full"
        assert await _rest(wires) == b""
        assert app.asked == ["/wait"] + ["/b"] * 16


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"transfer-encoding: gzip\r\n\r\nabc", (501, "unsupported_encoding")),
        (b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", (501, "unsupported_encoding")),
        (b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n", (400, "invalid_request")),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_before_the_connection_ends(
    before: int, said: bytes, answered: tuple[int, str]
) -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/b") * before + b"POST /x HTTP/1.1\r\nhost: x\r\n" + said)
        assert [(await _answer(wires))[0] for _ in range(before)] == [200] * before
        status, headers, body = await _answer(wires)
        assert ((status, json.loads(body)["error"]["code"]), headers["connection"]) == (answered, "close")
        assert await _rest(wires) == b""


async def test_bytes_may_come_one_by_one() -> None:
    async with serving() as (_, _, port):
        data = _request("/slow?q", method="POST", body=b"body") * 2
        wires = await _ask(port, *(data[at : at + 1] for at in range(len(data))))
        assert [(await _answer(wires))[2] for _ in range(2)] == [b"POST /slow q body"] * 2
        wires[1].close()


async def test_a_body_may_come_in_chunks_and_be_asked_for_first() -> None:
    async with serving() as (_, _, port):
        head = "expect: 100-continue\r\ntransfer-encoding: chunked\r\n"
        wires = await _ask(port, _request("/chunks", method="POST", headers=head))
        async with asyncio.timeout(60.0):
            assert await wires[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wires[1].write(b"3\r\nabc\r\n")
        wires[1].write(b"2\r\nde\r\n0\r\n\r\n")
        assert (await _answer(wires))[2] == b"POST /chunks  abcde"
        wires[1].close()


async def test_a_response_of_unknown_length_is_chunked_or_ends_the_connection() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/stream"))
        assert (await _answer(wires))[2] == b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"
        wires[1].write(_request("/stream", version="1.0"))
        _, headers, body = await _answer(wires)
        assert (headers, body) == ({"connection": "close"}, b"one two three")


async def test_old_clients_are_answered_and_let_go_unless_they_ask_to_stay() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/a", version="1.0", headers="connection: keep-alive\r\n"))
        assert (await _answer(wires))[2] == b"GET /a  "
        wires[1].write(_request("/b", version="1.0"))
        assert (await _answer(wires))[1]["connection"] == "close"
        assert await _rest(wires) == b""


async def test_head_is_answered_without_a_body() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/a", method="HEAD"), _request("/b", headers="connection: close\r\n"))
        async with asyncio.timeout(60.0):
            everything = await wires[0].read()
        assert everything.startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nHTTP/1.1 200 OK\r\n")
        wires[1].close()


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET [::1 HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_ends(said: bytes) -> None:
    async with serving() as (app, _, port):
        wires = await _ask(port, said)
        status, headers, body = await _answer(wires)
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["code"] == "invalid_request"
        await _rest(wires)
        assert app.asked == []


async def test_nonsense_behind_a_request_does_not_cost_its_answer() -> None:
    async with serving() as (app, _, port):
        wires = await _ask(port, _request("/wait") + b"nonsense\r\n\r\n")
        app.open.set()
        assert (await _answer(wires))[2] == b"GET /wait  "
        assert (await _answer(wires))[0] == 400
        assert await _rest(wires) == b""


@pytest.mark.parametrize("wish", ["upgrade: h2c", "upgrade: websocket"])
@pytest.mark.parametrize("framing", ["none", "length", "chunks"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_wish_to_upgrade_is_ignored_and_the_request_served(wish: str, framing: str, whole: bool) -> None:
    """RFC 9110, 7.8; Java's HttpClient asks for h2c with every first request."""
    wished = f"connection: upgrade, http2-settings\r\n{wish}\r\n"
    asked = _request("/a", method="POST", headers=wished, body=b"text" if framing == "length" else b"")
    if framing == "chunks":
        chunks = b"3\r\nte\n\r\n2\r\nxt\r\n0\r\n\r\n"
        asked = _request("/a", method="POST", headers=f"{wished}transfer-encoding: chunked\r\n") + chunks
    body = {"none": b"", "length": b"text", "chunks": b"te\nxt"}[framing]
    asked += _request("/b", headers=wished) + _request("/c")
    async with serving() as (_, _, port):
        wires = await _ask(port, *([asked] if whole else [asked[at : at + 1] for at in range(len(asked))]))
        assert (await _answer(wires))[2] == b"POST /a  " + body
        assert (await _answer(wires))[2] == b"GET /b  "
        status, headers, last = await _answer(wires)
        assert (status, last) == (200, b"GET /c  ")
        assert "connection" not in headers


async def test_what_follows_a_tunnel_is_not_heard() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, b"CONNECT example:443 HTTP/1.1\r\nhost: x\r\n\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await _answer(wires))[1]["connection"] == "close"
        assert await _rest(wires) == b""


async def test_trailers_are_no_headers() -> None:
    """RFC 9110, 6.5.1: a gateway in front has set, stripped or judged headers, and saw no trailers."""
    head = _request("/headers", method="POST", headers="x-told: head\r\ntransfer-encoding: chunked\r\n")
    async with serving() as (_, _, port):
        wires = await _ask(port, head + b"2\r\nhi\r\n0\r\nx-told: trailer\r\nauthorization: Bearer other\r\n\r\n")
        told = (await _answer(wires))[2]
        assert told == b"host: x, x-told: head, transfer-encoding: chunked"
        wires[1].write(_request("/headers", headers="x-told: next\r\n"))
        assert (await _answer(wires))[2] == b"host: x, x-told: next"


@pytest.mark.parametrize("path", ["/fault", "/silence"])
async def test_an_application_that_fails_is_an_internal_error(path: str) -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request(path))
        status, _, body = await _answer(wires)
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal")
        assert await _rest(wires) == b""


async def test_a_stream_that_fails_never_looks_whole() -> None:
    async with serving() as (_, _, port):
        wires = await _ask(port, _request("/stream-fault"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await _answer(wires)


async def test_a_slow_head_and_an_idle_connection_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_HEAD_S", 0.1)
    monkeypatch.setattr(http_connection, "_KEEP_ALIVE_S", 0.1)
    async with serving() as (_, _, port):
        for said in (b"", b"GET / HTTP/1.1\r\n", _request("/a"), _request("/a") + b"GET /"):
            wires = await _ask(port, said)
            try:
                rest = await _rest(wires)
            except ConnectionError:
                continue
            assert rest == b"" or rest.endswith(b"GET /a  ")


async def test_a_client_that_hangs_up_is_noticed_while_it_waits() -> None:
    told: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def listens(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        told.set_result(await receive())
        await _respond(send, b"nobody")

    app: Any = listens
    server = HttpServer(app, explain=explain)
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(_request("/a"))
        await asyncio.sleep(0.02)
    assert (await asyncio.wait_for(told, 60.0))["type"] == "http.disconnect"
    await server.close(0.2)


async def test_a_long_body_waits_for_the_application() -> None:
    gate, size = asyncio.Event(), 20 << 20

    async def late(scope: Message, receive: Receive, send: Send) -> None:
        await gate.wait()
        await _respond(send, b"%d" % len(await _body(receive)))

    app: Any = late
    server = HttpServer(app, explain=explain)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
    writer.write(b"x" * size)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.drain(), 0.2)
    gate.set()
    assert (await _answer((reader, writer)))[2] == b"%d" % size
    writer.close()
    await server.close(0.2)


async def test_a_server_that_stops_lets_answers_end_and_idle_connections_go() -> None:
    async with serving() as (app, server, port):
        idle, busy = await _ask(port, _request("/a")), await _ask(port, _request("/wait"))
        await _answer(idle)
        async with asyncio.timeout(60.0):
            while "/wait" not in app.asked:  # noqa: ASYNC110
                await asyncio.sleep(0)
        server.stop_listening()
        assert await _rest(idle) == b""
        app.open.set()
        assert (await _answer(busy))[1]["connection"] == "close"
        assert await _rest(busy) == b""


def test_streams_take_the_short_way_on_uvloop_too() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        wire = scope["extensions"][CONNECTION_EXTENSION].wire
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0)
        wire.hold()
        assert wire.write(b"direct")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def main() -> bytes:
        made: Any = app
        server = HttpServer(made, explain=explain)
        wires = await _ask(await server.start("127.0.0.1", 0), _request("/"))
        try:
            return (await _answer(wires))[2]
        finally:
            wires[1].close()
            await server.close(0.2)

    assert uvloop.run(main()) == b"6\r\ndirect\r\n0\r\n\r\n"
