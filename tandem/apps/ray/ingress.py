"""Serve's ingress for routers: HAProxy, away from the paths and ports that all clusters of a machine share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_READY_S: Final = 60
"""Serve itself gives a proxy 5 s to start, which a busy head needs for importing it, and then fails to start."""
_STREAMS_S: Final = 3600
"""For so long streams go on in a HAProxy that another one has followed, as when routers come or go or Serve's
controller begins anew: what is left then is cut off, by default after 120 s."""
_BASE_MAX: Final = 38
"""Characters of the folder's path: HAProxy's sockets lie in there, below a node's id of 56."""


@dataclass(frozen=True)
class IngressPorts:
    """Ports of the head: `http` is for clients. HAProxy binds `statistics` and `metrics` on every address, whatever
    it is told; `fallback` is Serve's own proxy, which takes over while no router can be reached."""

    http: int
    statistics: int
    metrics: int
    fallback: int


def ingress_environment(folder: Path, ports: IngressPorts) -> dict[str, str]:
    """The environment of Serve's controller, proxies and replicas for an ingress by HAProxy."""
    assert len(str(folder)) < _BASE_MAX, f"{folder} is too long for Unix sockets in it"
    haproxy = {
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "admin.sock",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "state",
        "METRICS_SOCKET_PATH": folder / "metrics.sock",
        "METRICS_PORT": ports.metrics,
        "STATS_PORT": ports.statistics,
        "HARD_STOP_AFTER_S": _STREAMS_S,
    }
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(_READY_S),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback),
        **{f"RAY_SERVE_HAPROXY_{key}": str(value) for key, value in haproxy.items()},
    }


def start_serve(port: int, environment: dict[str, str], *, proxies: bool = True) -> bool:
    """Start Serve where it does not run, with its ingress at `port` of the head on every address, or with none.
    Whether it was started: Serve that runs is used as it is."""
    # Imported on use: the rest of this module needs no Ray.
    from ray import serve

    from tandem.apps.ray.serve_client import serve_client

    if serve_client() is not None:
        return False
    serve.start(
        proxy_location="HeadOnly" if proxies else "Disabled",
        http_options={"host": "0.0.0.0", "port": port},
        controller_options={"runtime_env": {"env_vars": environment}},
    )
    return True
