"""Server-sent events with their ids, as they arrive. No I/O."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSentEvent:
    """An event: its data, and the last id the stream has named so far (what a client returns with)."""

    event_id: str
    data: bytes


class ResumableEvents:
    """Splits a stream into events. `last_id` is where a stream that is gone on with begins."""

    def __init__(self, last_id: str = "") -> None:
        self._last_id = last_id
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that this piece completes."""
        *lines, self._pending = (self._pending + piece).split(b"\n")
        events = []
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"id":
                self._last_id = value.strip().decode("latin-1")
            elif field == b"data":
                self._data.append(value.strip())
            elif not field and self._data:
                events.append(ServerSentEvent(self._last_id, b"\n".join(self._data)))
                self._data = []
        return events
