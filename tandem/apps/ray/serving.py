"""The seam to Ray Serve: Tandem's applications of workers, and the reports that replicas send to the hub.

`ray_serving` speaks to a Ray cluster; tests have one in memory. Both pass `tests/contract/serving.py`.
Every value here is a struct of msgspec, so that it may travel as bytes.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal, Protocol

import msgspec

from tandem.kube.kinds import Json
from tandem.spec.service import ModelService

ROUTERS: Final = "tandem"
"""The name of the application of routers that `tandem up` makes."""
ROUTER: Final = "router"
"""The name of the deployment of routers, in whichever application."""
ROUTES: Final = "TANDEM_RAY_ROUTER"
"""The environment variable of routers' deployments: a mark that is there from the first moment on, and that
`ray_actor_options` of a configuration take away."""

AppStatus = Literal["deploying", "running", "unhealthy", "failed", "deleting"]


class ActorOptions(msgspec.Struct, frozen=True):
    """What one replica asks of a node. `resources` are Ray's custom resources by name."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    accelerator_type: str | None = None
    """In Ray's words, such as `H100`; None for any."""
    resources: dict[str, float] = {}
    max_replicas_per_node: int | None = None
    """1 to 100; None for no limit."""


class DeploymentPlan(msgspec.Struct, frozen=True):
    """The deployment of one pool in one revision. Counts are of workers: a worker that spans nodes is a gang of
    `gang` replicas."""

    pool: str
    options: ActorOptions
    gang: int
    """Replicas of one worker, at least 1."""
    drain_s: float
    """Seconds that a worker which leaves may take."""
    most: int
    """Workers at most."""
    first: int
    """Workers at first."""


class RevisionApp(msgspec.Struct, frozen=True):
    """The Serve application of one revision of a service."""

    name: str
    """`SERVICE-REVISION`."""
    service: ModelService
    revision: str
    pools: tuple[DeploymentPlan, ...]


class DeploymentState(msgspec.Struct, frozen=True):
    """Replicas of one deployment by what they do. `message` is Serve's own about it."""

    running: int = 0
    starting: int = 0
    stopping: int = 0
    message: str = ""

    @property
    def there(self) -> int:
        """Replicas that exist, whatever they do."""
        return self.running + self.starting + self.stopping


class AppState(msgspec.Struct, frozen=True):
    """An application as Serve reports it, with its deployments by pool."""

    status: AppStatus
    deployments: dict[str, DeploymentState] = {}
    message: str = ""


class RouterApp(msgspec.Struct, frozen=True, kw_only=True):
    """An application of Tandem's routers as it runs, whoever has made it."""

    name: str
    status: AppStatus
    message: str = ""
    route_prefix: str | None = None
    """Where Serve's ingress has them; None where it has not."""
    replicas: int | None = None
    """How many there are to be; None while that is not known, as they are being made."""
    port: int = 0
    """On which each listens on its node; 0 where the system has chosen one, and where that is not known."""
    api_keys: str | None = None
    """The path of their key file."""

    @property
    def where(self) -> str:
        """How clients reach them, in words."""
        behind = f"behind Serve's ingress at {self.route_prefix}"
        own = f"on port {self.port} of their nodes" if self.port else "on ports of their own"
        return own if self.route_prefix is None else f"{behind} and {own}" if self.port else behind


class WorkerTold(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one replica about the worker that it owns. A worker's name is never given twice."""

    name: str
    service: str
    pool: str
    role: str
    revision: str
    address: str = ""
    """`IP:PORT` of its link; empty until it listens."""
    metrics: str = ""
    """`IP:PORT` of its health and metrics pages; empty until it listens."""
    node: str = ""
    """Ray's id of its node."""
    pid: int = 0
    """Of the worker's process; 0 while there is none."""
    ready: bool = False
    leaving_s: float | None = None
    """Seconds within which it drains, once it leaves; None before."""
    gone: bool = False
    """The last report of this worker: its process has ended."""
    gang: str = ""
    """The gang's id where the worker spans nodes; empty otherwise."""
    rank: int = 0
    """The replica's rank in its gang. Rank 0 is the worker; the others hold ranks of its engine."""

    @property
    def app(self) -> str:
        """The name of its application."""
        return app_name(self.service, self.revision)


class RouterTold(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one router: where its HTTP API listens, by its own port."""

    name: str
    host: str
    port: int
    secure: bool = False
    metrics: str = ""
    """`IP:PORT` of its metrics page."""
    node: str = ""
    pid: int = 0
    ready: bool = True
    leaving: bool = False
    """It takes no new requests any more."""
    gone: bool = False
    """The last report of this router."""


def state_of(told: WorkerTold | RouterTold) -> str:
    """In one word, as a registry of platforms names it."""
    leaving = told.leaving if isinstance(told, RouterTold) else told.leaving_s is not None
    return "draining" if leaving else "ready" if told.ready else "starting"


class Orders(msgspec.Struct, frozen=True):
    """The hub's answer to a worker's report."""

    epoch: int
    """The hub's, which grows with every start of it."""
    known: bool = True
    """Whether the hub wants workers of this service and revision. A worker that is not known for longer than its
    drain may end by itself: its application is about to be deleted."""


class Serving(Protocol):
    """Tandem's applications of workers on a Ray cluster. Errors are `TandemError`: `link_lost` while Serve does not
    answer, `bad_setting` for an application that Serve refuses. Every call has a bound of its own; none retries."""

    async def running(self) -> Mapping[str, AppState]:
        """Tandem's own applications of workers, by name, those that are being deleted included."""
        ...

    async def routers(self) -> tuple[str, ...]:
        """Names of the applications of Tandem's routers. Where Serve does not run there is none."""
        ...

    async def deploy(self, app: RevisionApp) -> None:
        """Make the application; return before its replicas run. Nothing happens where one of that name is there,
        in whatever state: an application is deployed once and never again."""
        ...

    async def want(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """The whole table of workers wanted, by application and pool; it may name applications that are not there
        yet. What it does not name stays as it is."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the application; return before its replicas have ended, each of which drains first. Nothing happens
        where there is none of that name."""
        ...


def routes(name: str, app: Json, marked: Collection[str]) -> bool:
    """Whether an application is one of routers, by Serve's details of it and the names that routers have marked
    themselves. While it is being made or deleted it has no deployments by which to know it."""
    if not app["deployments"]:
        return name == ROUTERS or name in marked
    if ROUTER not in app["deployments"]:
        return False
    options = app["deployments"][ROUTER]["deployment_config"].get("ray_actor_options") or {}
    return name in marked or ROUTES in ((options.get("runtime_env") or {}).get("env_vars") or {})


def app_name(service: str, revision: str) -> str:
    """The name of the application of one revision."""
    return f"{service}-{revision}"
