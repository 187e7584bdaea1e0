"""Changes that `tandem scale` asks of a platform on Ray, through the control socket of `tandem up --on ray`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn, Protocol

from tandem.apps.cli.operations import Change, DrainedWorker, Say, check_bound
from tandem.apps.cli.registry import MemberEntry, PlatformEntry
from tandem.core.clock import Clock
from tandem.core.errors import TandemError

_LOOK_S: Final = 0.25


class ScaledPlatform(Protocol):
    """What a change needs of a platform."""

    @property
    def name(self) -> str: ...

    async def entry(self) -> PlatformEntry: ...

    async def scale(self, counts: dict[str, int]) -> None: ...


class RayOperations:
    """One change runs at a time; the next waits. `start_s` bounds the start of workers, in seconds."""

    def __init__(self, platform: ScaledPlatform, clock: Clock, start_s: float) -> None:
        self._platform = platform
        self._clock = clock
        self._start_s = start_s
        self._lock = asyncio.Lock()

    async def scale(self, wanted: Mapping[str, int], within_s: float, say: Say) -> Change:
        """Have Serve start and drain workers until every pool named has as many as wanted. Which ones leave is
        Serve's choice; each drains for at most its pool's `drainSeconds`. Raises `not_found`, `invalid_request`,
        `deadline_exceeded`."""
        check_bound(within_s)
        async with self._lock:
            before = await self._workers()
            await self._platform.scale(dict(wanted))
            seen = dict(before)
            began = self._clock.now()
            gone_at: dict[str, float] = {}
            try:
                async with asyncio.timeout(self._start_s + within_s):
                    while True:
                        now = await self._workers()
                        _tell(seen, now, say)
                        gone_at |= {name: self._clock.now() for name in before.keys() - now.keys() - gone_at.keys()}
                        if self._settled(now, wanted):
                            break
                        seen = now
                        await asyncio.sleep(_LOOK_S)
            except TimeoutError:
                raise TandemError("deadline_exceeded", f"not there within {self._start_s + within_s:g} s") from None
            left = tuple(DrainedWorker(name, at - began, True) for name, at in sorted(gone_at.items()))
            return Change(tuple(sorted(now.keys() - before.keys())), left, None, tuple(sorted(now)))

    async def drain(self, name: str, within_s: float, remove: bool, say: Say) -> Change:
        """Raises `not_allowed`: Serve alone chooses which worker leaves."""
        _refuse(name)

    async def _workers(self) -> dict[str, MemberEntry]:
        members = (await self._platform.entry()).members
        return {each.name: each for each in members if each.service == self._platform.name and each.rank == 0}

    def _settled(self, now: Mapping[str, MemberEntry], wanted: Mapping[str, int]) -> bool:
        for pool, count in wanted.items():
            states = [each.state for each in now.values() if each.pool == pool]
            if states.count("ready") != count or len(states) != count:
                return False
        return True


def _tell(before: Mapping[str, MemberEntry], now: Mapping[str, MemberEntry], say: Say) -> None:
    for name, each in now.items():
        if name not in before or before[name].state != each.state:
            say(f"{name} is {each.state}")
    for name in before.keys() - now.keys():
        say(f"{name} has ended")


def _refuse(name: str) -> NoReturn:
    problem = f"{name}: on Ray, Serve chooses which worker leaves; use `tandem scale POOL=COUNT`"
    raise TandemError("not_allowed", problem, param="drain")


async def publishing(
    entry: Callable[[], Awaitable[PlatformEntry]], publish: Callable[[PlatformEntry], None], every_s: float, say: Say
) -> None:
    """Give every new entry to `publish`, until cancelled. A hub that is away changes nothing; what else goes wrong is
    said, once."""
    said = set[str]()
    while True:
        try:
            publish(await entry())
        except TandemError as error:
            if error.code != "link_lost" and error.message not in said:
                said.add(error.message)
                say(f"`tandem scale` sees what was here before: {error.message}")
        await asyncio.sleep(every_s)
