"""Reading a request body with bounds on size and patience."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from router.api.body_budget import BodyShare
from router.api.settings import ApiSettings
from router.http_server.cycle import Receive
from router.http_server.sync_first import Finished, Waiting, begin
from tandem.core.errors import TandemError


class ClientGone(Exception):
    """The client closed the connection, so there is no one to answer."""


async def read_body(
    receive: Receive, announced: bytes | None, settings: ApiSettings, share: BodyShare, bytes_max: int | None = None
) -> bytes:
    """The whole body, of at most `bytes_max` bytes (default: the bound in the settings). Raises `body_too_large`
    before reading more than that, `deadline_exceeded` when the client stops sending, `queue_full` when too many bytes
    of bodies are in hand, and `ClientGone`."""
    most = settings.body_bytes_max if bytes_max is None else bytes_max
    if announced is not None and announced.isdigit() and int(announced) > most:
        raise _too_large(int(announced), most)
    first = await _next(receive, settings.body_wait_s)
    body: bytes = first.get("body", b"")
    share.take(len(body))
    if not first.get("more_body", False) and len(body) <= most:
        return body
    try:
        async with asyncio.timeout(settings.body_total_s):
            return await _rest(receive, first, settings, share, most)
    except TimeoutError:
        raise TandemError(
            "deadline_exceeded", f"the body was not complete within {settings.body_total_s:g} s"
        ) from None


async def _rest(
    receive: Receive, first: MutableMapping[str, Any], settings: ApiSettings, share: BodyShare, most: int
) -> bytes:
    """A body of several pieces, the first of which has been read."""
    body: bytes = first.get("body", b"")
    pieces, size, more = [body], len(body), bool(first.get("more_body", False))
    while more or size > most:
        if size > most:
            raise _too_large(size, most)
        message = await _next(receive, settings.body_wait_s)
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        share.take(len(pieces[-1]))
        more = bool(message.get("more_body", False))
    return b"".join(pieces)


def check_encoding(encoding: bytes | None) -> None:
    """Raises `unsupported_encoding` for a body that is compressed."""
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        named = encoding.decode("latin-1")
        problem = f"Content-Encoding {named!r} is not read: send the body as it is, without compression"
        raise TandemError("unsupported_encoding", problem)


async def discard_body(receive: Receive, settings: ApiSettings) -> None:
    """Read on for a while without keeping anything: a client that is still sending must get to see the answer."""
    size = 0
    try:
        async with asyncio.timeout(settings.linger_s):
            while size < settings.linger_bytes_max:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def gone(receive: Receive) -> None:
    """Returns when the client has disconnected or the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(receive: Receive, wait_s: float) -> MutableMapping[str, Any]:
    step = begin(receive())
    message = step.value if isinstance(step, Finished) else await _in_time(step, wait_s)
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


async def _in_time(waiting: Waiting[MutableMapping[str, Any]], wait_s: float) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(wait_s):
            return await waiting
    except TimeoutError:
        raise TandemError("deadline_exceeded", f"no more of the body arrived within {wait_s:g} s") from None


def _too_large(size: int, most: int) -> TandemError:
    return TandemError("body_too_large", f"the body has {size} bytes or more; at most {most} are accepted")
