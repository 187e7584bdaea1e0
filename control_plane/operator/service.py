"""The operator as a service. Every replica mirrors the cluster, asks routers and answers KEDA; one of them acts."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from control_plane.objects.installation import tenants_of
from control_plane.operator.applier import Applier
from control_plane.operator.condition_figures import condition_figures
from control_plane.operator.controller import Controller, ControllerDeps
from control_plane.operator.mirror import Mirror, Watched
from control_plane.operator.model_facts import HubFacts
from control_plane.operator.models import KnownModels
from control_plane.operator.node_labels import NodeLabels
from control_plane.operator.probes import Page, ProbeServer
from control_plane.operator.routers import RouterReports, endpoints_of_pods, endpoints_of_urls, serving
from control_plane.operator.scaling import scaled_services
from control_plane.operator.schema_check import check_schemas
from control_plane.operator.settings import OperatorSettings
from control_plane.operator.start_figures import start_figures
from control_plane.reconcile.pool_status import LOAD_EVERY_S
from control_plane.reports.http_get import Endpoint
from control_plane.reports.poller import Poller
from control_plane.scaler import MetricCache, ScalerServer, ScalerSettings, ScalingLoop, serve
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster
from tandem.kube.election import Election
from tandem.kube.kinds import ENGINE_POOL, POD
from tandem.kube.lease import LeaseSettings
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tandem.kube.store import Key, key_of
from tandem.kube.workers import Workers
from tandem.process.certificate_expiry import tell_expiry
from tandem.process.logs import EventLines
from tandem.process.metrics import PrometheusMeter
from tandem.process.run import Service
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.tls import client_context

_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_COMPONENT: Final = "tandem.dev/operator"

Connect = Callable[[], Awaitable[Cluster]]


def open_service(settings: OperatorSettings, events: EventLines) -> Service:
    """The operator of this process."""

    async def connect_kube() -> Cluster:
        # Imported on use: only the operator needs the Kubernetes client, and it is large.
        from tandem.kube.kube_cluster import connect

        return await connect(settings.kubeconfig)

    return OperatorService(settings, events, connect_kube, SystemClock(), SystemEntropy())


class OperatorService:
    """`tandem.process.run.Service`. `connect` gives the cluster."""

    def __init__(
        self, settings: OperatorSettings, events: EventLines, connect: Connect, clock: Clock, entropy: Entropy
    ) -> None:
        self._settings = settings
        self._events = events
        self._connect = connect
        self._clock = clock
        self._entropy = entropy
        self._meter = PrometheusMeter()
        tell_expiry(self._meter, settings.router_tls, settings.scaler_tls)
        self._queue: WorkQueue[Key] = WorkQueue(clock)
        self._cluster: Cluster | None = None
        self._parts: _Parts | None = None
        self._probes = ProbeServer(
            settings.bind, {"/healthz": self._alive, "/readyz": self._ready, "/metrics": self._metrics}
        )
        self._scaler: ScalerServer | None = None
        self._serving = self._leaving = False

    async def start(self) -> None:
        """Reach the API server and check its kinds. Raises `bad_setting`, `link_lost`, `not_allowed`."""
        address = await self._probes.start()
        self._events.emit("listening", address=address)
        cluster = self._cluster = await self._connect()
        await check_schemas(cluster)
        parts = self._parts = _Parts(self._settings, cluster, self._clock, self._entropy, self._meter, self._queue)
        tls = self._settings.scaler_tls
        self._scaler = await serve(parts.board, self._clock, ScalerSettings(self._settings.scaler_bind), tls)
        self._events.emit("scaler", port=self._scaler.port)

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        parts = self._parts
        assert parts is not None, "start() has not returned yet"
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "mirror": parts.mirror.run,
            "scaling": parts.scaling.run,
            "leading": self._lead,
            "loads": self._look_at_loads,
            "nodes": parts.nodes.run,
        }
        return found if parts.hub is None else {**found, "models": parts.hub.run}

    async def serve(self) -> None:
        """Ready once everything has been read."""
        assert self._parts is not None
        await self._parts.mirror.synced()
        self._serving = True

    async def drain_requested(self) -> float | None:
        """Never returns: only a signal asks the operator to drain."""
        await asyncio.Event().wait()
        return None

    async def drain(self, within_s: float) -> None:
        """Stop writing and release the Lease, so that another operator takes over at once."""
        self._leaving, self._serving = True, False
        self._queue.close()
        if self._parts is not None:
            await self._parts.election.release()
        self._meter.set("tandem_operator_leads", 0.0)

    def held(self) -> Mapping[str, int]:
        return {}

    async def stop(self) -> None:
        await self._probes.stop()
        if self._scaler is not None:
            await self._scaler.close()
        if self._cluster is not None:
            await self._cluster.close()

    # -- Leading --------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Act while this process has the Lease. One that has lost it ends: what it began may still be under way."""
        parts = self._parts
        assert parts is not None
        await parts.mirror.synced()
        await parts.election.acquire()
        self._meter.set("tandem_operator_leads", 1.0)
        self._events.emit("leading", identity=parts.identity)
        for obj in parts.mirror.services():
            self._queue.add(key_of(obj))
        workers = Workers(self._queue, parts.controller.work, parts.controller.failed, count=self._settings.workers)
        working = asyncio.create_task(workers.run(), name="workers")
        holding = asyncio.create_task(parts.election.hold(), name="lease")
        try:
            await asyncio.wait((working, holding), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            if self._leaving:
                await asyncio.Event().wait()
            raise TandemError("not_allowed", f"this operator does not lead any more: {await holding}")
        finally:
            for task in (working, holding):
                task.cancel()
            await asyncio.gather(working, holding, return_exceptions=True)

    async def _look_at_loads(self) -> None:
        """Renew the status of services that have work, since nothing in the cluster reports that a service has got
        work."""
        parts = self._parts
        assert parts is not None
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            for obj in parts.mirror.services():
                if parts.election.leading and any(each.running for each in parts.reports.loads(key_of(obj)).values()):
                    self._queue.add(key_of(obj))

    # -- Pages ----------------------------------------------------------------------------------------------------

    def _alive(self) -> Page:
        return Page(200, b"alive\n")

    def _ready(self) -> Page:
        problem = "starting" if self._parts is None else self._parts.mirror.problem()
        if self._leaving:
            problem = "leaving"
        return Page(200, b"ready\n") if problem is None else Page(503, f"{problem}\n".encode())

    def _metrics(self) -> Page:
        if self._parts is not None:
            mirror, leads = self._parts.mirror, self._parts.election.leading
            self._meter.set("tandem_operator_services", float(sum(1 for _ in mirror.services())))
            self._meter.set("tandem_operator_queue", float(len(self._queue)))
            # One operator tells: every replica would tell the same.
            figures = condition_figures(mirror.services(), mirror.objects(ENGINE_POOL)) if leads else {}
            self._meter.replace("tandem_operator_condition", figures)
            started = start_figures(mirror.objects(POD), {name for name, _, _ in figures})
            self._meter.replace("tandem_operator_start_seconds", started)
        return Page(200, self._meter.render())


class _Parts:
    """Parts of the operator that exist once the cluster is reached."""

    def __init__(
        self,
        settings: OperatorSettings,
        cluster: Cluster,
        clock: Clock,
        entropy: Entropy,
        meter: PrometheusMeter,
        queue: "WorkQueue[Key]",
    ) -> None:
        own = settings.own_namespace or _pod_namespace()
        self.identity = settings.identity or f"{socket.gethostname()}-{entropy.token(4).hex()}"
        self.election = Election(cluster, LeaseSettings(settings.lease, own), self.identity, clock, entropy)
        routers_in = None if settings.router_url else own
        watched = Watched(settings.namespace, routers_in, tenants_of(settings.installation))
        self.mirror = Mirror(cluster, watched, clock, entropy, queue.add)
        poller = Poller(
            self._routers(settings),
            clock,
            tls=client_context(settings.router_tls),
            key=_key(settings.router_key_file),
        )
        self.reports = RouterReports(poller, self._serving(settings))
        self.hub = HubFacts(clock, self._found) if settings.look_up_models else None
        self.nodes = NodeLabels(cluster, settings.installation.accelerator_label, self._look_again)
        self._queue = queue
        recorder = EventRecorder(cluster, clock, _COMPONENT, self.identity)
        self.controller = Controller(
            ControllerDeps(
                mirror=self.mirror,
                reports=self.reports,
                models=KnownModels(self.hub),
                applier=Applier(cluster, clock, recorder, meter, lambda: self.election.leading),
                recorder=recorder,
                queue=queue,
                clock=clock,
                meter=meter,
                installation=settings.installation,
                nodes=self.nodes,
            )
        )
        self.board = MetricCache(clock)
        self.scaling = ScalingLoop(poller, lambda: scaled_services(self.mirror, self.controller), self.board, clock)

    def _routers(self, settings: OperatorSettings) -> Callable[[], Mapping[str, Endpoint]]:
        given = endpoints_of_urls(settings.router_url)
        secure = settings.router_tls.certificate is not None
        if given:
            return lambda: given
        return lambda: endpoints_of_pods(self.mirror.routers(), settings.router_port, secure=secure)

    def _serving(self, settings: OperatorSettings) -> Callable[[], Iterable[str]]:
        given = endpoints_of_urls(settings.router_url)
        return (lambda: given) if given else (lambda: serving(self.mirror.routers()))

    def _found(self, _repository: str) -> None:
        self._look_again()

    def _look_again(self) -> None:
        """Queue every service for another look, now that something is known that is not in its objects."""
        for obj in self.mirror.services():
            self._queue.add(key_of(obj))


def _pod_namespace() -> str:
    try:
        return _POD_NAMESPACE.read_text("utf-8").strip() or "default"
    except OSError:
        return "default"


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise TandemError("bad_setting", problem, param="router_key_file") from error
