"""A Ray cluster of three nodes on loopback addresses, with Serve and its HAProxy: `make test-ray`. It runs in network
and PID namespaces of its own, so that nothing of it reaches, or outlives, the tests.

Elsewhere these tests are not collected: Ray starts servers on every address.
"""

import importlib.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tandem.apps.cli import drill_settings
from tandem.process.settings import PREFIX
from tests.worlds.redis_stage import RedisServer

NODES: Final = 3
ROUTERS_AT: Final = (0, 2)
WORKERS_AT: Final = (0, 1)
"""Indices of the nodes with resources `router` and `worker`, so that drills know what they strike: on the head both
are. A stream whose router and decode worker die at once is lost, as it was nowhere else."""
WIDE_AT: Final = (0, 1)
"""Of those that have an accelerator, as Ray counts them: there is none."""
HTTP_PORT: Final = 18000
FALLBACK_PORT: Final = 18500
CLIENT_PORT: Final = 10001
"""Of Ray's client server on the head."""
_END_S: Final = 20.0
_AGENTS: Final = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


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

    def kill_node(self, index: int) -> None:
        """Kill the raylet, with which all workers of its node end. It is reaped: what it has started looks for it,
        and finds the pid of one that is not."""
        (raylet,) = self.nodes[index].all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        raylet.process.wait()

    def return_node(self, index: int) -> None:
        """A node of the same address and resources in the place of one that was killed. Only in the main thread."""
        self.cluster.remove_node(self.nodes[index], allow_graceful=False)
        self.nodes[index] = add_node(self.cluster, index)

    def node_of(self, pid: int) -> int:
        """The index of the node whose raylet has started a process."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in self.nodes]
        return next(raylets.index(each.pid) for each in psutil.Process(pid).parents() if each.pid in raylets)

    @property
    def logs(self) -> Path:
        """What workers have printed."""
        return self.folder / "ray" / "session_latest" / "logs" / "tandem"


@pytest.fixture(scope="session")
def ray_stage() -> Iterator[RayStage]:
    """Three nodes at 127.0.0.1 to 127.0.0.3 with custom resources n0, n1 and n2, and Serve with HAProxy."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    try:
        with RedisServer(folder / "redis") as redis:
            os.environ.update(_environment(folder, redis.port))
            yield from _cluster(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not (left := _left()), f"left after Ray was stopped: {left}"


def _cluster(folder: Path) -> Iterator[RayStage]:
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, "temp_dir": str(folder / "ray"), "ray_client_server_port": CLIENT_PORT}
    cluster = Cluster(initialize_head=True, head_node_args={**_node(0), **head})
    try:
        nodes = [cluster.head_node, *(add_node(cluster, index) for index in range(1, NODES))]
        ray.init(address=cluster.address, log_to_driver=False, namespace="tests")
        begin_serve(folder)
        yield RayStage(cluster, nodes, folder)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


def _left() -> list[str]:
    """Processes beside the tests' own, which are the only ones of their namespace, once there was time to end. Agents
    of Ray's that have lost their raylet tell a head about it that is gone, for a while, and are left out."""
    ours = {1, os.getpid()}
    give_up = time.monotonic() + _END_S
    while True:
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if each.pid not in ours and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(each.cmdline()).strip())
        found = [each for each in found if each not in _AGENTS]
        if not found or time.monotonic() > give_up:
            return found
        time.sleep(0.1)


def begin_serve(folder: Path) -> None:
    """Start Serve with HAProxy, whose files go into `folder`."""
    from tandem.apps.ray.ingress import IngressPorts, ingress_environment, start_serve

    ports = IngressPorts(HTTP_PORT, HTTP_PORT + 404, HTTP_PORT + 101, FALLBACK_PORT)
    assert start_serve(HTTP_PORT, ingress_environment(folder / "ha", ports))


def add_node(cluster: Any, index: int) -> Any:
    """One more node, with the address and the resources of that index."""
    return cluster.add_node(**_node(index))


def address_of(index: int) -> str:
    """Of a node."""
    return f"127.0.0.{index + 1}"


def _node(index: int) -> dict[str, Any]:
    resources = {f"n{index}": 100}
    resources |= {"router": 100} if index in ROUTERS_AT else {}
    resources |= {"worker": 100} if index in WORKERS_AT else {}
    wide = index in WIDE_AT
    resources |= {"accelerator_type:H100": 1} if wide else {}
    return {
        "object_store_memory": 80 << 20,
        "num_cpus": 8,
        "num_gpus": 1 if wide else 0,
        "node_ip_address": address_of(index),
        "resources": resources,
    }


def _environment(folder: Path, redis_port: int) -> dict[str, str]:
    """Of all processes of the cluster: short paths, nothing sent to anybody, short drains of HAProxy. The head keeps
    its state in Redis, dead nodes count as dead soon, and the simulated engine takes its time, as for drills."""
    pace = drill_settings.worker_settings("simulated")
    return {
        **{PREFIX + key.upper().replace(".", "__"): str(value) for key, value in pace.items()},
        "RAY_REDIS_ADDRESS": f"127.0.0.1:{redis_port}",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise everything else on the machine goes before what Ray starts.
        "RAY_worker_niceness": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
