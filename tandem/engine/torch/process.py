"""`Runner` with torch in a process of its own, so that neither a busy event loop nor the GIL delays a step.

KV memory is a memfd that both processes map; steps and results go over a socket pair. When this process dies,
the other reads end-of-file and leaves, and on Linux the kernel kills it, even when it hangs; when the other dies, the
running step fails with `engine_failed`.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import tandem
from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import EngineInfo
from tandem.engine.scheduler.activity import activity_of, own_activity_of
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.scheduler.stall_detection import LOOK_EVERY_S, ProcessSample, StallDetector
from tandem.engine.torch.frames import LENGTH_BYTES, Answer, Done, Failure, ModelLoaded, frame, read_answer
from tandem.engine.torch.prepare import Prepared, prepare
from tandem.engine.torch.settings import TorchSettings
from tandem.process.parent_death import die_with

_CLOSE_S = 3.0
_CHILD = "tandem.engine.torch.child"


class _Frames(asyncio.Protocol):
    """Turns incoming bytes into at most one awaited answer. Lower latency than a stream reader's tasks."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None
        self._lost = False

    def expect(self) -> asyncio.Future[Answer]:
        """The next answer. Fails with `ConnectionError` when the other end is gone."""
        self._waiting = asyncio.get_running_loop().create_future()
        if self._lost:
            self._waiting.set_exception(ConnectionError())
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            answer = read_answer(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError())


class ProcessRunner:
    """See `tandem.engine.scheduler.plan.Runner`."""

    def __init__(self, settings: TorchSettings) -> None:
        self._settings = settings
        self._prepared: Prepared | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._frames = _Frames()
        self._step: int | None = None
        self._lookout = StallDetector(waits_for_device=settings.device != "cpu")
        self._looked_at: int | None = None
        self._seen: Callable[[ProcessSample], None] | None = None
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def memory(self) -> HostMemory:
        """The KV blocks; there once `load` has returned."""
        assert self._prepared is not None, "load() has not returned yet"
        return self._prepared.memory

    @property
    def pid(self) -> int | None:
        """The engine process, while there is one."""
        return None if self._process is None else self._process.pid

    async def load(self) -> EngineInfo:
        """Start the process, load weights, map KV memory. Raises `bad_model`, `bad_setting`, `engine_failed`."""
        prepared = await asyncio.to_thread(prepare, self._settings)
        self._prepared = prepared
        await self._start(prepared)
        try:
            answer = await self._ask(frame(prepared.spec), self._settings.load_timeout_s, "loading the model")
        except BaseException:
            self._kill()
            raise
        assert isinstance(answer, ModelLoaded)
        self._look_later()
        return prepared.info

    async def _start(self, prepared: Prepared) -> None:
        ours, theirs = socket.socketpair()
        memory_fd = prepared.memory.fd
        assert memory_fd is not None
        with theirs:
            fds = (theirs.fileno(), memory_fd)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _CHILD,
                *map(str, fds),
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(os.environ, prepared.spec.threads),
                preexec_fn=die_with(os.getpid()),
            )
        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self._frames, sock=ours)
        # uvloop's transports have the interface without the base class.
        self._transport = cast(asyncio.WriteTransport, transport)

    async def execute(self, step: Step) -> StepResult:
        """Run one step. Raises `engine_failed`."""
        self._step = step.number
        answer = await self._ask(frame(step), self._settings.step_timeout_s, f"step {step.number}")
        self._step = None
        assert isinstance(answer, Done)
        return answer.result

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        """See `tandem.engine.scheduler.plan.Runner`."""
        self._seen = seen

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Report a sample of the process. A process that is stopped between steps is given as long as a step may
        take, then ended."""
        assert self._process is not None
        pid, limit_s = self._process.pid, self._settings.step_timeout_s
        # Steps that follow each other show that it gets on: its threads matter in one that lasts.
        lasts = self._step is not None and self._step == self._looked_at
        self._looked_at = self._step
        activity = activity_of(pid) if lasts else own_activity_of(pid)
        sight = self._lookout.look(self._step, activity, asyncio.get_running_loop().time())
        if self._step is None and sight.still_s > limit_s:
            self._kill()
            sight = replace(sight, ended=f"the engine process was stopped for longer than {limit_s:g} s")
        else:
            self._look_later()
        if self._seen is not None:
            self._seen(sight)

    async def _ask(self, message: bytes, timeout_s: float, what: str) -> ModelLoaded | Done:
        assert self._transport is not None, "load() has not been called"
        expected = self._frames.expect()
        self._transport.write(message)
        try:
            answer = await asyncio.wait_for(expected, timeout_s)
        except TimeoutError as error:
            self._kill()
            raise TandemError("engine_failed", f"{what} took longer than {timeout_s:g} s") from error
        except ConnectionError as error:
            raise TandemError("engine_failed", f"{await self._how_it_ended()} during {what}") from error
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    async def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = await asyncio.wait_for(self._process.wait(), _CLOSE_S)
        except TimeoutError:
            self._kill()
            return "the engine process closed its connection"
        if status < 0:
            return f"the engine process was ended by {signal.Signals(-status).name}"
        return f"the engine process ended with status {status}"

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """End the process: politely by closing the connection, then by force."""
        if self._next_look is not None:
            self._next_look.cancel()
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _CLOSE_S)
            except TimeoutError:
                self._kill()
                await self._process.wait()
        if self._prepared is not None:
            self._prepared.memory.close()


def _environment(inherited: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment of the child process. It sets the thread count, because OpenMP reads that before torch can be
    told.

    The path makes the child run this very package, wherever it was imported from.
    """
    home = str(Path(tandem.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (home, inherited.get("PYTHONPATH", "")) if part)
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
