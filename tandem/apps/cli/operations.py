"""Carries out changes to a running platform, one at a time, and reports their progress."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tandem.apps.cli.member import Member
from tandem.apps.cli.scaling import Start, check_leaving, scaling, worker_called
from tandem.apps.cli.supervisor import Supervisor
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.spec.pool import Pool

Say = Callable[[str], None]

WITHIN_MAX_S: Final = 3600.0
_TELL_EVERY_S: Final = 0.2


class DrainedWorker(msgspec.Struct, frozen=True):
    """A worker that has drained. Attempts `finished` there, were `taken` back by the router (moved to another worker,
    or cancelled by their clients) or `cut` off at the bound; None when the worker could not say."""

    name: str
    took_s: float
    removed: bool
    finished: int | None = None
    taken: int | None = None
    cut: int | None = None


class Change(msgspec.Struct, frozen=True):
    """The result of a change. `moved` counts the streams that the router moved from one worker to another meanwhile,
    None when it did not answer; `workers` are those that run now."""

    started: tuple[str, ...]
    left: tuple[DrainedWorker, ...]
    moved: int | None
    workers: tuple[str, ...]


@dataclass(frozen=True)
class OperationsDeps:
    """What a change needs of the platform: its pools, how to describe one more worker, how to wait until the router
    can use every worker, and how many streams the router has moved so far."""

    pools: Sequence[Pool]
    make: Callable[[Pool, int], Member]
    linked: Callable[[], Awaitable[None]]
    moved: Callable[[], Awaitable[int | None]]
    start_s: float


class Operations:
    """One change runs at a time; the next waits. What a change needs is bounded, so that wait is, too."""

    def __init__(self, supervisor: Supervisor, platform: OperationsDeps, clock: Clock) -> None:
        self._supervisor = supervisor
        self._platform = platform
        self._clock = clock
        self._lock = asyncio.Lock()

    async def scale(self, wanted: Mapping[str, int], within_s: float, say: Say) -> Change:
        """Start and drain workers until every pool named has as many as wanted. New ones come first, so that streams
        of the old can move there. Raises `bad_setting`, `engine_failed`, `deadline_exceeded`."""
        check_bound(within_s)
        async with self._one_at_a_time(say):
            plan = scaling(self._platform.pools, self._supervisor.members, wanted)
            before = await self._platform.moved()
            started = await asyncio.gather(*(self._start(start, say) for start in plan.start), return_exceptions=True)
            for failed in started:
                if isinstance(failed, BaseException):
                    raise failed
            if started:
                await self._linked()
            leaving = [member for member in self._supervisor.members if member.name in plan.leave]
            left = await asyncio.gather(*(self._leave(member, within_s, True, say) for member in leaving))
            return await self._change(tuple(str(name) for name in started), tuple(left), before)

    async def drain(self, name: str, within_s: float, remove: bool, say: Say) -> Change:
        """Let a worker leave; a new life of it follows unless it is removed. Raises `not_found`, `bad_setting`."""
        check_bound(within_s)
        async with self._one_at_a_time(say):
            member = worker_called(self._supervisor.members, name)
            if remove:
                check_leaving(self._supervisor.members, (name,))
            before = await self._platform.moved()
            left = await self._leave(member, within_s, remove, say)
            return await self._change((), (left,), before)

    def use(self, pools: Sequence[Pool], make: Callable[[Pool, int], Member]) -> None:
        """The platform's pools are these from now on."""
        self._platform = replace(self._platform, pools=pools, make=make)

    @asynccontextmanager
    async def alone(self, say: Say) -> AsyncIterator[None]:
        """Nothing else changes the platform meanwhile."""
        async with self._one_at_a_time(say):
            yield

    @asynccontextmanager
    async def _one_at_a_time(self, say: Say) -> AsyncIterator[None]:
        if self._lock.locked():
            say("another change is under way; waiting for its end")
        async with self._lock:
            yield

    async def _start(self, start: Start, say: Say) -> str:
        member = self._platform.make(start.pool, start.index)
        say(f"{member.name} starts")
        await self._supervisor.add(member, self._platform.start_s)
        say(f"{member.name} is ready")
        return member.name

    async def _linked(self) -> None:
        try:
            async with asyncio.timeout(self._platform.start_s):
                await self._platform.linked()
        except TimeoutError:
            raise TandemError(
                "deadline_exceeded", "the router has no link to the workers that were started"
            ) from None

    async def _leave(self, member: Member, within_s: float, remove: bool, say: Say) -> DrainedWorker:
        began = self._clock.now()
        say(f"{member.name} drains, for at most {within_s:g} s")
        telling = asyncio.create_task(_tell(member, say), name=f"tell of {member.name}")
        try:
            await self._supervisor.leave(member, within_s, remove=remove)
        finally:
            telling.cancel()
        took_s, told = self._clock.now() - began, member.farewell
        if told is None:
            return DrainedWorker(member.name, took_s, remove)
        return DrainedWorker(member.name, took_s, remove, told.finished, told.taken, told.cut)

    async def _change(self, started: tuple[str, ...], left: tuple[DrainedWorker, ...], before: int | None) -> Change:
        after = await self._platform.moved()
        moved = None if before is None or after is None else max(0, after - before)
        workers = tuple(member.name for member in self._supervisor.members[1:])
        return Change(started, left, moved, workers)


def check_bound(within_s: float) -> None:
    """Raises `bad_setting`."""
    if not 0 <= within_s <= WITHIN_MAX_S:
        problem = f"within_s is {within_s:g}, not between 0 and {WITHIN_MAX_S:g}"
        raise TandemError("bad_setting", problem, param="within_s")


async def _tell(member: Member, say: Say) -> None:
    """Say what the worker still holds whenever that changes, until cancelled."""
    said = member.note
    while True:
        if member.state == "draining" and member.note != said:
            said = member.note
            say(f"{member.name} {said or 'holds nothing any more'}")
        await asyncio.sleep(_TELL_EVERY_S)
