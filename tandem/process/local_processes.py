"""Service processes on this machine: asyncio subprocesses that never outlive the process that started them.

Each gets a session of its own, so a terminal's Ctrl-C reaches only the supervisor and a whole tree can be ended at
once.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from tandem.core.errors import TandemError
from tandem.process.parent_death import die_with
from tandem.process.processes import Command, Process

_READ_BYTES: Final = 64 * 1024
_LINE_MAX: Final = 1024 * 1024


class LocalProcesses:
    """`ProcessControl` over asyncio subprocesses. What a process prints goes to `NAME.log` in `log_directory`.

    With `lifeline` the standard input of a process is a pipe that ends when the process that started it ends, for
    commands of `tandem.process.lifeline`; otherwise standard input is empty.
    """

    def __init__(self, log_directory: Path, *, lifeline: bool = False) -> None:
        self._log_directory = log_directory
        self._lifeline = lifeline

    def log_of(self, name: str) -> Path:
        """The file that keeps standard error and output of the process `name`, over restarts."""
        return self._log_directory / f"{name}.log"

    async def start(self, command: Command) -> Process:
        """Raises `bad_setting` when the program cannot be run."""
        # A pipe of our own: asyncio's would make `wait` last until every heir of the output has closed it.
        read_end, write_end = os.pipe()
        stdin, lifeline = _lifeline() if self._lifeline else (asyncio.subprocess.DEVNULL, None)
        try:
            with self.log_of(command.name).open("ab", buffering=0) as log:
                started = await asyncio.create_subprocess_exec(
                    *command.argv,
                    env=dict(command.env),
                    stdin=stdin,
                    stdout=write_end,
                    stderr=log,
                    start_new_session=True,
                    # The pipe's end kills the whole group; this would only kill its leader before.
                    preexec_fn=None if self._lifeline else die_with(os.getpid()),
                )
        except OSError as error:
            os.close(read_end)
            if lifeline is not None:
                lifeline.close()
            raise TandemError("bad_setting", f"{command.argv[0]} cannot be run: {error}") from error
        finally:
            os.close(write_end)
            if lifeline is not None:
                os.close(stdin)
        return LocalProcess(started, await _reader(read_end), self.log_of(command.name), lifeline)


class LocalProcess:
    """One running process and the group it leads. `lifeline` stays open for as long as the process may live."""

    def __init__(
        self,
        started: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        log: Path,
        lifeline: IO[bytes] | None = None,
    ) -> None:
        self._started = started
        self._lifeline = lifeline
        self._output = output
        self._log: IO[bytes] = log.open("ab", buffering=0)
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._started.pid

    def signal(self, number: int) -> None:
        """Send a signal to the process. SIGKILL goes to its whole group, because the process cannot end its own
        children then."""
        if self._started.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                self._started.send_signal(number)

    async def lines(self) -> Sequence[str] | None:
        while True:
            received = await self._output.read(_READ_BYTES)
            if not received:
                self._log.close()
                return None
            self._log.write(received)
            *whole, self._pending = (self._pending + received).split(b"\n")
            if len(self._pending) > _LINE_MAX:
                self._pending = b""
            if whole:
                return [line.decode("utf-8", "replace") for line in whole]

    async def wait(self) -> int:
        """The exit status. What the process has left of its group is killed, so `lines` ends too."""
        status = await self._started.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._lifeline is not None:
            self._lifeline.close()
        return status


def _lifeline() -> tuple[int, IO[bytes]]:
    """A pipe: the end that a child reads, and the end that no other process inherits. It is no pipe of asyncio's for
    the reason above."""
    read_end, write_end = os.pipe()
    return read_end, os.fdopen(write_end, "wb", buffering=0)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    """A stream over the read end of a pipe; the descriptor closes at its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader
