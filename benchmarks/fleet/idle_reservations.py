"""Parked hand-overs for which nothing comes give their room back when others wait for it.

The rules of `tandem.engine.scheduler.stalled_kv_loads`, without which prefill and decode workers with small pools
would wait for each other in a circle. Pure."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from benchmarks.fleet.worker_request import WorkerRequest

_ROOM_MADE_MAX: Final = 4
"""How often a job makes room at once."""


@dataclass(frozen=True)
class Shortage:
    """What the job that is next waits for: so many free tokens in all, or a place for one more."""

    job: WorkerRequest
    tokens: int


@dataclass(frozen=True)
class FreeCapacity:
    """What there is: free tokens, and places beyond those taken."""

    free: int
    places: int

    def enough(self, shortage: Shortage) -> bool:
        return self.places > 0 and self.free >= shortage.tokens


def idle_at(job: WorkerRequest, idle_s: float) -> float:
    """From when on a parked hand-over makes room for anybody: each idle turn makes the next twice as long."""
    return job.moved_s + idle_s * 2.0**job.idle_turns


def preempted_handoffs(
    parked: Collection[WorkerRequest],
    shortage: Shortage,
    room: FreeCapacity,
    idle_s: float,
    now: float,
    frees: Callable[[WorkerRequest], int],
) -> list[WorkerRequest]:
    """The parked hand-overs that give their room back now, the longest idle first, until whoever waits will fit;
    nobody when it would not fit even so. `frees` says how many tokens a job's end would free."""
    if room.enough(shortage):
        return []
    idle = [job for job in parked if job.handed_over and (now >= idle_at(job, idle_s) or _yields(job, shortage.job))]
    idle.sort(key=lambda job: idle_at(job, idle_s))
    given: list[WorkerRequest] = []
    for job in idle:
        given.append(job)
        room = FreeCapacity(room.free + frees(job), room.places + 1)
        if room.enough(shortage):
            return given
    return []


def next_look_s(parked: Collection[WorkerRequest], idle_s: float, now: float) -> float:
    """When the next of them becomes idle; infinity for never."""
    return min((at for job in parked if job.handed_over and (at := idle_at(job, idle_s)) > now), default=inf)


def _yields(job: WorkerRequest, other: WorkerRequest) -> bool:
    idle = not job.ready and job.untouched and job.room_made < _ROOM_MADE_MAX
    return idle and (other.ready or other.order < job.order)
