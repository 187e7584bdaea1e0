"""Connections over the bound: told why, in HTTP, and let go. They cost a socket for a moment and nothing else."""

import asyncio
from typing import Final, cast

from router.front.errors import error_headers, error_json
from tandem.core.errors import TandemError

_LINGER_S: Final = 2.0


class Turned(asyncio.Protocol):
    """Answers the first bytes that arrive with 503 `queue_full` and closes; `reason` is the sentence."""

    def __init__(self, reason: str) -> None:
        self._answer = _answer(TandemError("queue_full", reason, retry_after_s=1.0))
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._answer and self._transport is not None:
            self._transport.write(self._answer)
            self._answer = b""
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _answer(error: TandemError) -> bytes:
    body = error_json(error)
    named = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error_headers(error)]
    head = b"".join(b"%b: %b\r\n" % header for header in named)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"connection: close\r\n\r\n" + body
