"""The servers that judge: the router's own connection, h11, and others behind a port."""

import asyncio
import socket
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final

import h11

from router.http_server.connection import Application, HttpConnection
from router.http_server.refusal import Explain, plainly
from tools.http_judges.echo import SAW, application, saw
from tools.http_judges.verdict import Verdict, read_answers

_TURNS: Final = 6
"""Of the loop, after which the application has answered all that it was given."""
_H11_HEAD_BYTES: Final = 65_536


class _Memory(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Owner:
    """`router.http_server.connection.ConnectionOwner`."""

    def __init__(self) -> None:
        self.app: Application = application
        self.explain: Explain = plainly
        self.tasks: set[asyncio.Task[None]] = set()

    def opened(self, connection: HttpConnection) -> None: ...

    def closed(self, connection: HttpConnection) -> None: ...

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


async def ours(pieces: Sequence[bytes], turns: int = _TURNS) -> Verdict:
    """How the router's connection takes these pieces, each `turns` turns of the loop after the one before."""
    owner, transport = _Owner(), _Memory()
    connection = HttpConnection(owner)
    connection.connection_made(transport)
    for piece in pieces:
        if transport.closed:
            break
        connection.data_received(piece)
        for _ in range(turns):
            await asyncio.sleep(0)
    for _ in range(20 * _TURNS):
        await asyncio.sleep(0)
    verdict = read_answers(transport.written, transport.closed)
    connection.connection_lost(None)
    for task in owner.tasks:
        task.cancel()
    await asyncio.gather(*owner.tasks, return_exceptions=True)
    return verdict


def h11_says(data: bytes) -> Verdict:
    """How h11 takes these bytes, with an application that answers every request."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_H11_HEAD_BYTES)
    connection.receive_data(data)
    written, method, body = b"", b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, body = event.method, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                headers = [(SAW, saw(method, body)), (b"content-length", b"0")]
                written += connection.send(h11.Response(status_code=200, headers=headers)) or b""
                written += connection.send(h11.EndOfMessage()) or b""
                if connection.our_state is not h11.DONE:
                    return read_answers(written, True)
                connection.start_next_cycle()
            else:
                return read_answers(written, event is not h11.NEED_DATA)
    except h11.RemoteProtocolError as error:
        refusal = b"HTTP/1.1 %d Bad\r\ncontent-length: 0\r\n\r\n" % error.error_status_hint
        return read_answers(written + refusal, True)


async def behind_port(port: int, pieces: Sequence[bytes], quiet_s: float) -> Verdict:
    """How the server at this port takes them. Its answers are whole when it closes or says nothing for `quiet_s`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, closed = b"", False
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        while not closed:
            more = await _within(reader.read(65_536), quiet_s)
            if more is None:
                break
            data, closed = data + more, not more
    except ConnectionError:
        closed = True
    finally:
        writer.close()
    return read_answers(data, closed)


async def _within(work: Awaitable[bytes], seconds: float) -> bytes | None:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        return None
