"""Nodes of the lab: each is a process of its own that runs pods."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json
from tests.cluster.lab.lab import Lab
from tests.cluster.lab.processes import Server

READY_S = 60.0


def node(lab: Lab, number: int, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Server:
    """Node `number`, from 0, not started yet. Its pods have addresses 10.77.<number + 1>.x."""
    name = name_of(number)
    directory = lab.directory / name
    directory.mkdir(exist_ok=True)
    argv = [
        *(sys.executable, "-m", "tests.cluster.kubelet", "--node", name, "--subnet", str(number + 1)),
        *("--kubeconfig", str(lab.kubeconfig()), "--directory", str(directory)),
        *("--capacity", _pairs(capacity), "--labels", _pairs(labels or {})),
    ]
    return Server(name, argv, lab.directory / f"{name}.log")


def name_of(number: int) -> str:
    return f"node-{number}"


def wait_until_ready(admin: Admin, servers: list[Server]) -> None:
    """Until pods may be put on all of these nodes."""
    for server in servers:
        server.wait_until(partial(_schedulable, admin, server.name), READY_S)


def _schedulable(admin: Admin, name: str) -> bool:
    answer = admin.ask("GET", f"/api/v1/nodes/{name}")
    if answer.status != 200:
        return False
    node: Json = answer.body
    conditions = node["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not node["spec"].get("taints")


def log_of(lab: Lab, pod: str) -> str:
    """What the containers of a pod of this name have printed, on whichever node."""
    logs: list[Path] = sorted(lab.directory.glob(f"node-*/{pod}-*/containers/*.log"))
    return "\n".join(log.read_text(errors="replace") for log in logs)


def _pairs(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())
