"""A cluster in memory with what belongs to it: controllers of Deployments and Jobs, kubelets, routers, and operators
that die between any two writes. On virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import yaml

from control_plane.objects.installation import Installation, tenants_of
from control_plane.objects.names import DELETION_COST, GATE, POOL, REVISION, annotations_of, labels_of
from control_plane.observe.observed import DesiredSpec, ModelFacts
from control_plane.observe.pods import PodLoad
from control_plane.operator.applier import Applier
from control_plane.operator.controller import Controller, ControllerDeps
from control_plane.operator.mirror import Mirror, Watched
from control_plane.rollout import Health
from tandem.core.entropy import SeededEntropy
from tandem.core.metrics import NullMeter
from tandem.kube.cluster import NotFound
from tandem.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    EVENT,
    JOB,
    MODEL_SERVICE,
    POD,
    SCALED_OBJECT,
    Json,
    Kind,
    Ref,
    ref_of,
)
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tandem.kube.times import timestamp
from tandem.kube.workers import Workers
from tandem.spec.status import ModelServiceStatus
from tests.worlds.crashing_cluster import CrashingCluster, is_crash
from tests.worlds.loop_clock import LoopClock

NAMESPACE, NAME = "llm", "chat"
SERVICE = Ref(MODEL_SERVICE, NAMESPACE, NAME)
READY_S = 20.0
EVERY_S = 1.0
NEVER_READY, WRONG, REFUSED, NO_ROOM = "never-ready", "wrong", "refused", "no-room"
"""Images that cannot be rolled out: pods that do not start, answers that fail, a gate that says no, no node."""
NOT_ASKED, JOB_ENDED = "not-asked", "job-ended"
"""Images whose gates compare nothing: a pod whose image cannot be pulled there, a Job that ends without a pod."""
_PULL = 'failed to resolve reference "registry.example/{0}": 401 Unauthorized'
_ENDED = {"reason": "Error", "exitCode": 1, "message": "trying\nnot_allowed: the hub answers 401 at 12:00:{0:02d}"}
_KILLED = {"reason": "OOMKilled", "exitCode": 137, "message": ""}
_BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}}
TROUBLES: Mapping[str, Callable[[int], Json]] = {
    "no-image": lambda turn: {
        "state": {
            "waiting": (
                {"reason": "ErrImagePull", "message": _PULL.format("no-image")},
                {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "no-image"'},
            )[turn % 2]
        }
    },
    "no-secret": lambda turn: {
        "state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub-token" not found'}}
    },
    "no-registry": lambda turn: {
        "state": {"waiting": {"reason": "ErrImagePull", "message": "failed to reach a mirror of the registry. " * 9}}
    },
    "crashes": lambda turn: _crashing(turn, {**_ENDED, "message": str(_ENDED["message"]).format(turn % 60)}),
    "out-of-memory": lambda turn: _crashing(turn, _KILLED),
}
"""Images whose containers do not come up, whatever folder they are in, with their statuses as the kubelet's turns
follow each other."""
TURN_S = 15.0
SPEC = """
engine: {type: simulated}
pools:
- {name: prefill, role: prefill, replicas: 2, image: one}
- {name: decode, role: decode, replicas: 3, image: one}
rollout: {maxSurge: 1, maxUnavailable: 0, progressDeadlineSeconds: 300}
"""


def _crashing(turn: int, ended: Json) -> Json:
    """A container that ends, waits, and runs again for a while."""
    last = {"lastState": {"terminated": ended}, "restartCount": turn}
    return ({"state": {"terminated": ended}}, {"state": _BACK_OFF, **last}, {"state": {"running": {}}, **last})[
        turn % 3
    ]


@dataclass
class Routers:
    """What they saw: revisions of image WRONG fail while they have traffic."""

    world: "World"
    counts: dict[str, Health] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    """Sequences by pod."""
    paths: dict[str, str] = field(default_factory=dict)
    """How workers move KV, by pod."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why they cannot use RDMA, by pod."""
    shares: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Weight of each revision with traffic, and whether its answers fail."""
    heard: dict[str, frozenset[str]] = field(default_factory=dict)
    """Routers that are asked, with the revisions that each has told of."""

    def health(self, key: tuple[str, str], revision: str) -> Health:
        return self.counts.get(revision, Health())

    def loads(self, key: tuple[str, str]) -> dict[str, PodLoad]:
        return {
            name: PodLoad(
                self.running.get(name, 0), kv_path=self.paths.get(name), kv_problem=self.problems.get(name, "")
            )
            for name in {*self.running, *self.paths}
        }

    def routers(self, key: tuple[str, str]) -> dict[str, frozenset[str]]:
        return self.heard

    def look(self) -> None:
        """Learn the weights."""
        told = [each for each in self.world.status.revisions if each.weight]
        self.shares = {each.name: (each.weight, self.world.image_of(each.name) == WRONG) for each in told}

    def serve(self) -> None:
        for name, (weight, wrong) in self.shares.items():
            old = self.counts.get(name, Health())
            self.counts[name] = Health(old.requests + weight, old.errors + weight * wrong)


@dataclass
class Models:
    """What is known of the model."""

    known: ModelFacts | None = None

    def facts(self, obj: Json, wish: DesiredSpec) -> ModelFacts | None:
        return self.known


class KnownNodes:
    """What is known of nodes with accelerators."""

    known: tuple[Mapping[str, str], ...] = ()


class World:
    """One service. `tick` lets a second of virtual time pass in it."""

    def __init__(self, lacks: frozenset[Kind] = frozenset({SCALED_OBJECT}), tenants: tuple[str, ...] = ()) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.cluster = CrashingCluster(self.clock, lacks)
        self.routers = Routers(self)
        self.models, self.nodes = Models(), KnownNodes()
        self.spec: Json = yaml.safe_load(SPEC)
        self.installation = Installation(worker_image="one", tenants=tenants)
        self.lives = 0
        self._operator: asyncio.Task[None] | None = None
        self._born: dict[str, float] = {}
        self.room: dict[str, int] = {}
        """Pods of a pool that nodes have room for; any number where it is absent."""
        self._placed: set[str] = set()
        self._pods = 0
        self._looked_at = -1

    # -- The user ---------------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        metadata = {"name": NAME, "namespace": NAMESPACE}
        obj = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": self.spec}
        await MemoryCluster.apply(self.cluster, obj, "user")

    async def edit(self, change: Callable[[Json], None]) -> None:
        change(self.spec)
        await self.submit()

    async def scale(self, pool: str, replicas: int) -> None:
        with suppress(NotFound):
            await self.cluster.scale(Ref(ENGINE_POOL, NAMESPACE, f"{NAME}-{pool}"), replicas)

    # -- Looking ----------------------------------------------------------------------------------------------------

    @property
    def object(self) -> Json:
        """The service; nothing once it is deleted."""
        return next(iter(self.cluster.objects(MODEL_SERVICE)), {})

    @property
    def status(self) -> ModelServiceStatus:
        return msgspec.convert(self.object.get("status") or {}, ModelServiceStatus)

    def condition(self, type_: str) -> Json:
        return next(msgspec.to_builtins(each) for each in self.status.conditions if each.type == type_)

    def of(self, kind: Kind) -> list[Json]:
        return self.cluster.objects(kind)

    def pods(self, pool: str | None = None, revision: str | None = None, *, ready: bool = False) -> list[Json]:
        found = []
        for pod in self.of(POD):
            labels = labels_of(pod)
            fits = POOL in labels and pool in (None, labels[POOL]) and revision in (None, labels[REVISION])
            if fits and (not ready or is_ready(pod)):
                found.append(pod)
        return found

    def image_of(self, revision: str) -> str:
        for obj in self.of(DEPLOYMENT):
            if labels_of(obj).get(REVISION) == revision:
                return str(obj["spec"]["template"]["spec"]["containers"][0]["image"])
        return ""

    def pools_of(self, revision: str) -> list[str]:
        return [labels_of(obj)[POOL] for obj in self.of(DEPLOYMENT) if labels_of(obj)[REVISION] == revision]

    def reachable(self) -> bool:
        """Whether a request finds a revision with a ready pod in every pool."""
        told = [each.name for each in self.status.revisions if each.weight]
        return any(self.routable(name) for name in told)

    def routable(self, revision: str) -> bool:
        pools = self.pools_of(revision)
        return bool(pools) and all(self.pods(pool, revision, ready=True) for pool in pools)

    def available(self, pool: str, image: str | None = None) -> int:
        """Ready pods of revisions that can serve and have this image; without one, any whose answers do not fail."""
        revisions = {labels_of(obj)[REVISION]: self.image_of(labels_of(obj)[REVISION]) for obj in self.of(DEPLOYMENT)}
        fitting = [name for name, each in revisions.items() if each == image or (image is None and each != WRONG)]
        return sum(len(self.pods(pool, name, ready=True)) for name in fitting if self.routable(name))

    # -- Time -------------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        if self._operator is None or self._operator.done():
            self.crash()
            self._operator = asyncio.create_task(self._operate())
        due = any(0 <= self.clock.now() - born - READY_S < 2 * EVERY_S for born in self._born.values())
        if due or self.cluster.writes != self._looked_at:
            self._looked_at = self.cluster.writes
            await self._deploy()
            await self._gates()
            await self._kubelet()
            self.routers.look()
        self.routers.serve()
        if self.clock.now() % TURN_S < EVERY_S:
            await self._trouble()
        await asyncio.sleep(EVERY_S)

    async def run(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            await self.tick()

    async def settle(self, quiet_s: float = 120.0, most_s: float = 6000.0) -> None:
        """Until nobody has written anything for a while; fails when that never happens."""
        end, calm, writes = self.clock.now() + most_s, 0.0, -1
        while calm < quiet_s:
            assert self.clock.now() < end, f"never settles: {self.object.get('status')}"
            await self.tick()
            calm = calm + EVERY_S if self.cluster.writes == writes else 0.0
            writes = self.cluster.writes

    def crash(self) -> None:
        """The operator's process ends at once."""
        if self._operator is not None:
            self._operator.cancel()
            if self._operator.done() and not self._operator.cancelled():
                error = self._operator.exception()
                if error is not None and not is_crash(error):
                    raise error
        self._operator = None

    async def close(self) -> None:
        operator = self._operator
        self.crash()
        if operator is not None:
            with suppress(asyncio.CancelledError, BaseExceptionGroup):
                await operator

    async def _operate(self) -> None:
        self.lives += 1
        queue: WorkQueue[tuple[str, str]] = WorkQueue(self.clock)
        entropy = SeededEntropy(self.lives)
        mirror = Mirror(self.cluster, Watched(tenants=tenants_of(self.installation)), self.clock, entropy, queue.add)
        meter = NullMeter()
        recorder = EventRecorder(self.cluster, self.clock, "tandem.dev/operator", f"life-{self.lives}")
        applier = Applier(self.cluster, self.clock, recorder, meter)
        controller = Controller(
            ControllerDeps(
                mirror,
                self.routers,
                self.models,
                applier,
                recorder,
                queue,
                self.clock,
                meter,
                self.installation,
                self.nodes,
            )
        )
        workers = Workers(queue, controller.work, controller.failed, count=2)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(mirror.run())
                await asyncio.sleep(0.1)
                await mirror.synced()
                tasks.create_task(workers.run())
        finally:
            queue.close()

    async def _deploy(self) -> None:
        """As the Deployment controller: as many pods as are asked for; unready, cheap and young ones go first. The
        operator writes meanwhile: what it has deleted is gone, and a pod whose Deployment went is collected."""
        for obj in self.of(DEPLOYMENT):
            labels = obj["spec"]["template"]["metadata"]["labels"]
            pods = [each for each in self.pods(labels[POOL], labels[REVISION]) if labels_of(each) == labels]
            for _ in range(int(obj["spec"]["replicas"]) - len(pods)):
                await self._start(obj, labels)
            pods.sort(key=self._rank)
            for pod in pods[: max(0, len(pods) - int(obj["spec"]["replicas"]))]:
                await self._remove(pod)
        owners = {obj["metadata"]["uid"] for kind in (DEPLOYMENT, JOB) for obj in self.of(kind)}
        for pod in self.of(POD):
            if pod["metadata"]["ownerReferences"][0]["uid"] not in owners:
                await self._remove(pod)

    async def _remove(self, pod: Json) -> None:
        with suppress(NotFound):
            await MemoryCluster.delete(self.cluster, ref_of(pod, POD))
        self.cluster.seen()

    def _rank(self, pod: Json) -> tuple[bool, int, float]:
        cost = int(annotations_of(pod).get(DELETION_COST, "0"))
        return (is_ready(pod), cost, -self._born.get(pod["metadata"]["name"], 0.0))

    async def _start(self, obj: Json, labels: dict[str, str]) -> None:
        self._pods += 1
        name = f"{obj['metadata']['name']}-{self._pods}"
        self._born[name] = self.clock.now()
        owner = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"]}
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "ownerReferences": [{**owner, "uid": obj["metadata"]["uid"], "controller": True}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": obj["spec"]["template"]["spec"]}
        await MemoryCluster.apply(self.cluster, pod, "deployment-controller")

    async def _schedule(self) -> None:
        """As a scheduler: pods that wait get a node as soon as another one of their pool has left it."""
        for pool, most in self.room.items():
            pods = {pod["metadata"]["name"]: pod for pod in self.pods(pool)}
            self._placed |= {name for name, pod in pods.items() if is_ready(pod)}
            waiting = [name for name in pods if name not in self._placed]
            free = max(0, most - (len(pods) - len(waiting)))
            for name in waiting[:free]:
                self._placed.add(name)
                self._born[name] = self.clock.now()
                if "status" in pods[name]:
                    await self._say(pods[name], "PodScheduled", True)
            for name in waiting[free:]:
                if "status" not in pods[name]:
                    await self._say(pods[name], "PodScheduled", False)

    async def _kubelet(self) -> None:
        await self._schedule()
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if labels_of(pod)[POOL] in self.room and name not in self._placed:
                continue
            image = pod["spec"]["containers"][0]["image"]
            if image == NO_ROOM and "status" not in pod:
                await self._say(pod, "PodScheduled", False)
            broken = (
                image == NO_ROOM
                or _trouble_of(image) in TROUBLES
                or (image == NEVER_READY and labels_of(pod)[POOL] == "decode")
            )
            if not is_ready(pod) and not broken and self.clock.now() - self._born[name] >= READY_S:
                await self._say(pod, "Ready", True)

    async def _say(self, pod: Json, type_: str, holds: bool) -> None:
        when = timestamp(self.clock.wall())
        condition = {"type": type_, "status": "True" if holds else "False", "lastTransitionTime": when}
        if type_ == "PodScheduled" and not holds:
            condition |= {
                "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            }
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
        status = {"phase": "Pending" if type_ == "PodScheduled" else "Running", "conditions": [condition]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        with suppress(NotFound):
            await MemoryCluster.apply_status(self.cluster, body, "kubelet")

    async def _trouble(self) -> None:
        """What the kubelet says of containers that do not come up."""
        turn = int(self.clock.now() // TURN_S)
        for pod in self.of(POD):
            container = pod["spec"]["containers"][0]
            trouble = "no-image" if GATE in labels_of(pod) else _trouble_of(container["image"])
            if trouble not in TROUBLES:
                continue
            one = {"name": container["name"], "image": container["image"], "ready": False, "imageID": ""}
            status = {"phase": "Pending", "containerStatuses": [{**one, **TROUBLES[trouble](turn)}]}
            metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
            await MemoryCluster.apply_status(self.cluster, body, "kubelet")

    async def kill(self, number: int) -> None:
        """A worker's container dies; the kubelet starts it again."""
        pods = self.pods(ready=True)
        if pods:
            pod = pods[number % len(pods)]
            self._born[pod["metadata"]["name"]] = self.clock.now()
            await self._say(pod, "Ready", False)

    async def _gates(self) -> None:
        for job in self.of(JOB):
            image = self.image_of(labels_of(job)[GATE])
            if image == NOT_ASKED:
                if not any(GATE in labels_of(pod) for pod in self.of(POD)):
                    await self._start(job, job["spec"]["template"]["metadata"]["labels"])
            elif "status" not in job:
                reason = {REFUSED: "PodFailurePolicy", JOB_ENDED: "DeadlineExceeded"}.get(image, "")
                condition = {"type": "Failed" if reason else "Complete", "status": "True", "reason": reason}
                metadata = {key: job["metadata"][key] for key in ("name", "namespace")}
                body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
                with suppress(NotFound):
                    await MemoryCluster.apply_status(
                        self.cluster, {**body, "status": {"conditions": [condition]}}, "jobs"
                    )


def _trouble_of(image: str) -> str:
    return image.rpartition("/")[2]


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def notes(world: World) -> list[str]:
    """Reasons of Events, in order."""
    return [str(each["reason"]) for each in world.of(EVENT)]
