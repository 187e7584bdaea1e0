"""Server-sent events, parsed from bytes as they arrive. No I/O."""

from typing import Final

import msgspec

from tandem.apps.client.wire import BadResponse

EVENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that one event may have; more is no answer."""


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """An event: its data, and the last id that the stream has named so far (where a resumed stream goes on)."""

    event_id: str
    data: bytes


class EventParser:
    """Splits a `text/event-stream`, wherever its bytes are cut, into events. `last_id` is the id of the event before
    the stream's first.

    Lines end with LF or CRLF. Comments, event types and retry times are dropped, and so is an event that the stream
    does not finish.
    """

    def __init__(self, last_id: str = "") -> None:
        self._last_id = last_id
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """The events that `received` completes. Raises `BadResponse` for one of more than `EVENT_BYTES_MAX` bytes."""
        *lines, self._pending = (self._pending + received).split(b"\n")
        events, data = [], self._data
        for line in lines:
            field, _, value = line.removesuffix(b"\r").partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"id":
                self._last_id = value.removeprefix(b" ").decode("latin-1")
            elif data and line in (b"", b"\r"):
                events.append(ServerSentEvent(self._last_id, data[0] if len(data) == 1 else b"\n".join(data)))
                data.clear()
        if len(self._pending) + sum(map(len, data)) > EVENT_BYTES_MAX:
            raise BadResponse(f"an event is longer than {EVENT_BYTES_MAX} bytes")
        return events
