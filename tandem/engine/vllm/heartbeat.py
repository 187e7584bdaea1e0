"""Signs of life of vLLM's processes: a few bytes of shared memory for each, written there and read by the worker.

Writing costs nothing that a step would notice, and reading needs no help from the process: a process that is frozen,
or whose thread is in one long call, answers no messages. Times are those of the system's monotonic clock, which all
processes of a machine share. Imports no vLLM.
"""

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BEAT_EVERY_S: Final = 0.1
_PULSE: Final = struct.Struct("=ddIIQ")
_TIME: Final = struct.Struct("=d")
_LOAD: Final = struct.Struct("=II")
_NUMBER: Final = struct.Struct("=Q")
_STEP_AT: Final = 8
_LOAD_AT: Final = 16
_SAID_AT: Final = 24


@dataclass(frozen=True)
class HeartbeatSample:
    """The last signs of life of a process. `beat` is when its thread last beat. `step_since` is when the step that
    runs began, None between steps.

    `rows` and `prompt_tokens` are the load of the heavier of its last two steps: with asynchronous scheduling the
    engine waits for one step while it has given out the next. `said` counts its messages of notices; the last may
    still be on its way: a step that holds Python's lock lets no thread send it.
    """

    pid: int
    beat: float
    step_since: float | None
    rows: int
    prompt_tokens: int
    said: int = 0


class Heartbeat:
    """The writing side, one per process. Raises `OSError` when there is no place for it."""

    def __init__(self, directory: Path) -> None:
        path = directory / str(os.getpid())
        with open(path, "w+b") as file:
            file.truncate(_PULSE.size)
            self._bytes = mmap.mmap(file.fileno(), _PULSE.size)
        self._before = (0, 0)
        self._said = 0
        self._beat()
        threading.Thread(target=self._go_on, name="tandem-pulse", daemon=True).start()

    def step_begins(self) -> None:
        """The engine's loop has begun a step."""
        _TIME.pack_into(self._bytes, _STEP_AT, time.monotonic())

    def step_ends(self) -> None:
        """The step is over."""
        _TIME.pack_into(self._bytes, _STEP_AT, 0.0)

    def scheduled(self, rows: int, prompt_tokens: int) -> None:
        """Record the load of the step that was scheduled last."""
        heavier = max(self._before, (rows, prompt_tokens), key=lambda load: (load[1], load[0]))
        self._before = (rows, prompt_tokens)
        _LOAD.pack_into(self._bytes, _LOAD_AT, *heavier)

    def says(self) -> None:
        """A message of notices is about to be sent."""
        self._said += 1
        _NUMBER.pack_into(self._bytes, _SAID_AT, self._said)

    def _beat(self) -> None:
        _TIME.pack_into(self._bytes, 0, time.monotonic())

    def _go_on(self) -> None:
        while True:
            time.sleep(BEAT_EVERY_S)
            self._beat()


def heartbeats_beside(socket: Path) -> Path:
    """The directory of the heartbeats of one engine's processes, next to the `socket` on which the worker receives
    their messages."""
    return socket.parent / "pulses"


def read_heartbeat(path: Path) -> HeartbeatSample | None:
    """The last sample of the process that writes to `path`; None while it has not begun."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _PULSE.size:
        return None
    beat, since, rows, prompt_tokens, said = _PULSE.unpack(raw)
    return HeartbeatSample(int(path.name), beat, since or None, rows, prompt_tokens, said) if beat else None
