"""An ASGI application that tells what it saw of a request: `x-saw` is the method and the body in hex."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]

SAW: Final = b"x-saw"


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Reads the body to its end, then answers without one."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(SAW, saw(scope["method"].encode(), body)), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def saw(method: bytes, body: bytes) -> bytes:
    """The value of the header."""
    return method + b"=" + body.hex().encode()
