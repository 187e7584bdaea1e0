"""How long a request goes on without a listener: drawn lives of resumable requests against a table of leases."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from router.dispatch.answer_log import AnswerLog
from router.dispatch.resumables import Resumables
from router.fleet.peer import Peer
from router.generation import Generation, RequestStatus, Running, Usage
from router.settings import RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tests.unit.router.dispatch.test_resume import Sink
from tests.worlds.router_world import World

LEASE_S = RouterSettings().deadlines.resumable_lease_s
NAMES = ("a", "a", "b")
TAKEN, WAITS = ("lose", "lose the one before"), ("wait", "wait", "wait")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (*("begin", "begin unheard", "listen", "leave", "leave late", "end", "fail"), *TAKEN, *WAITS)
        ),
        st.sampled_from(NAMES),
        st.sampled_from((0.2, 0.5, 0.9, 1.1)),
    ),
    min_size=4,
    max_size=24,
)


@dataclass
class Asked:
    """A running request, as resumables see it, with what a reader of the rules expects of it."""

    generation: Generation
    log: AnswerLog
    cancelled: list[str] = field(default_factory=list)
    ends: float | None = None
    """When it is given up."""
    known: bool = True
    listening: Running | None = None
    left: Running | None = None
    """A connection that is not the latest one."""

    def standing(self) -> RequestStatus:
        return RequestStatus("decode", "p1", "d1", 1, 1)

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)

    def failed_on(self, peer: Peer) -> bool:
        raise AssertionError(f"nobody asks of {peer}")


class Lives:
    """Requests of two names on a real loop, and the table."""

    def __init__(self, loop: VirtualLoop, world: World) -> None:
        self.loop = loop
        self.world = world
        self.table = Resumables(world.dispatcher._tools)
        self.latest: dict[str, Asked] = {}
        self.all: list[Asked] = []

    def begin(self, name: str, *, heard: bool) -> None:
        if (before := self.latest.get(name)) is not None and before.known:
            before.known, before.ends = False, self.loop.time()
        sink = Sink() if heard else None
        generation = msgspec.structs.replace(self.world.generation(), request_id=name)
        asked = Asked(generation, AnswerLog(generation, sink))
        found = self.table.add(asked, asked.log)
        if sink is not None:
            asked.listening = found.listen(Sink(), (0,))
        else:
            asked.ends = self.loop.time() + LEASE_S
        self.latest[name] = asked
        self.all.append(asked)

    def step(self, what: str, name: str) -> None:
        asked = self.latest.get(name)
        if what.startswith("begin"):
            self.begin(name, heard=what == "begin")
            return
        if what == "lose the one before":
            for other in self.all:
                if other is not asked and not other.known and not other.log.ended:
                    other.log.failed(TandemError("taken_over", "another router has it"))
            return
        if asked is None or not asked.known:
            return
        found = self.table.find(asked.generation.tenant, name)
        assert found is not None
        now, ended = self.loop.time(), asked.log.ended
        match what:
            case "listen":
                asked.left = asked.listening
                asked.listening = found.listen(Sink(), (0,))
                if not ended:
                    asked.ends = None
            case "leave" if asked.listening is not None:
                asked.listening.cancel("its connection broke")
                if not ended:
                    asked.ends = now + LEASE_S if asked.ends is None else asked.ends
            case "leave late" if asked.left is not None:
                asked.left.cancel("its exchange has ended")
            case "end" | "fail" if not ended:
                if what == "fail":
                    asked.log.failed(TandemError("link_lost", "drawn"))
                else:
                    asked.log.done(Usage(1, 0, 0))
                asked.ends = now + LEASE_S
            case "lose" if not ended:
                asked.log.failed(TandemError("taken_over", "another router has it"))
                asked.known, asked.ends = False, None
            case _:
                pass

    def check(self) -> None:
        now = self.loop.time()
        for asked in self.all:
            if asked.ends is not None and asked.ends <= now:
                asked.known = False
                assert len(asked.cancelled) == 1, "it is given up, once"
            else:
                assert not asked.cancelled
        known = {(asked.generation.tenant, asked.generation.request_id) for asked in self.all if asked.known}
        assert {(one.generation.tenant, one.generation.request_id) for one in self.table.all()} == known
        assert len(self.table) == len(known)


def lived(steps: list[tuple[str, str, float]]) -> Callable[[VirtualLoop], Coroutine[Any, Any, None]]:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings())
        lives = Lives(loop, world)
        for what, name, share in steps:
            if what == "wait":
                await asyncio.sleep(share * LEASE_S)
            else:
                lives.step(what, name)
            lives.check()
        for _ in range(9):
            await asyncio.sleep(LEASE_S / 8)
            lives.check()

    return main


@given(STEPS)
@example([("begin", "a", 0.5), ("end", "a", 0.5), ("wait", "a", 0.5), ("leave", "a", 0.5)])
@example([("begin", "a", 0.5), ("fail", "a", 0.5), ("wait", "a", 1.1)])
@example([("begin", "a", 0.5), ("lose", "a", 0.5), ("wait", "a", 1.1)])
@example([("begin unheard", "a", 0.5), ("begin", "a", 0.5), ("wait", "a", 1.1)])
@example([("begin unheard", "a", 0.5), ("wait", "a", 0.9), ("listen", "a", 0.5), ("wait", "a", 1.1)])
def test_a_request_without_a_listener_ends_after_its_lease_and_no_other(steps: list[tuple[str, str, float]]) -> None:
    """However clients come, leave, return and leave again with an older connection, and however requests end. What
    another router has taken over is not cancelled here."""
    run(lived(steps), limit_s=100_000.0)
