"""The router's ASGI application as Serve's ingress runs it: under a route prefix, with a lifespan, and with Serve's
own request ids."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST_ID: Final = b"x-request-id"


def asgi(app: App) -> App:
    """`app` for a Serve ingress. Serve demands that a lifespan is answered, leaves its route prefix in the path, and
    appends an `x-request-id` to every response: the application's own is dropped, which is the same one."""

    async def adapted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.lower() != _REQUEST_ID]
                message = {**message, "headers": kept}
            await send(message)

        await app(_without_prefix(scope), receive, sent)

    return adapted


def _without_prefix(scope: Scope) -> Scope:
    prefix = scope.get("root_path", "").rstrip("/")
    if not prefix or not scope["path"].startswith(prefix):
        return scope
    return {**scope, "path": scope["path"].removeprefix(prefix) or "/"}


async def _live(receive: Receive, send: Send) -> None:
    """Answer startup and shutdown; the service has a life of its own."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
