"""Decides which web pages may send requests from a browser, and which headers tell the browser so (the Fetch
standard's CORS protocol). Pure.

Keys travel in `Authorization`, which a page has to hold itself: cookies are never asked for.
"""

from collections.abc import Sequence
from typing import Final

from router.http_server.response_writer import Header

ANY: Final = "*"
_EXPOSED: Final = (b"access-control-expose-headers", b"x-request-id, retry-after")
_PREFLIGHT: Final[tuple[Header, ...]] = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, idempotency-key, last-event-id, traceparent, x-request-id, *",
    ),
    (b"access-control-max-age", b"600"),
)


class Cors:
    """`origins` as in the settings."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, origin: bytes | None) -> tuple[Header, ...]:
        """The additional headers of a response to a page of this origin; empty where the page may not read the
        response."""
        if self._any and origin is not None:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin is None or origin not in self._origins:
            return ()
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)

    def preflight(self, origin: bytes | None) -> tuple[Header, ...]:
        """The additional headers of the response to a page's preflight request. A browser adds headers of SDKs
        (`x-stainless-…`) only where they are allowed: `*` stands for all but `authorization`, so the response lists
        both."""
        allowed = self.headers(origin)
        return (*allowed, *_PREFLIGHT) if allowed else ()
