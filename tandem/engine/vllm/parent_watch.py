"""Ends vLLM's engine process when the worker is gone, however early in its life that is.

vLLM's process first imports for seconds and then waits for its worker for minutes; only after that do plugins run.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from typing import Any, Final

_LOOK_S: Final = 0.5


@contextmanager
def watched_spawns() -> Iterator[None]:
    """Processes that `multiprocessing` spawns from here meanwhile end within a second of this one."""
    command_line = spawn.get_command_line

    def watched(**given: Any) -> list[str]:
        argv = command_line(**given)
        program = argv.index("-c") + 1
        argv[program] = f"from {__name__} import end_with; end_with({os.getpid()}); {argv[program]}"
        return argv

    spawn.get_command_line = watched
    try:
        yield
    finally:
        spawn.get_command_line = command_line


def end_with(parent: int) -> None:
    """Make this process exit once it is no longer the child of process `parent`.

    The kernel's own signal does not suffice: the kernel sends it when the *thread* ends that started the process.
    """
    threading.Thread(target=_watch, args=(parent,), name="tandem-worker", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
