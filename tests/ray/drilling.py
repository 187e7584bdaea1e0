"""A platform on the stage that is struck under load: where its streams are, what is struck, and how it is judged."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from router.generation import RequestStatus
from tandem.apps.chaos.client import PLAIN, RESUMES, ChaosClient
from tandem.apps.chaos.drill.abusers import Abusers
from tandem.apps.chaos.drill.catch import is_in
from tandem.apps.chaos.drill.load import Load
from tandem.apps.chaos.drill.session import Session
from tandem.apps.chaos.judge import Discrepancies, judge
from tandem.apps.chaos.response import BROKEN, DONE, RUNNING, ReceivedAnswer
from tandem.apps.cli.registry import MemberEntry
from tandem.apps.cli.router_client import EndedStatus, fetch_status
from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HubClient
from tandem.core.errors import TandemError
from tandem.core.spans import Span
from tests.ray.asking import eventually, listed

_log = logging.getLogger(__name__)

STREAMS: Final = 30
WHOLE_S: Final = 240.0
_AT_ONCE: Final = 16
_TOLD_MAX: Final = 5


@dataclass(frozen=True)
class Held:
    """What is about to be struck: a stream whose prefill it computes now, and one whose tokens come from it. `live`
    are the streams of the moment, and `router` is which one has these two."""

    prefill: str
    decode: str
    router: str
    live: int


@dataclass(frozen=True)
class _Live:
    """A stream that runs, its router and its workers."""

    request_id: str
    router: str
    standing: RequestStatus


class Drilled:
    """The platform: a service with pools `prefill` and `decode` that the hub serves on the stage."""

    def __init__(self, hub: HubClient, session: Session) -> None:
        self.hub = hub
        self.session = session
        self._askers: dict[str, ChaosClient] = {}
        self._rounds = 0

    async def aclose(self) -> None:
        for each in self._askers.values():
            await each.aclose()

    # -- What there is --------------------------------------------------------------------------------------------

    async def members(self, *roles: str) -> list[MemberEntry]:
        """Processes of the platform, as the hub knows them."""
        entry = await self.hub.call("entry", within_s=WHOLE_S)
        return [each for each in entry.members if each.role in roles]

    async def whole(self, prefill: int = 2, decode: int = 2, revision: str | None = None) -> None:
        """Wait until two routers have links to exactly so many workers, all ready and of that revision, and Serve's
        ingress answers."""
        await eventually(lambda: self._is_whole({"prefill": prefill, "decode": decode}, revision), WHOLE_S)

    async def _is_whole(self, counts: dict[str, int], revision: str | None) -> bool:
        routers = await self.members("router")
        if [each.state for each in routers] != ["ready"] * 2:
            return False
        for router in routers:
            workers = await listed(target_of(router), "/v1/workers")
            roles = [each["role"] for each in workers if each["state"] == "ready"]
            fitting = all(each["revision"] == revision for each in workers) or revision is None
            if not fitting or {role: roles.count(role) for role in counts} != counts or len(workers) != len(roles):
                return False
        return bool(await listed(self.session.target, "/v1/models"))

    # -- Load -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def under_load(self, manner: str = PLAIN) -> AsyncIterator[Load]:
        """30 streams until the end of the block, which then waits for the end of every one."""
        self._rounds += 1
        abusers = Abusers(self.session.target, self.session.model)
        load = Load(self.session.caller, self.session.shapes.load, 5 * self._rounds, (manner,), abusers)
        load.stream(STREAMS)
        try:
            yield load
            await load.ended()
        except BaseException:
            await load.abandon()
            raise

    async def holding(self, load: Load, names: Collection[str], router: str | None = None) -> Held:
        """Wait until workers of these names hold the prefill of a live stream and the decode of a live stream, both
        of that router where one is given. It was so a few milliseconds ago."""

        async def look() -> Held | None:
            live = await self._live(load)
            of_router = [each for each in live if router in (None, each.router)]
            prefill = next((each for each in of_router if _prefills(each.standing, names)), None)
            decode = next((each for each in of_router if _decodes(each.standing, names)), None)
            if prefill is None or decode is None:
                return None
            # To ask for all takes a while: these two once more.
            again = [await self._askers[each.router].standing(each.request_id) for each in (prefill, decode)]
            if again[0] is None or again[1] is None:
                return None
            if not (_prefills(again[0], names) and _decodes(again[1], names)):
                return None
            return Held(prefill.request_id, decode.request_id, prefill.router, len(live))

        held: Held = await eventually(look, WHOLE_S)
        return held

    async def _live(self, load: Load) -> list[_Live]:
        routers = await self.members("router")
        for each in routers:
            if each.name not in self._askers:
                self._askers[each.name] = ChaosClient(target_of(each), self.session.model, "asks", 10.0)
        asked = [(heard, each) for heard in load.heard if heard.end == RUNNING for each in routers]
        found = await asyncio.gather(*(self._asked(heard.request_id, each.name) for heard, each in asked))
        return [each for each in found if each is not None]

    async def _asked(self, request_id: str, router: str) -> _Live | None:
        try:
            standing = await self._askers[router].standing(request_id)
        except OSError:
            return None
        return None if standing is None else _Live(request_id, router, standing)

    async def spans(self, heard: Sequence[ReceivedAnswer]) -> dict[str, tuple[Span, ...]]:
        """The story of each request, from the router that had it. A request that came to no router has none."""
        targets = [target_of(each) for each in await self.members("router")]
        limit = asyncio.Semaphore(_AT_ONCE)

        async def story(request_id: str) -> tuple[Span, ...]:
            found: tuple[Span, ...] = ()
            async with limit:
                for target in targets:
                    with suppress(TandemError):
                        status = await fetch_status(target, request_id)
                        assert isinstance(status, EndedStatus)
                        found += status.spans
            return found

        stories = await asyncio.gather(*(story(each.request_id) for each in heard))
        return {each.request_id: told for each, told in zip(heard, stories, strict=True)}

    async def asked_again(self, load: Load) -> int:
        """Ask once more what a dead router had not given to a worker yet, as clients do of which nothing was heard:
        their connection broke before the first event, and no router knows the request. Gives how many there were."""
        unheard = [
            one for one in load.heard if one.end == BROKEN and one.came_back and not one.finishes and not one.texts
        ]
        for one in unheard:
            load.heard[load.heard.index(one)] = await self.session.caller.ask(one.ask, manner=RESUMES)
        return len(unheard)

    # -- Judging --------------------------------------------------------------------------------------------------

    def judged(self, what: str, load: Load, held: object = "") -> None:
        """Every stream has ended with exactly its right answer."""
        rights = self.session.rights
        each = [judge(one, rights[one.ask.name], may_break=False) for one in load.heard]
        told = [one.why for one in each if one.why]
        faults = sum(each, Discrepancies())
        counts = (faults.lost, faults.duplicated, faults.wrong, faults.without_end)
        broken = [one for one in load.heard if one.end != DONE]
        resumed = sum(one.resumed for one in load.heard)
        seen = f"{len(load.heard)} requests, {resumed} came back, {len(broken)} broken"
        _log.info("%s: %s, lost, repeated, wrong, endless: %s; %s", what, seen, counts, held)
        assert not broken, "\n".join(f"{one.request_id} is {one.end}: {one.reason}" for one in broken[:_TOLD_MAX])
        assert counts == (0, 0, 0, 0), "\n".join(told[:_TOLD_MAX])


def target_of(router: MemberEntry) -> Target:
    """Its own port, beside the ingress."""
    host, _, port = router.address.rpartition(":")
    return Target(host, int(port), False, "")


def at(members: Sequence[MemberEntry], host: str) -> list[MemberEntry]:
    """Those on the node of that address."""
    return [each for each in members if each.address.startswith(f"{host}:")]


def names_of(members: Sequence[MemberEntry]) -> frozenset[str]:
    return frozenset(each.name for each in members)


async def ended(pids: Collection[int], within_s: float = 60.0) -> None:
    """Wait until no such process runs; one that nobody has waited for has ended, too."""

    async def look() -> bool:
        return not any(_runs(pid) for pid in pids)

    await eventually(look, within_s)


async def going_on(load: Load) -> None:
    """Wait until as many requests were begun as there are streams, each of which asks one after the other."""
    asked = len(load.heard)

    async def look() -> bool:
        return len(load.heard) >= asked + STREAMS

    await eventually(look, WHOLE_S)


def segments() -> list[str]:
    """KV memory of workers: of those that live, and what is shared by name."""
    found = [each.name for each in Path("/dev/shm").iterdir() if each.name.startswith("tandem")]
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if "memfd:tandem" in (target := os.readlink(link)):
                found.append(f"{link}: {target}")
    return found


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prefills(standing: RequestStatus, names: Collection[str]) -> bool:
    return standing.stage in ("prefill", "transfer") and standing.prefill in names


def _decodes(standing: RequestStatus, names: Collection[str]) -> bool:
    return is_in("decode", standing) and standing.decode in names
