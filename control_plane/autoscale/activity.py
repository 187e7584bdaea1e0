"""Whether a service is to be awake: one answer for all its pools. Pure."""

from collections.abc import Iterable

from control_plane.autoscale.coupling import overdue
from control_plane.autoscale.history import History
from control_plane.autoscale.model import PoolSpeed, ServiceLoad
from tandem.spec.pool import Autoscaling, Pool


def scaled(pools: Iterable[Pool]) -> tuple[tuple[Pool, Autoscaling], ...]:
    """Pools that have autoscaling."""
    return tuple((pool, pool.autoscaling) for pool in pools if pool.autoscaling is not None)


def may_scale_to_zero(pools: tuple[Pool, ...]) -> bool:
    """Whether every pool may have no worker at all."""
    return all(pool.autoscaling is not None and pool.autoscaling.min_replicas == 0 for pool in pools)


def activity(
    pools: tuple[Pool, ...],
    load: ServiceLoad,
    speeds: dict[str, PoolSpeed],
    floors: dict[str, int],
    history: History,
    now: float,
) -> tuple[bool, float | None, str]:
    """Whether the service is awake, when it was last busy, and why.

    Workers that are starting keep the service awake, since the requests that woke it may have given up by the time
    the workers are ready. Workers that have been starting for too long do not. While a router has not reported, the
    service does not go to sleep.
    """
    if not may_scale_to_zero(pools):
        return True, now, "it never sleeps: a pool has a minimum"
    if load.busy:
        return True, now, "it has requests"
    if any(floors.values()):
        return True, now, "a floor of the schedule is open"
    loads = {name: each for name, each in load.pools.items() if name in speeds}
    starting = sum(len(each.starting_s) - overdue(each, speeds[name].cold_start_s) for name, each in loads.items())
    if starting:
        return True, now, f"{starting} workers are starting"
    sleeps = not any(each.wanted for each in load.pools.values())
    if history.busy_at is None:
        # Whoever has just begun to look goes by what there is.
        why = "it sleeps, and there are no requests" if sleeps else "it was not seen before"
        return not sleeps, None if sleeps else now, why
    patience_s = max((autoscaling.idle_after_seconds or 0 for _, autoscaling in scaled(pools)), default=0)
    idle_s = now - history.busy_at
    if idle_s < patience_s:
        return True, history.busy_at, f"it has been idle for {idle_s:.0f} of {patience_s} s"
    if not load.complete and not sleeps:
        return True, history.busy_at, "not every router has told whether there are requests"
    return False, history.busy_at, f"it has been idle for {idle_s:.0f} s"
