"""Reports of the engine's processes to the worker besides tokens: how far loading is, and what they died of.

vLLM says both only in its log. A plugin (`plugin.py`) reads along in each of its processes and sends a datagram for
every line that matters; the worker listens on a Unix socket. A lost datagram costs a line of progress, no more.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

BYTES_MAX: Final = 2048
_STAGES: Final = (
    (re.compile(r"Starting to load model"), 0.1, "loading weights"),
    (re.compile(r"Loading weights took"), 0.7, "weights loaded"),
    (re.compile(r"(KV cache size|GPU KV cache size|# GPU blocks)"), 0.8, "KV cache allocated"),
    (re.compile(r"init engine .* took"), 0.9, "engine initialised"),
)
_WEIGHTS: Final = (0.1, 0.7)
"""The part of loading that is reading weights."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Loading has come so far: `fraction` of the whole, and what has just been done."""

    fraction: float
    stage: str


class LastWords(msgspec.Struct, frozen=True, tag=True):
    """An error that a process has logged, with the exception where there was one."""

    process: str
    text: str


ProcessReport = Progress | LastWords

encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ProcessReport).decode


def progress_of(line: str) -> Progress | None:
    """The loading progress that a line of vLLM's log reports; None where it reports none."""
    return next((Progress(fraction, stage) for found, fraction, stage in _STAGES if found.search(line)), None)


def shard_progress(loaded: int, shards: int) -> Progress:
    """The `Progress` after `loaded` of the checkpoint's `shards` files have been read."""
    begin, end = _WEIGHTS
    return Progress(begin + (end - begin) * loaded / max(1, shards), f"loading weights, file {loaded} of {shards}")


class ReportHandler(logging.Handler):
    """Sends what matters of a log to the worker. Never blocks, never fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.tell(LastWords(record.processName or "", _words(record)))
        elif (progress := progress_of(record.getMessage())) is not None:
            self.tell(progress)

    def tell(self, told: ProcessReport) -> None:
        """Send a report to the worker; drop it when the worker is gone or does not keep up."""
        with contextlib.suppress(OSError):
            self._socket.sendto(encode(told), self._path)


def _words(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[: BYTES_MAX // 2]


class ReportReceiver:
    """The worker's end of process reports: calls `on_progress`, and keeps the errors that processes report."""

    def __init__(self, path: Path, on_progress: Callable[[float, str], None]) -> None:
        self.errors: list[str] = []
        """The first few errors, in the order in which they came."""
        self._on_progress = on_progress
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.read)

    def read(self) -> None:
        """Take what has come."""
        while True:
            try:
                told = _decode(self._socket.recv(BYTES_MAX))
            except BlockingIOError:
                return
            except msgspec.DecodeError:
                continue
            if isinstance(told, Progress):
                self._on_progress(told.fraction, told.stage)
            elif len(self.errors) < 8:
                self.errors.append(told.text)

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
