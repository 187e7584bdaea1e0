"""Engines that share a GPU start one after the other: files are locked meanwhile, one per GPU."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from tandem.core.errors import TandemError

_LOOK_S: Final = 0.2


@asynccontextmanager
async def hold_start_locks(paths: Sequence[str], within_s: float, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold all the locks inside the block. The kernel releases those of a process that dies.

    Every process takes the locks in the same order, so no circular wait arises. Raises `engine_failed` when a lock is
    not free within `within_s` seconds.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    with ExitStack() as held:
        for path in sorted(set(paths)):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, descriptor)
            told = False
            while not _locked(descriptor):
                if not told:
                    say("another worker on the same GPU starts first")
                    told = True
                if asyncio.get_running_loop().time() >= deadline:
                    problem = f"another worker on the same GPU was still starting after {within_s:g} s ({path})"
                    raise TandemError("engine_failed", problem)
                await asyncio.sleep(_LOOK_S)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
