"""One server process of the lab: started, waited for, stopped; the kernel kills it when the tests die."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_STOP_S = 10.0
_LOOK_S = 0.05
_LAST_LINES = 15
# The kernel takes the death of the thread that started a process for that of the parent: one thread for all of them.
_STARTER = ThreadPoolExecutor(1, "starter")


class Server:
    """A program with its log file. It may be started again after it was stopped."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = _STARTER.submit(
                subprocess.Popen,
                ["setpriv", "--pdeathsig", "KILL", "--", *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            ).result()

    def wait_until(self, ready: Callable[[], bool], bound_s: float) -> None:
        """Raises RuntimeError, with the end of the log, when it ends first or is not ready in time."""
        until = time.monotonic() + bound_s
        while not ready():
            if not self.running:
                raise RuntimeError(f"{self.name} ended:\n{self.tail()}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} was not ready within {bound_s:.0f} s:\n{self.tail()}")
            time.sleep(_LOOK_S)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal it, wait, then kill what is left of its group."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        self._process = None

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LAST_LINES:])
