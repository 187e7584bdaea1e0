"""`maxSurge` and `maxUnavailable` as users write them, in pods.

A percentage of surge is rounded up and one of unavailability down, as Deployments do it, so that both err towards
capacity.
"""

from control_plane.rollout.model import PoolTarget


def pool_target(name: str, replicas: int, max_surge: int | str, max_unavailable: int | str) -> PoolTarget:
    """The target of one pool that wants `replicas` now; `max_surge` and `max_unavailable` are pods or a percentage
    such as `25%`."""
    return PoolTarget(name, replicas, _pods(max_surge, replicas, up=True), _pods(max_unavailable, replicas, up=False))


def _pods(share: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(share, int):
        return share
    percent = int(share.removesuffix("%"))
    return -(-replicas * percent // 100) if up else replicas * percent // 100
