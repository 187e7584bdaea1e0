"""The pools of one role as the decision sees them: limits, loads and speeds side by side. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from control_plane.autoscale.assignment import Share
from control_plane.autoscale.model import PoolLoad, PoolSpeed, ServiceLoad
from tandem.spec.pool import Autoscaling, Pool

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Scalable:
    """One pool. `floor` is the least it may have while the service is awake."""

    pool: Pool
    load: PoolLoad
    speed: PoolSpeed
    floor: int

    @property
    def name(self) -> str:
        return self.pool.name

    @property
    def autoscaling(self) -> Autoscaling | None:
        return self.pool.autoscaling

    @property
    def most(self) -> int:
        return self.load.wanted if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def carrying(self) -> int:
        """The number of workers that the pool should have now, without its spares."""
        return max(0, self.load.wanted - self.pool.spare)

    def replicas(self, load: float) -> int:
        """Replicas for a load of `load` workers' worth, with the pool's spares, within its limits."""
        if self.autoscaling is None:
            return self.load.wanted
        return min(max(ceil(load - _ROUNDING) + self.pool.spare, self.floor), self.most)

    def share(self, worth: float) -> Share:
        if self.autoscaling is None:
            return Share(self.name, worth, self.load.wanted, self.load.wanted)
        least = min(max(self.floor - self.pool.spare, 0), self.most)
        return Share(self.name, worth, least, max(least, self.most))


@dataclass(frozen=True)
class ScalingInputs:
    """Speeds and floors of every pool."""

    speeds: Mapping[str, PoolSpeed]
    floors: Mapping[str, int]


def of_roles(
    pools: tuple[Pool, ...], roles: tuple[str, ...], load: ServiceLoad, told: ScalingInputs
) -> tuple[Scalable, ...]:
    """The pools that have one of these roles."""
    return tuple(
        Scalable(pool, load.pools.get(pool.name, PoolLoad()), told.speeds[pool.name], told.floors[pool.name])
        for pool in pools
        if pool.role in roles
    )
