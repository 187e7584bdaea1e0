"""What the operator's pod of a pool may do, of what matters for memory that is pinned. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from control_plane.objects.installation import Installation, completed
from control_plane.objects.pods import CONTAINER, asks_for_rdma, pod_template
from tandem.cli.doctor.cases import Case

_CAPABILITY: Final = "IPC_LOCK"


@dataclass(frozen=True)
class PodRights:
    """Of a worker's container. `ipc_lock`: whether RLIMIT_MEMLOCK does not hold for it, which takes the capability
    and root: Kubernetes gives a capability to others in name only. `refused`: why the kubelet would not start it."""

    rdma: bool
    user: int
    ipc_lock: bool
    refused: str | None = None


def rights_of(case: Case) -> PodRights:
    """As rendered, with the pool's `template` merged over it."""
    installation = Installation()
    service = completed(case.service, installation)
    pool = next(each for each in service.spec.pools if each.name == case.pool.name)
    template = pod_template(service, pool, "r", installation)
    pod = template["spec"].get("securityContext") or {}
    own = (
        next(each for each in template["spec"]["containers"] if each["name"] == CONTAINER).get("securityContext")
        or {}
    )
    user = int(own.get("runAsUser", pod.get("runAsUser", 0)))
    added = (own.get("capabilities") or {}).get("add") or ()
    may = user == 0 and (bool(own.get("privileged")) or not {_CAPABILITY, "ALL"}.isdisjoint(added))
    return PodRights(asks_for_rdma(template), user, may, _refused(own, pod, user))


def _refused(own: Mapping[str, Any], pod: Mapping[str, Any], user: int) -> str | None:
    if user == 0 and own.get("runAsNonRoot", pod.get("runAsNonRoot", False)):
        return (
            "the template sets runAsUser: 0 and leaves runAsNonRoot: true, with which the kubelet starts no container"
        )
    return None
