"""A Ray cluster of three nodes on loopback addresses, with Serve and its HAProxy: `make test-ray`. It runs in network
and PID namespaces of its own, so that nothing of it reaches, or outlives, the tests.

Elsewhere these tests are not collected: Ray starts servers on every address.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

NODES: Final = 3
HTTP_PORT: Final = 18000
FALLBACK_PORT: Final = 18500


def _alone() -> bool:
    """Whether this process is in namespaces of its own, without routes and under a shell: else Ray would start where
    others work."""
    routes, first = Path("/proc/net/route"), Path("/proc/1/comm")
    return routes.exists() and len(routes.read_text().splitlines()) == 1 and first.read_text().strip() == "sh"


collect_ignore_glob = [] if importlib.util.find_spec("ray") is not None and _alone() else ["test_*.py"]


@dataclass
class RayStage:
    """The cluster: Ray's own object for it, its nodes, and a short folder for everything that it writes."""

    cluster: Any
    nodes: list[Any]
    folder: Path

    @property
    def logs(self) -> Path:
        """What workers have printed."""
        return self.folder / "ray" / "session_latest" / "logs" / "tandem"


@pytest.fixture(scope="session")
def ray_stage() -> Iterator[RayStage]:
    """Three nodes at 127.0.0.1 to 127.0.0.3 with custom resources n0, n1 and n2, and Serve with HAProxy."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    os.environ.update(_environment(folder))
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    each = {"object_store_memory": 80 << 20, "num_cpus": 8}
    head = {**each, "include_dashboard": False, "node_ip_address": "127.0.0.1", "temp_dir": str(folder / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "resources": {"n0": 100}})
    try:
        nodes = [cluster.head_node]
        for index in range(1, NODES):
            address = f"127.0.0.{index + 1}"
            nodes.append(cluster.add_node(**each, node_ip_address=address, resources={f"n{index}": 100}))
        ray.init(address=cluster.address, log_to_driver=False, namespace="tests")
        begin_serve(folder)
        yield RayStage(cluster, nodes, folder)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def begin_serve(folder: Path) -> None:
    """Start Serve with HAProxy, whose files go into `folder`."""
    from tandem.apps.ray.ingress import IngressPorts, ingress_environment, start_serve

    ports = IngressPorts(HTTP_PORT, HTTP_PORT + 404, HTTP_PORT + 101, FALLBACK_PORT)
    assert start_serve(HTTP_PORT, ingress_environment(folder / "ha", ports))


def _environment(folder: Path) -> dict[str, str]:
    """Of all processes of the cluster: short paths, nothing sent to anybody, short drains of HAProxy."""
    return {
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "5",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
