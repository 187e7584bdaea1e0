"""Leader election: at most one leads at any time, and when the leader goes another one follows."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.election import Election
from tandem.kube.kinds import LEASE, Json, Ref
from tandem.kube.lease import LeaseSettings
from tandem.kube.memory_cluster import MemoryCluster
from tests.worlds.loop_clock import LoopClock

SETTINGS = LeaseSettings("operator", "system")


@dataclass
class Line:
    """One candidate's own way to the API server, which can be cut, and can lose answers."""

    cluster: MemoryCluster
    cut: bool = False
    losing: bool = False

    async def get(self, ref: Ref) -> Json:
        self._pass()
        return await self.cluster.get(ref)

    async def create(self, obj: Json) -> Json:
        return await self._write(self.cluster.create, obj)

    async def update(self, obj: Json) -> Json:
        return await self._write(self.cluster.update, obj)

    async def _write(self, call, obj: Json) -> Json:  # type: ignore[no-untyped-def]
        self._pass()
        answer: Json = await call(obj)
        if self.losing:
            raise TandemError("link_lost", "the answer was lost")
        return answer

    def _pass(self) -> None:
        if self.cut:
            raise TandemError("link_lost", "the server cannot be reached")


@dataclass
class Candidates:
    """Processes that stand for election; one that loses its lead ends and is started anew."""

    loop: VirtualLoop
    cluster: MemoryCluster
    lines: list[Line] = field(default_factory=list)
    leading: dict[int, Election] = field(default_factory=dict)
    lives: int = 0

    def start(self, count: int) -> list[asyncio.Task[None]]:
        self.lines = [Line(self.cluster) for _ in range(count)]
        return [asyncio.create_task(self._live(number)) for number in range(count)]

    async def _live(self, number: int) -> None:
        while True:
            self.lives += 1
            name = f"candidate-{number}-{self.lives}"
            entropy = SeededEntropy(number, name)
            election = Election(self.lines[number], SETTINGS, name, LoopClock(self.loop), entropy)  # type: ignore[arg-type]
            await election.acquire()
            self.leading[number] = election
            await election.hold()
            assert not election.leading

    def leaders(self) -> list[int]:
        return [number for number, election in self.leading.items() if election.leading]


FAULTS = st.lists(
    st.tuples(st.sampled_from(["cut", "mend", "lose", "release"]), st.integers(0, 2), st.integers(1, 20)), max_size=20
)


@settings(max_examples=40)
@given(FAULTS)
def test_never_two_leaders_and_always_one_again(faults: list[tuple[str, int, int]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        candidates = Candidates(loop, MemoryCluster(LoopClock(loop)))
        tasks = candidates.start(3)
        for fault, number, seconds in [*faults, ("end", 0, 60)]:
            await strike(candidates, fault, number)
            for _ in range(seconds * 4):
                await asyncio.sleep(0.25)
                assert len(candidates.leaders()) <= 1
        assert len(candidates.leaders()) == 1
        for task in tasks:
            assert not task.done()
            task.cancel()

    run(main)


async def strike(candidates: Candidates, fault: str, number: int) -> None:
    line = candidates.lines[number]
    if fault == "end":
        for each in candidates.lines:
            each.cut = each.losing = False
    elif fault == "release" and number in candidates.leading:
        await candidates.leading[number].release()
    else:
        line.cut, line.losing = fault == "cut", fault == "lose"


def test_a_released_lease_is_taken_at_once_and_a_kept_one_after_its_end() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster, clock = MemoryCluster(LoopClock(loop)), LoopClock(loop)
        first, second, third = (
            Election(cluster, SETTINGS, name, clock, SeededEntropy(1, name)) for name in ("first", "second", "third")
        )
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        assert not second.leading
        await first.release()
        await asyncio.sleep(SETTINGS.retry_s)
        assert second.leading
        await waiting
        begun = loop.time()
        await third.acquire()
        assert loop.time() - begun >= SETTINGS.duration_s
        lease = await cluster.get(Ref(LEASE, "system", "operator"))
        assert lease["spec"]["holderIdentity"] == "third"
        assert lease["spec"]["leaseTransitions"] == 2

    run(main)
