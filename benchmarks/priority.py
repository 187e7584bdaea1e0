"""Measuring beside other work: Linux shares cores among sessions, and those that are measured can get a large part.

Two sides of a contest have unlike numbers of sessions. Theirs weigh the same together, so that neither gets more of a
busy machine than the other.
"""

import contextlib
import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import psutil

_NICEST: Final = -19
_STEP: Final = 1.25
"""By how much a level of niceness changes the weight of a session."""


def level_of(sessions: int) -> int:
    """The niceness at which so many sessions weigh together as much as one at the highest priority."""
    return _NICEST + round(math.log(sessions, _STEP))


def prefer(pids: Iterable[int]) -> None:
    """Give the sessions of these processes, which are one side, the highest priority together.

    Raises `RuntimeError` where that is not allowed, or where Linux does not group processes by session.
    """
    leaders = {os.getsid(pid): pid for pid in pids}
    for pid in leaders.values():
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(level_of(len(leaders))), encoding="ascii")
        except OSError as error:
            raise RuntimeError(f"--priority: process {pid} cannot be preferred ({error}); it takes root") from error


def keep_to(pids: Iterable[int], cores: Collection[int]) -> None:
    """These processes, with all their threads of now and later, run on these cores alone."""
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)
