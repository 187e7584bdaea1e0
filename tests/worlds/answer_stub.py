"""A server that answers byte for byte what it was given, for tests of clients that read streams."""

import asyncio
from dataclasses import dataclass, field

from tandem.apps.client.http import Target

HEAD = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(place: int, text: str) -> bytes:
    return f'id: {place}\ndata: {{"choices":[{{"index":0,"text":"{text}"}}]}}\n\n'.encode()


def refusal(status: str, code: str, *headers: str) -> bytes:
    body = b'{"error":{"message":"no","code":"%b"}}' % code.encode()
    return whole(body, *headers, status=status)


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer in one body."""
    lines = (f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


@dataclass
class AnswerStub:
    """Answers connection after connection with what is next, the last for ever, and closes each."""

    answers: list[bytes]
    size: int = 1 << 20
    """Bytes that are sent at a time."""
    hold: bool = False
    """Keeps the connection open after its answer, until the client has gone."""
    asked: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next((line.split(b":")[1] for line in head.split(b"\r\n") if b"Content-Length" in line), b"0"))
        self.asked.append(head + await reader.readexactly(length))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for at in range(0, len(answer), self.size):
            writer.write(answer[at : at + self.size])
            await writer.drain()
            await asyncio.sleep(0)
        if self.hold:
            await reader.read()
            self.left.set()
        writer.close()


def target_of(server: asyncio.Server) -> Target:
    return Target("127.0.0.1", server.sockets[0].getsockname()[1], False, "")


ENTIRE = HEAD + chunk(event(1, " a")) + chunk(event(2, " b") + DONE) + END
BEGUN = HEAD + chunk(event(1, " a"))
REST = HEAD + chunk(event(2, " b") + DONE) + END
