"""One round: load, a request caught in the stage, a blow, and everything that has to be right afterwards."""

import asyncio
from collections.abc import Sequence
from typing import Final

from tandem.apps.chaos.client import LEAVES, PLAIN, RESUMES
from tandem.apps.chaos.drill.abusers import Abusers
from tandem.apps.chaos.drill.catch import Caught, catch
from tandem.apps.chaos.drill.cells import Cell, victim
from tandem.apps.chaos.drill.injection import Injection, effective_within, inject
from tandem.apps.chaos.drill.load import Load
from tandem.apps.chaos.drill.metrics import router_linked, scrape_worker, workers_of
from tandem.apps.chaos.drill.recovery import blocks_left
from tandem.apps.chaos.drill.result import Round
from tandem.apps.chaos.drill.session import Session
from tandem.apps.chaos.judge import Discrepancies, judge
from tandem.apps.chaos.response import BROKEN, DONE, REFUSED, ReceivedAnswer
from tandem.apps.cli.registry import find

_TOLD_MAX: Final = 5
_RETURNING: Final = (RESUMES, RESUMES, RESUMES, LEAVES)
_LOOK_S: Final = 0.02
_REFUSED_WITHIN_S: Final = 3.0


class Drill:
    """Runs one round. `number` counts the rounds of a cell from 0."""

    def __init__(self, session: Session, cell: Cell, number: int) -> None:
        self._session = session
        self._cell = cell
        self._number = number
        self._returning = cell.kind == "restart-router" and number % 2 == 1
        """Whether clients ask for resumable streams; most of them come back."""
        self._orphans = cell.kind == "restart-router" and not self._returning
        """Whether no client returns to its stream, so that what workers held has to be free at once."""
        manners = _RETURNING if self._returning else (PLAIN,)
        self._abusers = Abusers(session.target, session.model)
        self._load = Load(session.caller, session.shapes.load, 5 * number, manners, self._abusers)
        self._problems: list[str] = []

    async def run(self) -> Round:
        """Raises `engine_failed` when the blow could not even be struck, `not_found` when the platform is gone."""
        bounds, session = self._session.bounds, self._session
        self._load.stream(bounds.streams)
        self._abusers.begin(bounds.abusers, self._number * bounds.abusers)
        try:
            if self._orphans:
                await self._load.begin(session.shapes.orphan)
            await asyncio.sleep(bounds.warm_s)
            caught = await catch(self._cell.stage, self._load, session.shapes, session.caller, bounds.end_s)
            platform = find(session.url)
            struck = victim(self._cell, self._number, caught.standing, platform.members)
            refused = await self._refused(struck.name)
            blow = inject(self._cell.kind, struck, platform)
            since_s = await self._consequences(blow, refused)
            recovering = session.recovery.whole(since_s, bounds.recover_s, struck.pid if blow.kills else None)
            recovery_s, _ = await asyncio.gather(recovering, self._load.ended())
        except BaseException:
            await self._load.abandon()
            raise
        if recovery_s is None:
            missing = session.recovery.missing
            self._problems.append(f"the platform was not whole within {bounds.recover_s:g} s: {missing}")
        return await self._judged(caught, blow, recovery_s)

    # -- the blow and what has to follow from it --

    async def _consequences(self, blow: Injection, refused_before: float) -> float:
        """Wait until the blow has had its effect; gives the time from which recovery counts."""
        now = asyncio.get_running_loop().time
        match self._cell.kind:
            case "restart-router":
                self._load.stop()
                if self._orphans:
                    await self._orphans_freed()
            case "freeze-decode":
                await self._frozen(blow)
                return now()
            case "cut-link" | "corrupt-kv":
                if not await effective_within(blow, self._session.bounds.land_s):
                    self._problems.append(f"{blow.victim.name} did not carry out the fault: nothing was tried")
                elif self._cell.kind == "corrupt-kv":
                    await self._damage_found(blow, refused_before)
        await asyncio.sleep(max(0.0, blow.at_s + self._session.bounds.after_s - now()))
        self._load.stop()
        return blow.at_s

    async def _orphans_freed(self) -> None:
        """A dead router's clients are gone, so everything workers held for it has to be free at once."""
        held, _ = await blocks_left(self._session.url, self._session.bounds.orphans_s)
        if held:
            self._problems.append(f"after the router's death {_sentence(held)}")

    async def _frozen(self, blow: Injection) -> None:
        """Let it stand still until its time is over; the router has to have noticed by then."""
        loop, bounds = asyncio.get_running_loop(), self._session.bounds
        members, noticed = find(self._session.url).members, False
        try:
            while loop.time() < blow.at_s + bounds.freeze_s:
                noticed = noticed or await router_linked(members) < len(workers_of(members))
                if loop.time() > blow.at_s + bounds.after_s:
                    self._load.stop()
                await asyncio.sleep(_LOOK_S)
        finally:
            blow.thaw()
        if not noticed:
            self._problems.append(f"in {bounds.freeze_s:g} s the router did not notice that a worker was frozen")

    async def _damage_found(self, blow: Injection, refused_before: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REFUSED_WITHIN_S
        while await self._refused(blow.victim.name) <= refused_before:
            if loop.time() > deadline:
                self._problems.append(f"{blow.victim.name} did not refuse the damaged block")
                return
            await asyncio.sleep(_LOOK_S)

    async def _refused(self, name: str) -> float:
        """Pulled blocks that a worker did not use, over its life; 0 of the router."""
        if self._cell.kind != "corrupt-kv":
            return 0.0
        page = await scrape_worker(find(self._session.url).member(name))
        return page.blocks_refused if page is not None else 0.0

    # -- judging --

    async def _judged(self, caught: Caught, blow: Injection, recovery_s: float | None) -> Round:
        heard = [*self._load.heard, *self._session.recovery.take_probes()]
        faults = self._faults(heard)
        bounds = self._session.bounds
        kept_s = bounds.lease_s if self._returning else 0.0
        held, release_s = await blocks_left(self._session.url, bounds.release_s + kept_s)
        if held:
            self._problems.append(f"{release_s:.1f} s after the last request had ended {_sentence(held)}")
        if self._abusers.problem():
            self._problems.append(self._abusers.problem())
        answered = [each for each in heard if each.end == DONE]
        return Round(
            kind=self._cell.kind,
            stage=self._cell.stage,
            victim=blow.victim.name,
            requests=len(heard),
            misuses=self._abusers.answered.total(),
            lost=faults.lost,
            duplicated=faults.duplicated,
            wrong=faults.wrong,
            without_end=faults.without_end,
            broken=sum(each.end in (BROKEN, REFUSED) for each in heard),
            resumed=sum(each.resumed for each in heard),
            longest_pause_s=max((each.longest_pause_s(blow.at_s) for each in answered), default=0.0),
            recovery_s=recovery_s,
            blocks_leaked=sum(count or 0 for count in held.values()),
            release_s=release_s,
            missed=caught.missed,
            problems=tuple(self._problems),
        )

    def _faults(self, heard: Sequence[ReceivedAnswer]) -> Discrepancies:
        may_break = self._cell.kind == "restart-router"
        each = [judge(one, self._session.rights[one.ask.name], may_break) for one in heard]
        told = [one.why for one in each if one.why]
        self._problems += told[:_TOLD_MAX]
        if len(told) > _TOLD_MAX:
            self._problems.append(f"and {len(told) - _TOLD_MAX} more requests")
        return sum(each, Discrepancies())


def _sentence(held: dict[str, int | None]) -> str:
    parts = [
        f"{name} does not tell its blocks" if count is None else f"{name} holds {count} blocks"
        for name, count in held.items()
    ]
    return ", ".join(parts)
