"""What a node says about itself. Pure."""

from collections.abc import Mapping

from tandem.kube.kinds import Json
from tandem.kube.times import micro_timestamp, timestamp

LEASES = "kube-node-lease"
LEASE_S = 15
"""Seconds after which a node that does not renew is taken for dead (the controllers look each second)."""
_CONDITIONS = {
    "Ready": ("True", "KubeletReady"),
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
}


def node(name: str, labels: Mapping[str, str]) -> Json:
    """The Node object."""
    given = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": given}}


def status(name: str, address: str, capacity: Mapping[str, str], wall: float) -> Json:
    """Its status: ready, with this capacity."""
    now = timestamp(wall)
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": reason,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, (value, reason) in _CONDITIONS.items()
    ]
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", **capacity}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": conditions,
        },
    }


def lease(name: str, uid: str, wall: float) -> Json:
    """The Lease by which others know that the node lives."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASES, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": micro_timestamp(wall)},
    }
