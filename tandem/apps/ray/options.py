"""Settings of Tandem on Ray."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from router.api.auth import Keys, load_keys
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class RaySettings:
    """Everything that the hub is told once."""

    address: str = "auto"
    """The Ray cluster: `auto`, `ray://HOST:PORT` or `HOST:PORT`."""
    ingress: str = "haproxy"
    """`haproxy` puts routers behind Serve's ingress, `direct` has them listen on the service's own port."""
    routers: int | None = None
    """How many routers; by default 2, or 1 on one node."""
    route_prefix: str = "/"
    """The path under which Serve's ingress finds the routers."""
    vllm_python: str | None = None
    """The interpreter of workers with the engine vllm; by default that of the replica."""
    api_keys: str | None = None
    """The path of a file of API keys on every node of routers; without one everybody in reach may ask."""
    keep: bool = False
    """Leave everything running when the command ends."""
    router_key: str = field(default="", repr=False)
    """API key by which the hub asks routers, where those want one."""
    given: frozenset[str] = frozenset()
    """Names of the settings that were asked for, and are not at their defaults by silence."""
    url: str = ""
    """Where clients reach the routers, for the status of services; empty while that is not known."""

    def shown(self) -> "RaySettings":
        """With a digest in the place of the key, by which keys can be compared."""
        digest = hashlib.sha256(self.router_key.encode()).hexdigest() if self.router_key else ""
        return replace(self, router_key=digest)


def keys_on_node(path: str | None, node: str) -> Keys:
    """The API keys of a file of this node; without one there are none. Raises `bad_setting` naming node and path."""
    try:
        return Keys() if path is None else load_keys(Path(path))
    except TandemError as error:
        problem = f"router on node {node}: {error.message}; --api-keys is a path on every node of routers"
        raise TandemError("bad_setting", problem, param="api_keys") from error
