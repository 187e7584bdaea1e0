"""A replica of Ray Serve that owns one worker process: Serve places it, counts it, checks it and asks it to leave."""

import os

import msgspec
from ray import serve

from tandem.apps.ray.hub_client import HUB_S, HubCalls, hub_of_this_cluster
from tandem.apps.ray.launching import WorkerPlace, asks_for_rdma, fetch_command, interpreter, worker_command
from tandem.apps.ray.owned_worker import OwnedWorker, run_to_end
from tandem.apps.ray.placing import actor_options
from tandem.apps.ray.replica_place import ReplicaPlace, place_on_ray
from tandem.apps.ray.serving import WorkerTold
from tandem.process.logs import set_up_logs
from tandem.spec.pool import Pool
from tandem.spec.service import ModelService
from tandem.weights.cache import DEFAULT_DIRECTORY

_RENDEZVOUS_S = 60.0


class WorkerPlan(msgspec.Struct, frozen=True):
    """What a replica is told: the pool of which revision it is one worker of."""

    service: ModelService
    pool: str
    revision: str
    vllm_python: str | None = None

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def pool_spec(self) -> Pool:
        return next(each for each in self.service.spec.pools if each.name == self.pool)


class WorkerReplica:
    """One worker. `plan` is a `WorkerPlan` in writing; the deployments of a revision's other pools are bound as
    further arguments, so that they belong to the same application, and are not used."""

    _worker: OwnedWorker | None = None
    _place: ReplicaPlace | None = None
    _left = False

    async def __init__(self, plan: bytes, *others: object) -> None:  # type: ignore[misc]  # Serve awaits it
        """Returns when the worker is ready. Raises `engine_failed` with the end of its log when it is not."""
        set_up_logs(json_lines=False)
        told = msgspec.msgpack.decode(plan, type=WorkerPlan)
        pool = told.pool_spec()
        self._drain_s = float(pool.drain_seconds)
        self._place = place_on_ray()
        hub = hub_of_this_cluster()
        self._place.write_key(await hub.call("key", within_s=HUB_S))
        where = await self._where(told, pool, hub)
        await self._fetch(told, where)
        context = serve.get_replica_context()
        gang = context.gang_context
        report = WorkerTold(
            name=where.name,
            service=told.service.metadata.name,
            pool=pool.name,
            role=pool.role,
            revision=told.revision,
            node=self._place.node,
            gang="" if gang is None else gang.gang_id,
            rank=where.rank,
        )
        command = worker_command(told.service, pool, where, os.environ)
        self._worker = OwnedWorker(report, command, hub, self._end_with_worker)
        await self._worker.start(self._place.logs)

    async def _where(self, told: WorkerPlan, pool: Pool, hub: HubCalls) -> WorkerPlace:
        assert self._place is not None
        context = serve.get_replica_context()
        gang, rank, leader = context.gang_context, 0, ""
        if gang is not None:
            rank = int(gang.rank)
            leader = await hub.call(
                "rendezvous", gang.gang_id, rank, self._place.host, _RENDEZVOUS_S, within_s=2 * _RENDEZVOUS_S
            )
        options = actor_options(told.service, pool)
        return WorkerPlace(
            name=f"{told.service.metadata.name}-{pool.name}-{context.replica_tag.lower()}",
            revision=told.revision,
            host=self._place.host,
            directory=self._place.directory,
            key_file=self._place.key_file,
            sockets=self._place.sockets,
            rank=rank,
            leader=leader,
            rdma=asks_for_rdma(options.resources),
            python=interpreter(told.service, pool, told.vllm_python),
        )

    async def _fetch(self, told: WorkerPlan, where: WorkerPlace) -> None:
        """Bring the weights to the node where the worker cannot find them by itself."""
        assert self._place is not None
        command = fetch_command(told.service.spec.model, where, DEFAULT_DIRECTORY, os.environ)
        if command is not None:
            await run_to_end(command, self._place.logs)

    async def check_health(self) -> None:
        """Serve replaces the replica when this has raised several times. Routers have moved on by their links."""
        assert self._worker is not None, "Serve checks replicas that have started"
        await self._worker.check()

    async def pids(self) -> tuple[int, int]:
        """The process ids of replica and worker, for drills."""
        return os.getpid(), 0 if self._worker is None else self._worker.told.pid

    def _end_with_worker(self, status: int) -> None:
        """End the replica as its worker has ended, so that Serve sees a crash at once and replaces it. It has drained
        nothing, and nothing is left to drain."""
        if self._place is not None:
            self._place.remove()
        os._exit(status if 0 < status < 128 else 1)

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica: the worker drains, within `graceful_shutdown_timeout_s`."""
        if self._left:
            return
        self._left = True
        if self._worker is not None:
            await self._worker.leave(self._drain_s)
        if self._place is not None:
            self._place.remove()
