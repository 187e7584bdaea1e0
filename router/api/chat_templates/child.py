"""The process that renders chat templates: its arguments are SOCKET_FD PARENT MEMORY_BYTES.

A template may do whatever Jinja's sandbox lets it do, for as long as it likes: this process is there to be killed.
The kernel does so when one request takes more processor time than its size is worth; a template that wants more
memory than there is ends the process with `OUT_OF_MEMORY`.

A request is two lengths and as many bytes: what to render with, and what to render. Both are marshalled, as the
router is trusted and runs the same interpreter: so a template sees the very values that it would see there. An answer
is a length, a kind and text: the router need not trust it.
"""

import json
import marshal
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from router.api.chat_templates.chat_template import ChatTemplate, samples
from tandem.core.errors import TandemError
from tandem.process.parent_death import die_with

REQUEST: Final = struct.Struct("<II")
ANSWER: Final = struct.Struct("<IB")
READY, TEXT, REFUSAL, SAMPLES = range(4)
"""Kinds of answers: none is asked for yet, a prompt, an error as JSON, and as JSON too what `samples` gives."""
OUT_OF_MEMORY: Final = 77
"""An exit status."""

Definition = tuple[str, Mapping[str, str], str]
"""Source, special tokens and origin of a template."""

_CPU_S: Final = 1.0
_CPU_S_PER_MB: Final = 0.25
_SAMPLE_CHARACTERS_MAX: Final = 1 << 20


def allowance_s(size_bytes: int) -> float:
    """Processor time for a request of a size: a thousand times what published templates take for a small one, and
    several times what they take for tens of thousands of messages."""
    return _CPU_S + _CPU_S_PER_MB * size_bytes / 1e6


class _Wall:
    """The clock of templates, set by each request."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds


class Renderings:
    """The templates that are known here, by number."""

    def __init__(self) -> None:
        self._templates: dict[int, ChatTemplate] = {}
        self._clock = _Wall()

    def answer(self, head: bytes, asked: bytes) -> tuple[int, bytes]:
        """Kind and text. A template comes with its first request, and with the first one after all are forgotten."""
        number, definition, forget, self._clock.seconds = marshal.loads(head)
        try:
            if forget:
                self._templates.clear()
            if definition is not None:
                self._define(number, definition)
            return self._render(self._templates[number], asked)
        except TandemError as error:
            return REFUSAL, json.dumps((error.code, error.message, error.param)).encode()

    def _define(self, number: int, definition: Definition) -> None:
        source, special_tokens, origin = definition
        self._templates[number] = ChatTemplate(source, special_tokens, self._clock, origin)

    @staticmethod
    def _render(template: ChatTemplate, asked: bytes) -> tuple[int, bytes]:
        if not asked:
            found = [text for text in samples(template) if len(text) <= _SAMPLE_CHARACTERS_MAX]
            return SAMPLES, json.dumps(found).encode()
        messages, tools, characters_max = marshal.loads(asked)
        # Templates can write halves of surrogate pairs; whether they are any good is for the tokenizer to say.
        return TEXT, template.render(messages, tools, characters_max).encode("utf-8", "surrogatepass")


def serve(connection: socket.socket) -> None:
    """Answer requests, in their order, until the other end is closed."""
    renderings = Renderings()
    connection.sendall(ANSWER.pack(0, READY))
    with connection.makefile("rb") as requests:
        while len(lengths := requests.read(REQUEST.size)) == REQUEST.size:
            head_bytes, asked_bytes = REQUEST.unpack(lengths)
            head, asked = requests.read(head_bytes), requests.read(asked_bytes)
            if len(head) < head_bytes or len(asked) < asked_bytes:
                return
            signal.setitimer(signal.ITIMER_PROF, allowance_s(len(asked)))
            kind, text = renderings.answer(head, asked)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            connection.sendall(ANSWER.pack(len(text), kind) + text)


def _prepare(parent: int, memory_bytes_max: int) -> None:
    """A Ctrl-C on the terminal reaches the whole group; only the parent decides when this process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    arrange: Any = die_with(parent)
    if arrange is not None:
        arrange()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # where the machine has no memory left, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(socket_fd: int, parent: int, memory_bytes_max: int) -> None:
    """Serve the parent until it closes its end or is gone."""
    _prepare(parent, memory_bytes_max)
    with socket.socket(fileno=socket_fd) as connection:
        try:
            serve(connection)
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(1)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
