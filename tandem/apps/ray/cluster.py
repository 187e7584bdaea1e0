"""A Ray cluster as commands use it: connecting, its nodes, Serve and its ingress."""

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.serving import AppState, RouterApp
from tandem.apps.ray.up_options import CLIENT, host_and_port
from tandem.core.errors import TandemError
from tandem.link.address import join_host
from tandem.spec.service import RouterSpec

if TYPE_CHECKING:
    from tandem.apps.ray.ingress import IngressPorts

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
"""What `auto` means, where it is set."""
_CONNECT_S: Final = 5.0
_HEAD: Final = "node:__internal_head__"
_STATISTICS, _METRICS, _FALLBACK = 404, 101, 500
"""By which HAProxy's other ports exceed the one for clients: with port 8000 all are Ray's own but that of metrics."""
_PORT_MAX: Final = 65535


@dataclass(frozen=True)
class ClusterNodes:
    """The head's address and id, and how many nodes live."""

    head: str
    head_id: str
    count: int

    def url(self, port: int) -> str:
        """Where the ingress on the head is reached."""
        return f"http://{join_host(self.head, port)}"

    @property
    def ingress_folder(self) -> Path:
        """Of HAProxy on the head; short, and of this cluster alone."""
        return Path("/tmp") / f"th-{hashlib.sha256(self.head_id.encode()).hexdigest()[:6]}"


class SharedCluster(Protocol):
    """What a platform asks of Ray and Serve themselves. Everything raises `link_lost` where they do not answer, and
    `bad_setting` for what they refuse."""

    async def nodes(self) -> ClusterNodes: ...

    async def start_serve(self, settings: RaySettings, nodes: ClusterNodes, port: int) -> bool:
        """Start Serve where it does not run; whether it was started."""
        ...

    async def ingress_port(self) -> int:
        """The port of Serve's ingress, as it runs."""
        ...

    async def make_hub(self, settings: RaySettings) -> None:
        """Make the hub where there is none; one that is there keeps its settings."""
        ...

    async def routers(self) -> tuple[RouterApp, ...]:
        """The applications of routers, those that are being deleted included."""
        ...

    async def deploy_routers(self, settings: RaySettings, count: int, router: RouterSpec) -> None:
        """Make the application `ROUTERS`, which must not be there; return before they listen."""
        ...

    async def delete_routers(self, *, wait: bool) -> None:
        """Delete the application `ROUTERS`; with `wait` return when it has ended."""
        ...

    async def state(self, name: str) -> AppState | None:
        """An application of that name; None where there is none."""
        ...

    async def others(self) -> tuple[str, ...]:
        """Names of the applications that are not Tandem's."""
        ...

    async def stop_serve(self, nodes: ClusterNodes) -> None: ...


def require_ray() -> None:
    """Raises `bad_setting` where Ray is not installed."""
    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise TandemError("bad_setting", "Ray is not installed here; run `pip install 'tandem-serve[ray]'`")


@contextmanager
def connected(address: str) -> Iterator[None]:
    """This process as a driver of the cluster. Raises `link_lost` where none can be reached there."""
    _check_reachable(address)
    import ray

    try:
        ray.init(address=address, namespace="tandem-commands", log_to_driver=False, logging_level="error")
    except Exception as error:
        raise TandemError("link_lost", _unreached(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def cluster_nodes() -> ClusterNodes:
    """The nodes of the cluster that this process is connected to. Raises `link_lost` while it names no head."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    for node in alive:
        if _HEAD in node["Resources"]:
            return ClusterNodes(node["NodeManagerAddress"], node["NodeID"], len(alive))
    raise TandemError("link_lost", "the Ray cluster names no head node")


def ingress_ports(http: int) -> "IngressPorts":
    """All ports of the ingress from the one for clients, at fixed distances. Raises `bad_setting`."""
    from tandem.apps.ray.ingress import IngressPorts

    if http + _FALLBACK > _PORT_MAX:
        problem = (
            f"port {http} is too high: HAProxy needs those {_METRICS}, {_STATISTICS} and {_FALLBACK} above it too"
        )
        raise TandemError("bad_setting", problem, param="port")
    return IngressPorts(http, http + _STATISTICS, http + _METRICS, http + _FALLBACK)


def start_ingress(settings: RaySettings, nodes: ClusterNodes, port: int) -> bool:
    """Start Serve where it does not run, with the ingress that is asked for; whether it was started."""
    from tandem.apps.ray.ingress import ingress_environment, start_serve

    behind = settings.ingress == "haproxy"
    environment = ingress_environment(nodes.ingress_folder, ingress_ports(port)) if behind else {}
    return start_serve(port, environment, proxies=behind)


def ingress_port() -> int:
    """The port of Serve's ingress, as it runs. Raises `link_lost` where Serve does not run."""
    from tandem.apps.ray.serve_client import serve_client

    client: Any = serve_client()
    if client is None:
        raise TandemError("link_lost", "Ray Serve does not run")
    options: Any = client.get_serve_details()["http_options"]
    return int(options["port"] if isinstance(options, dict) else options.port)


def stop_serve(nodes: ClusterNodes) -> None:
    """End Serve, and remove the folder of its ingress where the head is this machine."""
    from ray import serve

    serve.shutdown()
    with suppress(OSError):
        shutil.rmtree(nodes.ingress_folder)


def _check_reachable(address: str) -> None:
    """Ray itself waits for a minute and then ends the process. Raises `link_lost`, or `bad_setting` for what is no
    address."""
    if address == "auto":
        address = os.environ.get(ADDRESS_VARIABLE, address)
    if address in ("auto", "local"):
        return
    host, port = host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise TandemError("link_lost", _unreached(address, error)) from error


def _unreached(address: str, error: Exception) -> str:
    why = " ".join(str(error).split()) or type(error).__name__
    if address == "auto":
        hint = "start one with `ray start --head`, or name one with --address"
        return f"this machine is no node of a running Ray cluster ({why}); {hint}"
    hint = "" if address.startswith(CLIENT) else f"; from a machine that is no node of it use {CLIENT}HOST:10001"
    return f"the Ray cluster at {address} cannot be reached: {why}{hint}"
