"""Connections that are not served: each gets the reason in an HTTP response and is closed. It costs a socket for a
moment."""

import asyncio
from typing import Final, Protocol, cast

_LINGER_S: Final = 0.5


class OverLimitOwner(Protocol):
    """Whose connections they are."""

    def let_go(self, turned: "OverLimitConnection") -> None:
        """The connection is closed."""
        ...


class OverLimitConnection(asyncio.Protocol):
    """Answers the first bytes that arrive with `answer`, a whole response, and closes. A client that sends nothing
    gets the answer after `linger_s`."""

    def __init__(self, owner: OverLimitOwner, answer: bytes, linger_s: float = _LINGER_S) -> None:
        self._owner = owner
        self._answer = answer
        self._linger_s = linger_s
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._say)

    def data_received(self, data: bytes) -> None:
        if self._answer:
            self._say()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._owner.let_go(self)

    def _say(self) -> None:
        if self._transport is None:
            return
        if not self._answer:
            self._transport.abort()
            return
        self._transport.write(self._answer)
        self._answer = b""
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._transport.abort)
