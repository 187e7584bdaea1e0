"""The process that renders chat templates, as seen from the router: starting it, talking to it, how it ended."""

import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import router
from router.api.chat_templates.child import (
    ANSWER,
    OUT_OF_MEMORY,
    READY,
    REFUSAL,
    REQUEST,
    Definition,
    allowance_s,
)
from tandem.core.errors import TandemError

MEMORY_BYTES_MAX: Final = 512 << 20
_KNOWN_MAX: Final = 128
_READ_BYTES: Final = 256 << 10
_CLOSE_S: Final = 3.0
_MODULE: Final = "router.api.chat_templates.child"


class ChildReply(NamedTuple):
    """A reply from `router.api.chat_templates.child`."""

    kind: int
    text: bytes

    def checked(self) -> str:
        """The text. Raises the error that it is."""
        if self.kind == REFUSAL:
            code, message, param = msgspec.convert(json.loads(self.text), tuple[str, str, str | None])
            raise TandemError(code, message, param=param)
        return self.text.decode("utf-8", "surrogatepass")


class ProcessExit(NamedTuple):
    """How the process ended, and whether the template that it was rendering is to blame."""

    why: str
    blamed: bool


class TemplateProcess:
    """One such process, and the socket to it. Raises `OSError` when it cannot be started.

    The thread that makes it has to stay for as long as it is wanted (`tandem.process.parent_death`).
    """

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._memory_bytes_max = memory_bytes_max
        self.socket, theirs = socket.socketpair()
        self.ready = False
        """Whether it has come as far as waiting for requests."""
        self._known: set[int] = set()
        self._received = bytearray()
        numbers = theirs.fileno(), os.getpid(), memory_bytes_max
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, *map(str, numbers)],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                )
            except OSError:
                self.socket.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, number: int, definition: Definition, wall: float, asked: bytes) -> bytes:
        """The frame that asks for a conversation, or for the samples when `asked` is empty. Send it before the next
        frame is made."""
        forget = number not in self._known and len(self._known) >= _KNOWN_MAX
        if forget:
            self._known.clear()
        values: Any = number, None if number in self._known else definition, forget, wall
        head = marshal.dumps(values)
        self._known.add(number)
        return b"".join((REQUEST.pack(len(head), len(asked)), head, asked))

    def answers(self) -> list[ChildReply] | None:
        """The replies that have arrived, after waiting for them where the socket does; None at the end of the stream.
        Raises `BlockingIOError`, `TimeoutError`."""
        try:
            received = self.socket.recv(_READ_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            return None
        buffer, found = self._received, list[ChildReply]()
        buffer += received
        while len(buffer) >= ANSWER.size:
            length, kind = ANSWER.unpack_from(buffer)
            end = ANSWER.size + length
            if len(buffer) < end:
                break
            if kind == READY:
                self.ready = True
            else:
                found.append(ChildReply(kind, bytes(buffer[ANSWER.size : end])))
            del buffer[:end]
        return found

    def ask(self, frame: bytes, within_s: float) -> ChildReply | ProcessExit:
        """Send a request and wait for its answer; without one in time the process is ended."""
        end = time.monotonic() + within_s
        try:
            self.socket.settimeout(within_s)
            with suppress(ConnectionError):
                self.socket.sendall(frame)
            while (found := self.answers()) is not None:
                if found:
                    return found[0]
                self.socket.settimeout(max(0.001, end - time.monotonic()))
        except TimeoutError:
            self.kill()
            return ProcessExit(f"it took more than {within_s:g} s", blamed=True)
        self._wait()
        return self.ending(0) or ProcessExit("the process that renders it does not end", blamed=False)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it. Its end of the socket closes."""
        self._process.kill()

    def ending(self, size_bytes: int) -> ProcessExit | None:
        """How the process ended while it was busy with a request of `size_bytes`; None while it has not ended yet."""
        status = self._process.poll()
        if status is None:
            return None
        if status == -signal.SIGPROF:
            return ProcessExit(f"it took more than {allowance_s(size_bytes):.2g} s of processor time", blamed=True)
        if status == OUT_OF_MEMORY:
            return ProcessExit(f"it took more than {self._memory_bytes_max >> 20} MiB of memory", blamed=True)
        return ProcessExit(f"the process that renders it ended with status {status}", blamed=False)

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self.socket.close()
        self._process.kill()
        self._wait()

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)


def _environment() -> dict[str, str]:
    """The path makes the child run this very package, wherever it was imported from."""
    home = str(Path(router.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}
