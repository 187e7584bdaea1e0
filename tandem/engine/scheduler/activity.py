"""Reads what the system shows of a process: whether it runs, is stopped, and how much processor time it has used.

The source is /proc; where there is none, a process looks as if it were gone.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from tandem.engine.scheduler.stall_detection import Activity

_RUNNING: Final = frozenset("RD")


def activity_of(pid: int, apart: Iterable[int] = ()) -> Activity | None:
    """The activity of a process and its children, except those in `apart`, which are judged by themselves. None for a
    process that is gone."""
    left_out, ticks, running, own = frozenset(apart) - {pid}, 0, False, None
    for member in family_of(pid, left_out):
        for state, used in _threads(member):
            running = running or state in _RUNNING
            ticks += used
            if member == pid and own is None:
                own = state
    return None if own is None else Activity(own, running, ticks)


def family_of(pid: int, left_out: frozenset[int] = frozenset()) -> list[int]:
    """A process and all its descendants, but for those in `left_out` and below."""
    found, at = [pid], 0
    while at < len(found):
        for task in _tasks(found[at]):
            found += [child for child in _children(found[at], task) if child not in left_out]
        at += 1
    return found


def own_activity_of(pid: int) -> Activity | None:
    """The activity of a process's first thread alone, in one read; None for a process that is gone."""
    for state, ticks in _stats(f"/proc/{pid}/stat"):
        return Activity(state, state in _RUNNING, ticks)
    return None


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _children(pid: int, task: str) -> list[int]:
    """The children of one thread; none when the thread has ended meanwhile, while its siblings' children live on."""
    try:
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _threads(pid: int) -> list[tuple[str, int]]:
    """(state, ticks of processor time) of every thread."""
    return [found for task in _tasks(pid) for found in _stats(f"/proc/{pid}/task/{task}/stat")]


def _stats(path: str) -> list[tuple[str, int]]:
    """(state, ticks of processor time); nothing for what has ended meanwhile."""
    with contextlib.suppress(OSError, IndexError), open(path, encoding="ascii", errors="replace") as file:
        # The name before the last parenthesis may contain anything.
        fields = file.read().rpartition(")")[2].split()
        return [(fields[0], int(fields[11]) + int(fields[12]))]
    return []
