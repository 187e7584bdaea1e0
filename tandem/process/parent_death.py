"""Children that never outlive their parent: on Linux the kernel kills them when it dies, however that happened.

SIGKILL ends a stopped process, too, which reads no end-of-file and looks at nothing by itself.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> Callable[[], None] | None:
    """A function that a child of process `parent` runs before its program: it asks the kernel for SIGKILL when the
    parent is gone.

    The kernel sends the signal when the *thread* that started the child ends, so that thread has to stay for as long
    as the child is wanted. None where the kernel has no such signal.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
