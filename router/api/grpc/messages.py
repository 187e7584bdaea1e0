"""Reads the one message of a gRPC call: the caller is known before, and how much is read at once is bounded.

A server learns of a call when its headers have come. Its message is taken from the connection when it is asked for,
and until then waits within the flow-control window. A message in transit cannot be seen, so it counts as the largest
that is accepted. Only as many calls as fit are read at a time; the others wait for their turn. Most messages have
come whole with their headers, and take no time. While other calls wait, no call may take long.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from router.api.body_budget import BodyShare
from router.api.settings import ApiSettings
from tandem.core.errors import TandemError

ENVELOPE_BYTES: Final = 64 << 10
"""Bytes by which a message may exceed the accepted size and still be refused by name; gRPC itself ends the call of a
larger message (`RESOURCE_EXHAUSTED`)."""
_CROWDED_S: Final = 1.0
"""Seconds that a message may take while other calls wait for their turn."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class MessageReader:
    """Reads the messages of one server."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._bytes_max = settings.body_bytes_max
        self._turns = asyncio.Semaphore(
            max(1, settings.bodies_bytes_max // (settings.body_bytes_max + ENVELOPE_BYTES))
        )
        self._reading: dict[asyncio.Timeout, float] = {}
        """The time at which each message that is being read began, by the timeout that bounds it."""

    @property
    def most_bytes(self) -> int:
        """Size in bytes of the largest message that gRPC is to accept."""
        return self._bytes_max + ENVELOPE_BYTES

    async def read(self, context: Context, share: BodyShare) -> bytes:
        """The message. Raises `invalid_request` when the client closes its side without one, `body_too_large`,
        `deadline_exceeded` when it does not come, and `queue_full` when it is not its turn in time, or too much is in
        hand."""
        try:
            async with self._turn(), asyncio.timeout(self._settings.body_wait_s) as bound:
                message = await self._bounded(context, bound)
        except TimeoutError:
            raise TandemError("deadline_exceeded", "the message of the call did not come in time") from None
        if not isinstance(message, bytes):
            raise TandemError("invalid_request", "the call has no message")
        if len(message) > self._bytes_max:
            reason = f"the message has {len(message)} bytes; at most {self._bytes_max} are accepted"
            raise TandemError("body_too_large", reason)
        share.take(len(message))
        return message

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._turns.locked():
            for bound, since in self._reading.items():
                _hurry(bound, since + _CROWDED_S)
        try:
            async with asyncio.timeout(self._settings.body_wait_s):
                await self._turns.acquire()
        except TimeoutError:
            reason = "too many messages are being read already"
            raise TandemError("queue_full", reason, retry_after_s=1.0) from None
        try:
            yield
        finally:
            self._turns.release()

    async def _bounded(self, context: Context, bound: asyncio.Timeout) -> Any:
        now = asyncio.get_running_loop().time()
        self._reading[bound] = now
        if self._turns.locked():
            _hurry(bound, now + _CROWDED_S)
        try:
            return await context.read()
        finally:
            del self._reading[bound]


def _hurry(bound: asyncio.Timeout, at: float) -> None:
    until = bound.when()
    if until is not None and at < until and not bound.expired():
        bound.reschedule(at)
