"""A whole platform on this machine: run directory, supervised processes, and a watch on the router's answers."""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tandem.apps.cli import drill_settings as pace
from tandem.apps.cli.control import ControlServer
from tandem.apps.cli.display import StatusDisplay
from tandem.apps.cli.gpus import Gpus
from tandem.apps.cli.launches import LaunchContext, members_of, threads_per_worker, worker_of
from tandem.apps.cli.member import Member
from tandem.apps.cli.metrics_watch import MetricsWatch
from tandem.apps.cli.operations import Operations, OperationsDeps
from tandem.apps.cli.ports import check_free, free_port
from tandem.apps.cli.registry import MemberEntry, PlatformEntry, Registry, open_registry, process_start
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.apps.cli.run_directory import RunDirectory
from tandem.apps.cli.supervisor import ROUTER, Supervisor
from tandem.apps.client.http import Target
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.devices.reading import read_topology
from tandem.devices.topology import Topology
from tandem.link.address import join_host
from tandem.process.listening import EVERYWHERE
from tandem.process.local_processes import LocalProcesses
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.workers_file import ServiceEntry
from tandem.spec.pool import Pool
from tandem.spec.service import ModelService

T = TypeVar("T")
_START_S: Final = 600.0
"""Seconds a worker that is added later may take to become ready."""


class Platform:
    """Checks ports and makes the run directory; `run` then starts, serves and stops everything."""

    def __init__(
        self,
        service: ModelService,
        environment: Mapping[str, str],
        router_flags: Sequence[str] = (),
        *,
        drills: bool = False,
        topology: Callable[[], Topology | None] = read_topology,
    ) -> None:
        router = service.spec.router
        check_free(router.host, {"--port": router.port, "--grpc-port": router.grpc_port or 0})
        reachable = {"0.0.0.0": "127.0.0.1", EVERYWHERE: "localhost"}.get(router.host, router.host)
        port = router.port or free_port(router.host)
        self.service = service
        self.target = Target(reachable, port, False, "")
        self.directory = RunDirectory()
        self.directory.draw_key(SystemEntropy())
        if service.spec.model.aliases or service.spec.slo.bounds.bounds:
            self.directory.tell(_first_told(service))
        self.control = LocalProcesses(self.directory.logs)
        self._places = places = LaunchContext(
            self.directory.fleet_file, self.directory.key_file, self.directory.sockets, port, router.grpc_port, drills
        )
        self._gpus = Gpus(environment, self.directory.sockets, SystemClock(), topology)
        try:
            self.members = members_of(service, places, cores(), environment, router_flags, self._gpus)
        except TandemError:
            self.directory.remove()
            raise
        self.notes = tuple(self._gpus.notes)
        """Lines worth showing before anything starts: which worker has which GPU, and what it has to hold."""
        self.watch = MetricsWatch(self.members)
        self._environment = environment
        self._drills = drills
        self._registry: Registry = open_registry(environment)
        self._registry.clear_dead()
        self._operations: Operations | None = None

    @property
    def router(self) -> Member:
        return next(member for member in self.members if member.role == ROUTER)

    @property
    def url(self) -> str:
        return f"http://{join_host(self.target.host, self.target.port)}"

    async def run(self, board: StatusDisplay, work: Callable[[Supervisor], Awaitable[T]]) -> T:
        """Start everything, do `work`, and stop everything in order. A first signal stops, a second hurries.

        Raises what `work` raises, and `engine_failed` when a process cannot start; `work` is then cancelled.
        """

        def changed(member: Member, sentence: str) -> None:
            board.changed(member, sentence)
            self._registry.publish(self.entry())

        clock = SystemClock()
        policy = pace.RESTART if self._drills else None
        supervisor = Supervisor(self.control, self.members, self.directory, clock, changed, policy)
        self._operations = operations = self._changes(supervisor, clock)
        control = ControlServer(self.directory.control_socket, operations, self.entry)
        serving = asyncio.create_task(supervisor.run(), name="supervisor")
        beside = (
            asyncio.create_task(self.watch.run(), name="watch router"),
            asyncio.create_task(control.run(), name="control"),
        )
        working = asyncio.ensure_future(work(supervisor))
        try:
            await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await serving
                raise TandemError("cancelled", "stopped before everything was ready")
            return await working
        finally:
            supervisor.stop()
            await _ended(working, *beside)
            try:
                await serving
            finally:
                self._registry.withdraw()

    async def follow(self, supervisor: Supervisor, edits: SpecWatch, say: Callable[[str], None]) -> None:
        """Roll every edit of the file out while the platform serves; until cancelled."""
        # Imported on use: the control plane takes a while to load, and most platforms are never edited.
        from tandem.apps.cli.rolling.rollout import RolloutDeps
        from tandem.apps.cli.rolling.rollout_loop import RolloutLoop

        assert self._operations is not None, "the platform runs"
        site = RolloutDeps(supervisor, self._worker, self.watch.all_linked, self.directory.tell, _START_S)
        await RolloutLoop(self.service, site, self._operations, SystemClock(), say, self._became).run(edits)

    def _became(self, service: ModelService) -> None:
        assert self._operations is not None, "the platform runs"
        self.service = service
        self._operations.use(service.spec.pools, lambda pool, index: self._worker(service, pool, index))

    def _worker(self, service: ModelService, pool: Pool, index: int) -> Member:
        threads = threads_per_worker(cores(), len(self.members))
        present = {member.name for member in self.members}
        bound = self._gpus.give(service, [(pool, index)], present)[f"{pool.name}-{index}"]
        return worker_of(service, self._places, pool, index, threads, self._environment, bound)

    def _changes(self, supervisor: Supervisor, clock: Clock) -> Operations:
        service = self.service

        def make(pool: Pool, index: int) -> Member:
            return self._worker(service, pool, index)

        linked, moved = self.watch.all_linked, self.watch.moved
        return Operations(supervisor, OperationsDeps(service.spec.pools, make, linked, moved, _START_S), clock)

    def entry(self) -> PlatformEntry:
        """The platform as other processes of this user may see it now."""
        return PlatformEntry(
            url=self.url,
            run_directory=str(self.directory.path),
            control=str(self.directory.control_socket),
            drills=self._drills,
            members=tuple(_entry_of(member) for member in self.members),
            pid=os.getpid(),
            began=process_start(os.getpid()) or 0,
        )

    async def ready(self, supervisor: Supervisor, within_s: float) -> None:
        """Wait until every process is ready and the router has a link to every worker.

        Raises `deadline_exceeded` naming what is missing.
        """
        try:
            async with asyncio.timeout(within_s):
                await supervisor.all_ready()
                await self.watch.all_linked()
        except TimeoutError:
            late = ", ".join(f"{member.name} ({member.state})" for member in self.members if member.state != "ready")
            missing = late or "links from the router to its workers"
            raise TandemError("deadline_exceeded", f"not ready within {within_s:g} s: {missing}") from None

    def curl(self) -> str:
        """A request to paste into a shell."""
        body = {
            "model": self.service.model_name,
            "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
            "stream": True,
        }
        data = shlex.quote(msgspec.json.encode(body).decode())
        return f"curl -N {self.url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


def _first_told(service: ModelService) -> ServiceEntry:
    """What the router has to know of a service and no flag of it says; a rollout adds more."""
    name, slo = f"local/{service.metadata.name}", service.spec.slo.bounds
    return ServiceEntry(
        name=name,
        model=service.model_name,
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s,
        itl_s=slo.itl_s,
        aliases=service.spec.model.aliases,
    )


def _entry_of(member: Member) -> MemberEntry:
    return MemberEntry(
        member.name, member.role, member.pid, member.state, member.address, member.metrics, member.restarts
    )


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel what still runs and wait for it; errors have been seen or do not matter any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
