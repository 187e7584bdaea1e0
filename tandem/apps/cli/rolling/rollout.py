"""Rolls an edited specification out on this machine: starts and drains processes as the reconcile says, and tells the
router how to split new requests meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tandem.apps.cli.member import Member
from tandem.apps.cli.rolling.cluster import LocalCluster, LocalWorker, ReconcileOutcome
from tandem.apps.cli.scaling import workers_of
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.workers_file import ServiceEntry
from tandem.spec.model import Model
from tandem.spec.pool import Pool
from tandem.spec.service import STORE, ModelService

_LOOK_EVERY_S: Final = 0.5
"""Longer than the router takes to see new weights."""
_AGAIN_FIRST_S: Final = 2.0
_AGAIN_MAX_S: Final = 30.0


class Processes(Protocol):
    """`tandem.apps.cli.supervisor.Supervisor`, as far as a rollout needs it."""

    members: list[Member]

    async def add(self, member: Member, within_s: float) -> None: ...

    async def leave(self, member: Member, within_s: float, *, remove: bool) -> None: ...


@dataclass(frozen=True)
class RolloutDeps:
    """What a rollout needs of its platform. `make` describes worker number `index` of a pool of a service; `linked`
    waits until the router can use every worker; `tell` passes the router what is known of the service."""

    processes: Processes
    make: Callable[[ModelService, Pool, int], Member]
    linked: Callable[[], Awaitable[None]]
    tell: Callable[[ServiceEntry], None]
    start_s: float


class ServiceRollout:
    """One rollout, from the service that runs to the one that is wanted. `wanted` may change while it runs."""

    def __init__(self, running: ModelService, site: RolloutDeps, clock: Clock, say: Callable[[str], None]) -> None:
        self._site = site
        self._clock = clock
        self._say = say
        self._cluster = LocalCluster(clock)
        self.running = running
        """The service that the workers run, or are about to run."""
        self._services: dict[str, ModelService] = {}
        self._workers: dict[str, tuple[Pool, str]] = {}
        """Pool and revision by name of the process."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._failures = 0
        self._not_before = 0.0

    async def begin(self) -> None:
        """Take over the workers that run, as the service's own. Raises `deadline_exceeded` when not all are ready."""
        spec, members = self.running.spec, self._site.processes.members
        there = {pool.name: workers_of(pool, members) for pool in spec.pools}
        pools = tuple(
            msgspec.structs.replace(pool, replicas=len(there[pool.name]), autoscaling=None) for pool in spec.pools
        )
        now = msgspec.structs.replace(self.running, spec=msgspec.structs.replace(spec, pools=pools))
        # Its revision is not of numbers.
        revision = await self._cluster.want(_without_gate(now))
        self._services[revision] = self.running
        for pool in spec.pools:
            self._workers |= {f"{pool.name}-{index}": (pool, revision) for index in there[pool.name]}
        deadline = self._clock.now() + self._site.start_s
        while not (await self._look()).settled:
            if self._clock.now() >= deadline:
                raise TandemError("deadline_exceeded", f"not all workers were ready within {self._site.start_s:g} s")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def want(self, service: ModelService) -> None:
        """Set the service that the workers are to become from now on."""
        revision = await self._cluster.want(_without_gate(service))
        self._services[revision] = self.running = service
        self._failures, self._not_before = 0, 0.0

    async def run(self) -> bool:
        """Run until nothing is left to do; whether the rollout went as wanted. The rollout's own deadline bounds it,
        after which it rolls back."""
        try:
            while True:
                looked = await self._look()
                for sentence in looked.sentences:
                    self._say(sentence)
                self._tell(looked.weights)
                if looked.settled and not self._under_way:
                    return not looked.failed
                self._become(looked)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _look(self) -> ReconcileOutcome:
        members = {member.name: member for member in self._site.processes.members}
        self._workers = {
            name: known for name, known in self._workers.items() if name in members or name in self._under_way
        }
        there = [
            LocalWorker(name, pool.name, pool.role, revision, self._is_ready(member), member.removed)
            for name, (pool, revision) in self._workers.items()
            if (member := members.get(name)) is not None
        ]
        return await self._cluster.look(there)

    def _tell(self, weights: dict[str, int]) -> None:
        service, slo = self.running, self.running.spec.slo.bounds
        self._site.tell(
            ServiceEntry(
                name=f"local/{service.metadata.name}",
                model=service.model_name,
                weights=weights,
                queue_s=float(service.spec.routing.max_queue_seconds),
                policy=service.spec.routing.policy,
                ttft_s=slo.ttft_s,
                tpot_s=slo.tpot_s,
                itl_s=slo.itl_s,
                aliases=service.spec.model.aliases,
            )
        )

    def _become(self, looked: ReconcileOutcome) -> None:
        """Start the missing workers and drain the surplus ones, the newest first."""
        staying = [name for name in self._workers if not self._leaves(name)]
        for (pool_name, revision), count in looked.wanted.items():
            have = [name for name in staying if self._is_of(name, pool_name, revision)]
            for name in have[count:]:
                self._begin(name, self._leave(name))
            if len(have) < count and self._clock.now() >= self._not_before:
                self._start(pool_name, revision)

    def _start(self, pool_name: str, revision: str) -> None:
        """Start one worker of the pool. Each look starts one of each kind, because workers share the machine."""
        service = self._services[revision]
        pool = next(each for each in service.spec.pools if each.name == pool_name)
        try:
            name, member = self._next(service, pool)
        except TandemError as error:
            self._failed(f"no worker of pool {pool.name} can be started: {error}")
            return
        self._workers[name] = pool, revision
        self._say(f"{name} starts with revision {revision}")
        self._begin(name, self._add(member))

    def _next(self, service: ModelService, pool: Pool) -> tuple[str, Member]:
        taken = [int(name.rpartition("-")[2]) for name in self._workers if name.rpartition("-")[0] == pool.name]
        member = self._site.make(service, pool, max(taken, default=-1) + 1)
        return member.name, member

    async def _add(self, member: Member) -> None:
        try:
            await self._site.processes.add(member, self._site.start_s)
            async with asyncio.timeout(self._site.start_s):
                await self._site.linked()
        except (TandemError, TimeoutError) as error:
            self._failed(f"{member.name} did not come up: {error}")

    def _failed(self, sentence: str) -> None:
        self._failures += 1
        self._not_before = self._clock.now() + min(_AGAIN_MAX_S, _AGAIN_FIRST_S * 2.0 ** (self._failures - 1))
        self._say(sentence)

    async def _leave(self, name: str) -> None:
        member = next((each for each in self._site.processes.members if each.name == name), None)
        if member is not None:
            await self._site.processes.leave(member, float(self._workers[name][0].drain_seconds), remove=True)

    def _begin(self, name: str, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way[name] = task
        task.add_done_callback(lambda _: self._under_way.pop(name, None))

    def _is_ready(self, member: Member) -> bool:
        """One that has just come up counts once the router has a link to it."""
        return member.state == "ready" and member.name not in self._under_way

    def _is_of(self, name: str, pool: str, revision: str) -> bool:
        known, of = self._workers[name]
        return (known.name, of) == (pool, revision)

    def _leaves(self, name: str) -> bool:
        return any(member.name == name and member.removed for member in self._site.processes.members)


def unchangeable(old: ModelService, new: ModelService) -> str | None:
    """Why an edit needs the platform to be started anew; None when it can be rolled out."""
    before, after = old.spec, new.spec
    fixed = {
        "metadata.name": old.metadata.name == new.metadata.name,
        "spec.model": _of_processes(before.model) == _of_processes(after.model),
        "spec.engine.type": before.engine.type == after.engine.type,
        "spec.router": before.router == after.router,
        "spec.store": before.store == after.store,
        "spec.redis": before.redis == after.redis,
    }
    changed = [key for key, same in fixed.items() if not same]
    roles = {pool.name: pool.role for pool in before.pools}
    others = [pool for pool in after.pools if roles.get(pool.name, pool.role) != pool.role]
    changed += [f"the role of pool {pool.name}" for pool in others]
    if any(pool.name == STORE for pool in after.pools):
        changed.append(f"a pool called {STORE}")
    return f"{' and '.join(changed)} cannot change while it runs: stop it and start it again" if changed else None


def _of_processes(model: Model) -> Model:
    """The model without what the router learns while it runs."""
    return msgspec.structs.replace(model, aliases=())


def _without_gate(service: ModelService) -> ModelService:
    """The comparison of revisions is a job of a cluster's."""
    rollout = msgspec.structs.replace(service.spec.rollout, gate=None)
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, rollout=rollout))
