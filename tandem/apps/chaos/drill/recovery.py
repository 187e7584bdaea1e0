"""Waiting until a platform is whole again, and until nothing is held any more."""

import asyncio
from dataclasses import dataclass
from typing import Final

from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.drill.metrics import router_linked, scrape_worker, workers_of
from tandem.apps.chaos.judge import ExpectedAnswer, judge
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import ReceivedAnswer
from tandem.apps.cli.registry import PlatformEntry, find

_LOOK_S: Final = 0.05
_SLOWER: Final = 3.0
_SLOWER_S: Final = 0.5


@dataclass(frozen=True)
class Probe:
    """A request that is answered in `usual_s` when all is well."""

    ask: ChaosRequest
    right: ExpectedAnswer
    usual_s: float

    @property
    def at_most_s(self) -> float:
        return max(_SLOWER * self.usual_s, self.usual_s + _SLOWER_S)


class RecoveryWatch:
    """Watches one platform recover. After each look, `missing` says what the recovery still waited for."""

    def __init__(self, url: str, caller: ChaosClient, probe: Probe) -> None:
        self._url = url
        self._probes: list[ReceivedAnswer] = []
        self._caller = caller
        self._probe = probe
        self.missing = ""

    async def whole(self, since_s: float, within_s: float, not_pid: int | None) -> float | None:
        """Seconds from `since_s` (loop clock) until every process is ready, linked, and a request is served as
        usual; None when that takes longer than `within_s`. `not_pid` is a process that has to be replaced."""
        loop = asyncio.get_running_loop()
        while True:
            self.missing = await self._look(not_pid)
            now = loop.time()
            if not self.missing:
                return now - since_s
            if now - since_s > within_s:
                return None
            await asyncio.sleep(_LOOK_S)

    def take_probes(self) -> list[ReceivedAnswer]:
        """The responses to requests sent since the last call to see whether requests are served."""
        probes, self._probes = self._probes, []
        return probes

    async def _look(self, not_pid: int | None) -> str:
        platform = find(self._url)
        for member in platform.members:
            if member.state != "ready" or member.pid is None or member.pid == not_pid:
                return f"{member.name} is {member.state}"
        workers = len(workers_of(platform.members))
        linked = await router_linked(platform.members)
        if linked < workers:
            return f"the router has links to {linked} of {workers} workers"
        return await self._serves()

    async def _serves(self) -> str:
        heard = await self._caller.ask(self._probe.ask, self._probes.append)
        faults = judge(heard, self._probe.right, may_break=False)
        if faults.why:
            return f"a request was not served: {faults.why}"
        took_s = (heard.ended_s or 0.0) - heard.sent_s
        usual = f"it takes {self._probe.usual_s:.2f} s when all is well"
        return f"a request took {took_s:.2f} s; {usual}" if took_s > self._probe.at_most_s else ""


async def blocks_held(platform: PlatformEntry) -> dict[str, int | None]:
    """Blocks in use or leased, by worker, for the workers that hold any; None for a worker that does not report its
    blocks."""
    held: dict[str, int | None] = {}
    for member in workers_of(platform.members):
        page = await scrape_worker(member)
        count = None if page is None else round(max(page.blocks_used, page.blocks_exported))
        if count != 0:
            held[member.name] = count
    return held


async def blocks_left(url: str, within_s: float) -> tuple[dict[str, int | None], float]:
    """Wait until no worker holds a block; gives what is held at the end of the time, and the seconds it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        held = await blocks_held(find(url))
        took_s = loop.time() - began
        if not held or took_s > within_s:
            return held, took_s
        await asyncio.sleep(_LOOK_S)
