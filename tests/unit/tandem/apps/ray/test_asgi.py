"""The router under Serve's ingress: lifespan answered, prefix cut off, one request id."""

import asyncio
from typing import Any

import pytest

from tandem.apps.ray.asgi import Message, Receive, Scope, Send, asgi


class App:
    """An application that keeps what it was asked and answers with these headers."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.scopes: list[Scope] = []
        self._headers = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"ok"})


async def ask(app: App, **scope: Any) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await asgi(app)({"type": "http", "method": "GET", "headers": [], **scope}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("path", "prefix", "seen"),
    [
        ("/v1/models", "", "/v1/models"),
        ("/v1/models", "/", "/v1/models"),
        ("/llm/v1/models", "/llm", "/v1/models"),
        ("/llm/v1/models", "/llm/", "/v1/models"),
        ("/llm", "/llm", "/"),
        ("/v1/models", "/llm", "/v1/models"),
    ],
)
async def test_the_route_prefix_is_cut_off(path: str, prefix: str, seen: str) -> None:
    app = App()
    await ask(app, path=path, root_path=prefix)
    assert app.scopes[0]["path"] == seen


async def test_a_scope_without_a_prefix_is_passed_on_as_it_is() -> None:
    app = App()
    await ask(app, path="/ready")
    assert app.scopes[0]["path"] == "/ready"


async def test_the_request_id_is_left_to_serve_and_other_headers_stay() -> None:
    sent = await ask(App((b"content-type", b"a/b"), (b"X-Request-Id", b"1"), (b"x-request-ids", b"2")), path="/")
    assert sent[0]["headers"] == [(b"content-type", b"a/b"), (b"x-request-ids", b"2")]
    assert sent[1] == {"type": "http.response.body", "body": b"ok"}


async def test_a_lifespan_is_answered_and_the_application_hears_nothing_of_it() -> None:
    app, sent = App(), []
    messages: asyncio.Queue[Message] = asyncio.Queue()
    for stage in ("startup", "shutdown"):
        messages.put_nowait({"type": f"lifespan.{stage}"})

    async def send(message: Message) -> None:
        sent.append(message["type"])

    await asgi(app)({"type": "lifespan"}, messages.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not app.scopes
