"""The optional parts of a simulated world, beyond a router and workers that report every event: stores, Redis, more
routers."""

from dataclasses import dataclass, field
from typing import Final

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.names import ROUTER

_SECOND: Final = f"{ROUTER}2"


@dataclass(frozen=True)
class PlatformTopology:
    """The optional parts of a platform, none by default: one router, to which every worker reports its blocks."""

    stores: int = 0
    store_tiers: TierSettings = field(default_factory=TierSettings)
    collect_after_s: float = 0.5
    """Seconds from a worker's report of a block until a store asks for the block."""
    linked: bool = True
    """Whether routers have links to the stores; without, they know of them from Redis only."""
    redis: RedisSettings = field(default_factory=RedisSettings)
    """The settings of Redis; without a URL there is no Redis."""
    redis_down: bool = False
    """Whether all nodes are configured with a Redis that is never there."""
    silent: tuple[str, ...] = ()
    """The names of the workers that report no events."""
    routers: int = 1

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(self.stores))

    @property
    def router_names(self) -> tuple[str, ...]:
        return (ROUTER, _SECOND)[: self.routers]
