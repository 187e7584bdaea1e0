"""Edits of a running platform's file: which can be rolled out, and how scripted processes follow them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from tandem.apps.cli.member import Member
from tandem.apps.cli.rolling.rollout import RolloutDeps, ServiceRollout, unchangeable
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.process.processes import Command
from tandem.process.workers_file import ServiceEntry
from tandem.spec.pool import Pool
from tandem.spec.reading import service_of
from tandem.spec.revision import revision_of
from tandem.spec.service import ModelService

START_S = 4.0


def service(prefill: int = 1, decode: int = 2, **spec: Any) -> ModelService:
    pools = [
        {"name": "p", "role": "prefill", "replicas": prefill},
        {"name": "d", "role": "decode", "replicas": decode},
    ]
    whole = {"engine": {"type": "simulated"}, "pools": pools, **spec}
    metadata = {"name": "laptop"}
    return service_of(
        {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": whole}
    )


class Processes:
    """Workers that start and drain after a while; those of `broken` revisions do not come up."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.revisions: dict[str, str] = {}
        self.broken: set[str] = set()
        self.placeless: set[str] = set()
        """Revisions whose workers get no GPU while all of the others' run."""
        self.least: dict[str, int] = {}

    async def add(self, member: Member, within_s: float) -> None:
        self.members.append(member)
        await asyncio.sleep(START_S)
        if self.revisions[member.name] in self.broken:
            self.members.remove(member)
            raise TandemError("engine_failed", "no memory")
        member.state = "ready"

    async def leave(self, member: Member, within_s: float, *, remove: bool) -> None:
        member.removed, member.state = remove, "draining"
        await asyncio.sleep(3.0)
        self.members.remove(member)

    def make(self, of: ModelService, pool: Pool, index: int) -> Member:
        if revision_of(of.spec) in self.placeless and len(self.members) >= 3:
            raise TandemError("bad_setting", "GPU 0 has no memory left")
        member = Member(Command(f"{pool.name}-{index}", [], {}), pool.role)
        self.revisions[member.name] = revision_of(of.spec)
        return member

    def serving(self, revision: str) -> dict[str, int]:
        """Ready workers that stay, by role."""
        ready = [m for m in self.members if m.state == "ready" and self.revisions[m.name] == revision]
        return {role: sum(m.role == role for m in ready) for role in ("prefill", "decode")}


class Stage:
    def __init__(self, loop: VirtualLoop, running: ModelService) -> None:
        self.processes, self.told, self.said = Processes(), list[ServiceEntry](), list[str]()
        for pool in running.spec.pools:
            for index in range(pool.first_replicas):
                member = self.processes.make(running, pool, index)
                member.state = "ready"
                self.processes.members.append(member)
        site = RolloutDeps(self.processes, self.processes.make, _linked, self._tell, 60.0)
        self.rollover = ServiceRollout(running, site, LoopClock(loop), self.said.append)

    def _tell(self, entry: ServiceEntry) -> None:
        """Whoever has weight can serve at that moment."""
        for revision, weight in entry.weights.items():
            assert not weight or all(self.processes.serving(revision).values()), (entry.weights, revision)
        self.told.append(entry)

    @property
    def weights(self) -> dict[str, int]:
        return {revision: weight for revision, weight in self.told[-1].weights.items() if weight}

    @property
    def names(self) -> list[str]:
        return sorted(member.name for member in self.processes.members)


async def _linked() -> None:
    await asyncio.sleep(0.5)


def staged(running: ModelService, body: Callable[[Stage], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop, running)
        await stage.rollover.begin()
        await body(stage)

    run(main)


def test_a_new_revision_takes_over_pool_by_pool_and_always_one_can_serve() -> None:
    async def body(stage: Stage) -> None:
        wanted = service(tiers={"dram": "64Mi"})
        await stage.rollover.want(wanted)
        assert await stage.rollover.run()
        assert stage.names == ["d-2", "d-3", "p-1"]
        assert stage.weights == {revision_of(wanted.spec): 100}
        assert (stage.told[-1].model, stage.told[-1].queue_s, stage.told[-1].policy) == (
            "laptop",
            60.0,
            "prefix_aware",
        )

    staged(service(), body)


def test_numbers_alone_start_and_stop_workers_of_the_same_revision() -> None:
    async def body(stage: Stage) -> None:
        await stage.rollover.want(service(prefill=2, decode=1))
        assert await stage.rollover.run()
        assert stage.names == ["d-0", "p-0", "p-1"]

    staged(service(), body)


def test_it_stops_at_the_weight_asked_for_and_goes_on_when_that_is_raised() -> None:
    async def body(stage: Stage) -> None:
        old, new = revision_of(service().spec), revision_of(service(tiers={"dram": "64Mi"}).spec)
        await stage.rollover.want(service(tiers={"dram": "64Mi"}, rollout={"weight": 40}))
        running = asyncio.create_task(stage.rollover.run())
        await asyncio.sleep(120.0)
        assert not running.done()
        assert set(stage.weights) == {old, new}
        assert 0 < stage.weights[new] <= 40, "as much as its share of workers can take"
        await stage.rollover.want(service(tiers={"dram": "64Mi"}))
        assert await running
        assert stage.weights == {new: 100}

    staged(service(), body)


def test_an_edit_taken_back_meanwhile_leaves_everything_as_it_was() -> None:
    async def body(stage: Stage) -> None:
        await stage.rollover.want(service(tiers={"dram": "64Mi"}))
        running = asyncio.create_task(stage.rollover.run())
        await asyncio.sleep(5.0)
        await stage.rollover.want(service())
        assert await running
        assert stage.names == ["d-0", "d-1", "p-0"]
        assert stage.weights == {revision_of(service().spec): 100}

    staged(service(), body)


def test_a_revision_that_does_not_come_up_is_given_up_after_its_deadline() -> None:
    async def body(stage: Stage) -> None:
        bad = service(tiers={"dram": "64Mi"}, rollout={"progressDeadlineSeconds": 60})
        stage.processes.broken.add(revision_of(bad.spec))
        await stage.rollover.want(bad)
        async with asyncio.timeout(600.0):
            assert not await stage.rollover.run()
        assert stage.names == ["d-0", "d-1", "p-0"]
        assert stage.weights == {revision_of(service().spec): 100}
        tries = [line for line in stage.said if "did not come up: no memory" in line]
        assert 4 <= len(tries) < 20

    staged(service(), body)


def test_a_worker_without_a_place_on_a_gpu_is_said_and_tried_again() -> None:
    async def body(stage: Stage) -> None:
        full = service(tiers={"dram": "64Mi"}, rollout={"progressDeadlineSeconds": 60})
        stage.processes.placeless.add(revision_of(full.spec))
        await stage.rollover.want(full)
        async with asyncio.timeout(600.0):
            assert not await stage.rollover.run()
        assert stage.names == ["d-0", "d-1", "p-0"]
        tries = [line for line in stage.said if "GPU 0 has no memory" in line]
        assert 2 <= len(tries) < 40

    staged(service(), body)


def test_what_the_router_and_the_store_were_started_with_cannot_change() -> None:
    old = service()
    fixed: dict[str, Any] = {"redis": "redis://x:1", "store": {}, "router": {"port": 1}, "model": {"source": "a/b"}}
    for key, value in fixed.items():
        problem = unchangeable(old, service(**{key: value})) or ""
        assert f"spec.{key} cannot change while it runs" in problem
    other = msgspec.structs.replace(old.spec.pools[0], role="unified")
    spec = msgspec.structs.replace(old.spec, pools=(other, *old.spec.pools[1:]))
    assert "the role of pool p" in (unchangeable(old, msgspec.structs.replace(old, spec=spec)) or "")
    assert unchangeable(old, service(tiers={"dram": "1Gi"}, routing={"policy": "round_robin"})) is None


def test_an_edit_counts_once_it_is_whole_and_says_something_else(tmp_path: Path) -> None:
    path, says = tmp_path / "file", {"1": service(), "2": service(prefill=2)}
    path.write_text("1")

    def read() -> ModelService:
        found = says.get(path.read_text())
        if found is None:
            raise TandemError("bad_setting", "not that")
        return found

    async def main(loop: VirtualLoop) -> None:
        edits = SpecWatch(path, read, says["1"])
        task = asyncio.create_task(edits.next())
        await asyncio.sleep(5.0)
        path.write_text("1 ")
        path.write_text("1")
        await asyncio.sleep(5.0)
        assert not task.done(), "nothing else is said"
        path.write_text("2")
        assert await task == says["2"]
        task = asyncio.create_task(edits.next())
        await asyncio.sleep(1.0)
        path.write_text("three")
        error = await task
        assert isinstance(error, TandemError)
        assert error.message == "not that"

    run(main)
