"""The common part of the origins that speak HTTP: ranges, redirects, bounds, and errors that say what to do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import httpx

from tandem.core.errors import TandemError
from tandem.weights.origin import Stream

CONNECT_S: Final = 10.0
"""Limit on the time in which an origin accepts a connection."""
SILENCE_S: Final = 30.0
"""Limit on the time in which nothing comes from an origin."""
CURE: Final = (
    "check model.credentialsSecret, and router.cache.credentialsSecret (or the tenant's) where a router reads"
)
"""What to do about refused credentials."""
_BODY_MAX: Final = 64 << 20
"""Size limit, in bytes, of an answer that is read whole: listings and manifests."""


class Web:
    """A client with bounds: 10 s to connect, 30 s of silence."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=32)
        self._client = httpx.Client(
            headers=dict(headers or {}), timeout=timeout, limits=limits, follow_redirects=True
        )

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A small answer, whatever its status. Raises `link_lost`."""
        try:
            with self._client.stream("GET", url, headers=dict(headers or {})) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > _BODY_MAX:
                        raise TandemError("bad_model", f"{url}: more than {_BODY_MAX:,} bytes")
                answer = httpx.Response(
                    response.status_code,
                    headers=_plain(response.headers),
                    content=bytes(body),
                    request=response.request,
                )
        except httpx.HTTPError as error:
            raise _lost(url, error) from error
        return answer

    @contextmanager
    def stream(
        self, what: str, url: str, offset: int, tag: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[Stream]:
        """A file from `offset` on, named `what` in errors."""
        asked = {**(headers or {}), "accept-encoding": "identity"}
        if offset:
            asked["range"] = f"bytes={offset}-"
            if tag:
                asked["if-range"] = tag
        try:
            with self._client.stream("GET", url, headers=asked) as response:
                if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    yield Stream(offset, tag, iter(()))
                    return
                refuse(what, response)
                begin = offset if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
                yield Stream(begin, response.headers.get("etag", ""), response.iter_raw())
        except httpx.HTTPError as error:
            raise _lost(what, error) from error

    def close(self) -> None:
        """Hang up."""
        self._client.close()


def refuse(what: str, response: httpx.Response) -> None:
    """Raise `refusal` unless the response is a success."""
    if not response.is_success:
        raise refusal(what, response.status_code)


def refusal(what: str, status: int) -> TandemError:
    """What an HTTP status that is no success means for `what`: `link_lost` where asking again may help, `bad_model`
    elsewhere."""
    if status == httpx.codes.NOT_FOUND:
        return TandemError("bad_model", f"{what} is missing (404)")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return TandemError("bad_model", f"{what}: access is refused ({status}); {CURE}")
    lost = status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS
    return TandemError("link_lost" if lost else "bad_model", f"{what}: status {status}")


def _plain(headers: httpx.Headers) -> dict[str, str]:
    """The headers without those that described the encoded body."""
    return {name: value for name, value in headers.items() if name not in ("content-encoding", "content-length")}


def _lost(what: str, error: httpx.HTTPError) -> TandemError:
    return TandemError("link_lost", f"{what}: {str(error) or type(error).__name__}")
