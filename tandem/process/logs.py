"""Logs are an event name plus fields; `request_id` is bound once per request by a context variable.

`EventLines` are something else: the few machine-readable lines a supervisor reads from standard output.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

Field = str | int | float | bool | None

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def event(log: logging.Logger, name: str, *, level: int = logging.INFO, **fields: Field) -> None:
    """Log an event with its fields."""
    if log.isEnabledFor(level):
        log.log(level, name, extra={"fields": fields})


@contextmanager
def request(request_id: str) -> Iterator[None]:
    """Everything logged inside, also in tasks started inside, carries `request_id`."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def _fields(record: logging.LogRecord) -> dict[str, Field]:
    fields: dict[str, Field] = dict(getattr(record, "fields", {}))
    if (request_id := _request_id.get()) is not None:
        fields["request_id"] = request_id
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Field] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """Time, level, event, then key=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()} {fields}"
        return line.rstrip() + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


def set_up_logs(*, json_lines: bool, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its line for every request would bury everything else: routers are asked each second or two.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class EventLines:
    """Writes `{"event": …}` lines for the process that started this one; silent without a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def emit(self, name: str, **fields: Field) -> None:
        """Write one line at once."""
        if self._stream is not None:
            self._stream.write(json.dumps({"event": name, **fields}) + "\n")
            self._stream.flush()
