"""One service as it is in the cluster: what every decision about it is made from. Plain values.

Objects are as the API server gave them and never changed in place. Times are wall-clock seconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.objects.revisions import RevisionRecord
from control_plane.rollout.model import GateResult, Health
from tandem.core.sizing import Shape
from tandem.core.weight_format import WeightFormat
from tandem.kube.kinds import Json, Kind, Ref
from tandem.spec.service import ModelService


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that are known before it is loaded. `dtype` is that of its weights, `context` the longest
    one; None stands for an unknown fact. `unread` is why there is no shape. `config` is its `config.json`, `format`
    how a quantized checkpoint stores its weights, `kv_dtype` the type in which it asks for its KV."""

    shape: Shape | None
    dtype: str | None = "bfloat16"
    context: int | None = None
    unread: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)
    format: WeightFormat | None = None
    kv_dtype: str | None = None


@dataclass(frozen=True)
class DesiredSpec:
    """The specification that a ModelService asks for. `service` is None when it cannot be read; `problem` says why it
    cannot be fulfilled.

    `service` includes the installation's defaults; `revision` is that of the completed specification.
    """

    service: ModelService | None
    revision: str = ""
    problem: str | None = None
    own: ModelService | None = None
    """The service without the installation's defaults."""


@dataclass(frozen=True)
class Container:
    """A container of a pod that does not do its work: it waits for something, or it ended and is not ready again."""

    name: str
    image: str = ""
    waiting: str = ""
    """Why it waits, in the kubelet's one word; empty when it does not wait."""
    waiting_why: str = ""
    ended: str = ""
    """How it last ended, in the kubelet's one word, such as OOMKilled; empty when it never did."""
    exit_code: int = 0
    last_words: str = ""
    """Its termination message when it ended."""


@dataclass(frozen=True)
class Pod:
    """One worker's pod, the first of its group where a worker spans nodes."""

    name: str
    uid: str
    pool: str
    revision: str
    created_s: float
    ready: bool = False
    """Whether the pod takes work."""
    ready_s: float | None = None
    """When the pod became ready, wall-clock seconds; None while it is not ready."""
    leaving: bool = False
    unplaced_s: float | None = None
    """Time since which no node has had room for the pod, wall-clock seconds; None otherwise."""
    unplaced_why: str = ""
    unmounted_s: float | None = None
    """Time since which the pod has had a node and cannot begin there, wall-clock seconds; None otherwise."""
    mounts: tuple[str, ...] = ()
    """ConfigMaps and Secrets that it mounts, such as `Secret tandem-kv-key`."""
    attaches: bool = False
    """Whether it mounts what takes its time to be attached or fetched."""
    ran: bool = False
    """Whether any of its containers has ever run."""
    failing: tuple[Container, ...] = ()
    """Containers that do not do their work."""
    cost: str = ""
    """The pod's deletion cost as annotated; empty without the annotation."""
    running: int = 0
    """Sequences, as routers see it."""
    queued_tokens: int = 0
    """Prompt tokens that wait for it or are being computed."""
    kv_used: float = 0.0
    """Share of its KV memory."""
    kv_path: str | None = None
    """By what others fetch its KV, as it tells routers, such as `nixl/ucx-rdma`; empty for one that only fetches,
    None until they know."""
    kv_problem: str = ""
    """Why it cannot use RDMA, or uses something slower for it; empty where it says nothing."""


@dataclass(frozen=True)
class Workers:
    """A Deployment or LeaderWorkerSet: the pods of one pool in one revision."""

    pool: str
    revision: str
    replicas: int
    """Replicas that the workload asks for."""
    object: Json
    refused: str = ""
    """Why the API server refuses its pods, in the server's words; empty while it does not."""


@dataclass(frozen=True)
class Gate:
    """The comparison of a revision with its predecessor, as far as its Job tells. `since` is when the Job was made or
    last let go on, wall-clock seconds; `ended` is why it failed, in its controller's words; `pods` include those that
    have ended."""

    revision: str
    baseline: str
    result: GateResult
    object: Json
    since: float = 0.0
    ended: str = ""
    pods: tuple[Pod, ...] = ()
    suspended: bool = False
    """Whether its Job is held back, as a queue does."""
    had_pod: bool = False
    """Whether its Job says that there is or was a pod, also one that is gone, as when its node was drained."""
    had_run: bool = False
    """The same of a pod that has run."""


@dataclass(frozen=True)
class Extensions:
    """Kinds that not every cluster has."""

    keda: bool = False
    groups: bool = False
    keda_schema: Json | None = field(default=None, compare=False)
    """OpenAPI schema of KEDA's ScaledObject; None where it may not be read."""


@dataclass(frozen=True)
class Observed:
    """`object` is the ModelService as stored. `children` are all other objects of the service that its owner manages,
    by reference; EnginePools, workers and records are among them."""

    object: Json
    wish: DesiredSpec
    extensions: Extensions = Extensions()
    model: ModelFacts | None = None
    engine_pools: Mapping[str, Json] = field(default_factory=dict)
    workers: tuple[Workers, ...] = ()
    records: Mapping[str, RevisionRecord] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    followers: tuple[Pod, ...] = ()
    """The other pods of workers that span nodes."""
    gates: Mapping[str, Gate] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)
    routers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Routers that take requests, by name, each with the revisions to which it gives new requests."""
    children: Mapping[Ref, Json] = field(default_factory=dict)
    turns: int = 0
    """Services that have to be done before this one may take over new defaults of the installation."""
    name_holder: str = ""
    """The service, as `namespace/name`, that has this one's model name; empty where nobody knows of others."""
    accelerator_bytes: Mapping[str, int] = field(default_factory=dict)
    """By pool, the memory of one of its accelerators as labels of nodes tell it."""

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    def wanted(self, pool: str) -> int | None:
        """Replicas that the pool's EnginePool asks for; None when the pool has no EnginePool."""
        obj = self.engine_pools.get(pool)
        return None if obj is None else int(obj["spec"].get("replicas", 1))

    def workers_of(self, revision: str) -> dict[str, Workers]:
        """The workers of a revision, by pool."""
        return {each.pool: each for each in self.workers if each.revision == revision}

    def pods_of(self, pool: str, revision: str | None = None) -> tuple[Pod, ...]:
        """The pods of a pool, of one revision or of all, including those that are leaving."""
        return tuple(pod for pod in self.pods if pod.pool == pool and revision in (None, pod.revision))

    def ready(self, pool: str, revision: str) -> int:
        """Pods that take work and stay."""
        return sum(pod.ready and not pod.leaving for pod in self.pods_of(pool, revision))

    def of_kind(self, kind: Kind) -> Iterator[Json]:
        return (obj for ref, obj in self.children.items() if ref.kind == kind)
