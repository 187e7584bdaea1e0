"""Settings of Tandem on Ray."""

from dataclasses import dataclass


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
    keep: bool = False
    """Leave everything running when the command ends."""
    router_key: str = ""
    """API key by which the hub asks routers, where those want one."""
    url: str = ""
    """Where clients reach the routers, for the status of services; empty while that is not known."""
