"""What the operator's pod of a pool may do, as far as it matters for pinned memory, and whether the kubelet would
start it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from control_plane.objects.installation import Installation, completed
from control_plane.objects.pods import CONTAINER, pod_template
from control_plane.objects.scheduling import network_devices
from tandem.apps.cli.doctor.cases import Case

_CAPABILITY: Final = "IPC_LOCK"
_ROOT: Final = 0


@dataclass(frozen=True)
class PodRights:
    """The rights of a worker's container. `user` is in words. `ipc_lock` says whether the container is exempt from
    RLIMIT_MEMLOCK, which takes the capability and root: Kubernetes gives other users a capability in name only."""

    rdma: bool
    user: str
    ipc_lock: bool


def rights_of(case: Case) -> PodRights:
    """The rights of the pool's worker container, as rendered with the pool's `template` merged over it."""
    template = _rendered(case)
    worker = next(each for each in template["spec"]["containers"] if each["name"] == CONTAINER)
    own = worker.get("securityContext") or {}
    user = _of_container("runAsUser", template, worker)
    added = (own.get("capabilities") or {}).get("add") or ()
    may = user == _ROOT and (bool(own.get("privileged")) or not {_CAPABILITY, "ALL"}.isdisjoint(added))
    rdma = bool(network_devices(case.pool, template))
    return PodRights(rdma, "the image's user" if user is None else f"user {user}", may)


def refused_user(case: Case) -> str | None:
    """The container that the kubelet would not start because of its user, and the reason; None when there is none.
    The containers that fetch the model and those that the template adds count, too."""
    template = _rendered(case)
    containers = (*template["spec"].get("initContainers", ()), *template["spec"].get("containers", ()))
    for container in containers:
        user, confined = (_of_container(field, template, container) for field in ("runAsUser", "runAsNonRoot"))
        if user == _ROOT and confined:
            name = container.get("name")
            return f"container {name} has runAsUser: 0 and runAsNonRoot: true, with which no kubelet starts it"
    return None


def _rendered(case: Case) -> Mapping[str, Any]:
    installation = Installation()
    service = completed(case.service, installation)
    pool = next(each for each in service.spec.pools if each.name == case.pool.name)
    return pod_template(service, pool, "r", installation)


def _of_container(field: str, template: Mapping[str, Any], container: Mapping[str, Any]) -> Any:
    """A field of the security context: the container's own, or else its pod's."""
    own, pod = container.get("securityContext") or {}, template["spec"].get("securityContext") or {}
    return own.get(field, pod.get(field))
