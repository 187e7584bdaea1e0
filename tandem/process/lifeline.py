"""`python -m tandem.process.lifeline MODULE flags…`: runs a module as a program that ends when its stdin ends.

The process that starts it holds the other end of a pipe and never writes. However that process ends, the kernel
closes its end and kills the child with its process group, stopped processes included (a signal of the pipe, F_SETSIG
in `fcntl(2)`). Unlike `tandem.process.parent_death` this neither depends on which thread has started the child, nor
leaves its children behind, nor runs Python between fork and exec, which a parent of many threads should not do. Where
a kernel knows no such signal, a thread of the child waits for the end of the pipe.
"""

import fcntl
import os
import runpy
import signal
import sys
import threading
from typing import Final

_READ_BYTES: Final = 4096


def main() -> None:
    """Run the module that the command line names, as `python -m` does; its exit status is the process's.

    Exits with status 2 without a module.
    """
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m tandem.process.lifeline MODULE [flags…]\n")
        raise SystemExit(2)
    pipe = _take_standard_input()
    if sys.platform == "linux":
        _let_the_kernel_kill(pipe)
    # It also sees a pipe that had ended before the kernel was asked.
    threading.Thread(target=_end_with, args=(pipe,), daemon=True, name="lifeline").start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _take_standard_input() -> int:
    """A descriptor of the pipe that children of this process do not inherit; they read nothing from theirs."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return pipe


def _let_the_kernel_kill(pipe: int) -> None:
    """Ask for SIGKILL for this process's group, or for the process alone where it leads none, when `pipe` ends."""
    own = os.getpid()
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -own if os.getpgrp() == own else own)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with(pipe: int) -> None:
    """Kill this process and, where it leads one, its group, as soon as no writer of `pipe` is left."""
    while os.read(pipe, _READ_BYTES):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
