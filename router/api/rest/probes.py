"""The pages of the port for probes and scrapes: whether the process lives, whether it is ready, and its metrics.

They need no key. The port is for kubelets and Prometheus, and client connections cannot use up its own.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from router.api.errors import check_method, error_headers, error_json
from router.http_server.cycle import Receive
from router.http_server.response_writer import Header, Send
from tandem.core.errors import TandemError

METRICS: Final = "/metrics"
_JSON: Final = (b"content-type", b"application/json")
_METRICS_TYPE: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


@dataclass(frozen=True)
class Page:
    """A whole response, but for its length."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Probes:
    """An ASGI application for probes. `not_ready` gives the reason why a request could not be served now, and
    `metrics` renders the process's metrics for Prometheus."""

    def __init__(self, not_ready: Callable[[], str | None], metrics: Callable[[], bytes]) -> None:
        self._not_ready = not_ready
        self._metrics = metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        page = self._answer(scope["method"], scope["path"])
        headers = [*page.headers, (b"content-length", b"%d" % len(page.body))]
        await send({"type": "http.response.start", "status": page.status, "headers": headers})
        await send({"type": "http.response.body", "body": page.body, "more_body": False})

    def page(self, path: str) -> Page | None:
        """The page at a path; None where there is none."""
        match path:
            case "/health":
                return Page(200, (_JSON,), b'{"status":"ok"}')
            case "/ready":
                return self._ready()
            case "/metrics":
                return Page(200, (_METRICS_TYPE,), self._metrics())
        return None

    def _answer(self, method: str, path: str) -> Page:
        try:
            check_method(method, ("GET", "HEAD"), path)
            if (page := self.page(path)) is not None:
                return page
            raise TandemError("not_found", f"there is nothing at {path} on the port for probes")
        except TandemError as error:
            return Page(error.kind.http, (_JSON, *error_headers(error)), error_json(error))

    def _ready(self) -> Page:
        why = self._not_ready()
        if why is None:
            return Page(200, (_JSON,), b'{"status":"ready"}')
        body = msgspec.json.encode({"status": "not ready", "reason": why})
        return Page(503, (_JSON, (b"retry-after", b"1")), body)
