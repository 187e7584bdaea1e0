"""Whether workers that have devices for RDMA move their KV by it, as they tell routers. Pure."""

from collections.abc import Iterator
from typing import Final

from control_plane.objects.scheduling import network_devices, transports
from control_plane.observe.observed import Observed, Pod
from control_plane.reconcile.causes import cut
from control_plane.reconcile.desired_state import DesiredState

_RDMA: Final = ("", "shm", "nixl", "nixl/ucx-rdma")
"""What workers with RDMA tell; those that only fetch tell nothing, those without a fabric do not know theirs, and
those that share memory on their node tell of that."""
_WHY_MAX: Final = 400


def kv_over_tcp(observed: Observed, goal: DesiredState) -> Iterator[str]:
    """One sentence for each pool whose workers were given devices for RDMA and move KV over something else."""
    for pool, pods in _of_pools(observed, goal):
        slow = [pod for pod in pods if pod.kv_problem or (pod.kv_path or "") not in _RDMA]
        if slow:
            first = min(slow, key=lambda pod: pod.name)
            why = f": {cut(first.kv_problem, _WHY_MAX)}" if first.kv_problem else ""
            path = f" but over {first.kv_path}" if first.kv_path else ""
            yield f"{len(slow)} of {len(pods)} workers of pool {pool} do not move KV by RDMA{path}{why}."


def awaits_paths(observed: Observed, goal: DesiredState) -> bool:
    """Whether routers have yet to learn how a worker with devices for RDMA moves its KV."""
    return any(pod.kv_path is None for _, pods in _of_pools(observed, goal) for pod in pods)


def _of_pools(observed: Observed, goal: DesiredState) -> Iterator[tuple[str, list[Pod]]]:
    """The pools of the target that prefer nixl, with its pods that take work."""
    service, records = observed.wish.service, goal.target.pools if goal.target is not None else {}
    for pool in service.spec.pools if service is not None else ():
        if pool.name not in records:
            continue
        if transports(pool, network_devices(pool, records[pool.name].template))[0] == "nixl":
            pods = observed.pods_of(pool.name, goal.target.name if goal.target is not None else None)
            yield pool.name, [pod for pod in pods if pod.ready and not pod.leaving]
