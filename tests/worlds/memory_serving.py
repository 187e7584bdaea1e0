"""Ray Serve in memory, on the clock of its loop: for the hub's tests, and for the contract of the seam.

What it keeps to: an application is deployed once; counts follow the table, within a moment; a replica takes a time
to start, reports every second, drains when it is removed, and is replaced when it dies.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandem.apps.ray.serving import AppState, AppStatus, DeploymentPlan, DeploymentState, RevisionApp, WorkerTold
from tandem.core.clock import Clock
from tandem.core.errors import TandemError

Report = Callable[[WorkerTold], Awaitable[object]]
_LOOK_EVERY_S: Final = 0.1
_REPORT_EVERY_S: Final = 1.0
_PORT_MAX: Final = 65_535


@dataclass(frozen=True)
class MemoryPace:
    """How long replicas take, in seconds: to start, and to drain once they leave."""

    start_s: float = 2.0
    drain_s: float = 1.0


@dataclass
class _Replica:
    told: WorkerTold
    born_at: float
    leaves_at: float | None = None
    reported_at: float = float("-inf")


@dataclass
class _Deployment:
    plan: DeploymentPlan
    wanted: int
    replicas: list[_Replica] = field(default_factory=list)


@dataclass
class _Application:
    app: RevisionApp
    pools: dict[str, _Deployment]
    deleting: bool = False
    failed: bool = False


class MemoryServing:
    """`tandem.apps.ray.serving.Serving`. Run `run` beside it: it starts, reports and ends replicas, one per worker,
    gangs included. `report` may be changed while it runs; a report that fails is sent again a second later.

    `deployed` names every application ever deployed, in order, and `born` counts replicas; `broken` holds pools whose
    replicas never get ready.
    """

    def __init__(self, clock: Clock, report: Report | None = None, pace: MemoryPace = MemoryPace()) -> None:
        self.report = report
        self.deployed: list[str] = []
        self.broken: set[str] = set()
        self.failing: set[str] = set()
        """Pools whose replicas cannot start: Serve gives an application up that is deployed with one of them."""
        self.held: set[str] = set()
        """Workers whose drain does not end."""
        self.lost = False
        """Whether Serve does not answer."""
        self.answer_s = 0.0
        """Seconds that Serve takes to answer."""
        self.routed: tuple[str, ...] = ("tandem",)
        """Applications of routers, which others make."""
        self._clock = clock
        self._pace = pace
        self._apps: dict[str, _Application] = {}
        self._table: dict[str, dict[str, int]] = {}
        self.born = 0

    # -- The seam -------------------------------------------------------------------------------------------------

    async def running(self) -> Mapping[str, AppState]:
        await self._answer()
        return {name: self._state(each) for name, each in self._apps.items()}

    async def routers(self) -> tuple[str, ...]:
        await self._answer()
        return self.routed

    async def deploy(self, app: RevisionApp) -> None:
        await self._answer()
        if app.name in self._apps:
            return
        self.deployed.append(app.name)
        pools = {plan.pool: _Deployment(plan, plan.first) for plan in app.pools}
        self._apps[app.name] = _Application(app, pools, failed=bool(pools.keys() & self.failing))

    async def want(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        await self._answer()
        self._table = {name: dict(by_pool) for name, by_pool in counts.items()}

    async def delete(self, name: str) -> None:
        await self._answer()
        if name in self._apps:
            self._apps[name].deleting = True

    # -- Running --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Bring replicas to what is wanted until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """One round: what became due is done and reported."""
        now = self._clock.now()
        for name, app in list(self._apps.items()):
            for deployment in app.pools.values():
                self._follow_table(app, deployment, now)
                await self._advance(deployment, now)
            if app.deleting and not any(each.replicas for each in app.pools.values()):
                del self._apps[name]

    def workers(self, app: str = "", pool: str = "") -> list[WorkerTold]:
        """The last report of every replica there is, of one application and pool or of all."""
        return [
            replica.told
            for name, deployment, replica in self._all()
            if app in ("", name) and pool in ("", deployment.plan.pool)
        ]

    def kill(self, name: str) -> None:
        """The replica and its worker end at once, without a report. Raises `not_found`."""
        for _, deployment, replica in self._all():
            if replica.told.name == name:
                deployment.replicas.remove(replica)
                return
        raise TandemError("not_found", f"there is no worker {name!r}")

    def _all(self) -> Iterator[tuple[str, _Deployment, _Replica]]:
        for name, app in self._apps.items():
            for deployment in app.pools.values():
                for replica in list(deployment.replicas):
                    yield name, deployment, replica

    def _follow_table(self, app: _Application, deployment: _Deployment, now: float) -> None:
        """As Serve: new replicas at once; of those that are too many the youngest leave, unready ones first."""
        asked = self._table.get(app.app.name, {}).get(deployment.plan.pool)
        if asked is not None:
            deployment.wanted = min(asked, deployment.plan.most)
        wanted = 0 if app.deleting or app.failed else deployment.wanted
        staying = [each for each in deployment.replicas if each.leaves_at is None]
        for _ in range(wanted - len(staying)):
            deployment.replicas.append(self._replica(app.app, deployment.plan, now))
        staying.sort(key=lambda each: (each.told.ready, -each.born_at))
        for replica in staying[: max(0, len(staying) - wanted)]:
            replica.leaves_at = now + min(self._pace.drain_s, deployment.plan.drain_s)
            replica.told = msgspec.structs.replace(replica.told, leaving_s=deployment.plan.drain_s)
            replica.reported_at = float("-inf")

    async def _advance(self, deployment: _Deployment, now: float) -> None:
        for replica in list(deployment.replicas):
            broken = deployment.plan.pool in self.broken
            if not replica.told.ready and not broken and now - replica.born_at >= self._pace.start_s:
                replica.told = msgspec.structs.replace(replica.told, ready=True)
                replica.reported_at = float("-inf")
            leaves = replica.leaves_at is not None and now >= replica.leaves_at
            if leaves and replica.told.name not in self.held:
                deployment.replicas.remove(replica)
                await self._send(msgspec.structs.replace(replica.told, gone=True, ready=False))
            elif now - replica.reported_at >= _REPORT_EVERY_S:
                replica.reported_at = now
                await self._send(replica.told)

    async def _send(self, told: WorkerTold) -> None:
        if self.report is not None:
            with suppress(TandemError):
                await self.report(told)

    def _replica(self, app: RevisionApp, plan: DeploymentPlan, now: float) -> _Replica:
        self.born += 1
        pool = next(each for each in app.service.spec.pools if each.name == plan.pool)
        port = 1 + self.born % _PORT_MAX
        told = WorkerTold(
            name=f"{app.name}-{plan.pool}-{self.born}",
            service=app.service.metadata.name,
            pool=plan.pool,
            role=pool.role,
            revision=app.revision,
            address=f"127.0.0.1:{port}",
            metrics=f"127.0.0.2:{port}",
            pid=self.born,
            gang=f"gang-{self.born}" if plan.gang > 1 else "",
        )
        return _Replica(told, now)

    def _state(self, app: _Application) -> AppState:
        deployments = {}
        for name, each in app.pools.items():
            leaving = sum(replica.leaves_at is not None for replica in each.replicas)
            ready = sum(replica.told.ready and replica.leaves_at is None for replica in each.replicas)
            starting = len(each.replicas) - leaving - ready
            gang = each.plan.gang
            deployments[name] = DeploymentState(ready * gang, starting * gang, leaving * gang)
        whole = all(deployments[name].running >= each.wanted * each.plan.gang for name, each in app.pools.items())
        if app.failed and not app.deleting:
            return AppState("failed", deployments, "its replicas cannot start")
        status: AppStatus = "deleting" if app.deleting else "running" if whole else "deploying"
        return AppState(status, deployments)

    async def _answer(self) -> None:
        await asyncio.sleep(self.answer_s)
        if self.lost:
            raise TandemError("link_lost", "Serve does not answer")
