"""A cluster in memory whose clients die: before any of their writes, and without a word."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from tandem.core.errors import TandemError
from tandem.kube.cluster import NotFound, Selector, WatchEvent
from tandem.kube.kinds import Json, Kind, Ref, ref_of
from tandem.kube.memory_cluster import MemoryCluster
from tests.worlds.loop_clock import LoopClock

_TOLD_S = 0.5
"""How long watches of a kind that goes last."""


class Crashed(Exception):
    """The operator's process is gone."""


class CrashingCluster(MemoryCluster):
    """Dies before one of the writes of the operator. `lacks` are kinds that are not installed."""

    def __init__(self, clock: LoopClock, lacks: frozenset[Kind] = frozenset()) -> None:
        super().__init__(clock)
        self.writes_left: int | None = None
        self.asked = 0
        """Write requests of the operator, whether they changed something or not."""
        self.lacks = lacks
        self.refused: frozenset[Kind] = frozenset()
        """Kinds of which a quota allows no object."""
        self.seen: Callable[[], None] = lambda: None

    async def remove_kind(self, kind: Kind) -> None:
        """As a server does whose definition of it is deleted: no more objects are taken, those there are go, which
        watches still tell, and then it is not known."""
        self.lacks |= {kind}
        for obj in self.objects(kind):
            await super().delete(ref_of(obj, kind))
        await asyncio.sleep(_TOLD_S)
        self.disconnect()

    async def list_page(self, selector: Any, limit: int, token: str | None = None) -> Any:
        self._know(selector.kind)
        return await super().list_page(selector, limit, token)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        self._know(selector.kind)
        async with aclosing(super().watch(selector, version)) as stream:
            async for event in stream:
                yield event

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        self._count()
        self._know(ref_of(obj).kind)
        if ref_of(obj).kind in self.refused:
            raise TandemError("not_allowed", "exceeded quota")
        answer = await super().apply(obj, manager, force=force)
        self.seen()
        return answer

    async def apply_status(self, obj: Json, manager: str) -> Json:
        if manager.startswith("tandem"):
            self._count()
        answer = await super().apply_status(obj, manager)
        self.seen()
        return answer

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        if uid is not None:
            self._count()
        await super().delete(ref, uid=uid, version=version)
        self.seen()

    def _know(self, kind: Kind) -> None:
        if kind in self.lacks:
            raise NotFound("there is no such kind")

    def _count(self) -> None:
        self.asked += 1
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                self.writes_left = None
                raise Crashed


def is_crash(error: BaseException) -> bool:
    """Whether that is all there is to an error."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_crash(each) for each in error.exceptions)
    return isinstance(error, Crashed)
