"""The latest scaling decision of every service, for callers that ask for it and callers that wait for it to
change."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from control_plane.autoscale import Scaling
from tandem.core.clock import Clock
from tandem.core.errors import TandemError

STALE_S: Final = 60.0
"""Seconds after which a decision that was not renewed counts as none: the caller then uses its configured
fallback."""


@dataclass(frozen=True)
class PoolName:
    """The pool that a call asks for; `scaled_object` serves where the trigger names no service and pool."""

    namespace: str
    service: str = ""
    pool: str = ""
    scaled_object: str = ""

    def __str__(self) -> str:
        named = f"pool {self.pool!r} of service {self.service!r}" if self.service else repr(self.scaled_object)
        return f"{named} in namespace {self.namespace!r}"


@dataclass(frozen=True)
class PoolAnswer:
    """Whether the service is awake, and what its pool carries in replicas, rounded up the number wanted."""

    active: bool
    metric: float
    replicas: int


@dataclass(frozen=True)
class _Post:
    scaling: Scaling
    wanted: Mapping[str, int]
    at: float


class MetricCache:
    """Belongs to one event loop. `publish` wakes everybody who waits when an answer has changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._posts: dict[tuple[str, str], _Post] = {}
        self._known: frozenset[tuple[str, str]] | None = None
        self._changed = asyncio.Event()
        self.version = 0
        """Grows whenever an answer may have changed."""
        self.waiting = 0
        """The number of callers that wait for `version` to grow."""

    def publish(self, namespace: str, service: str, scaling: Scaling, wanted: Mapping[str, int]) -> None:
        """A decision for a service that is kept; `wanted` is how many replicas each pool is asked to have now."""
        before = self._posts.get((namespace, service))
        self._posts[namespace, service] = _Post(scaling, wanted, self._clock.now())
        if before is None or before.scaling.active != scaling.active:
            self._tell()

    def keep(self, services: Iterable[tuple[str, str]]) -> None:
        """Keep the answers of these services and drop all others. These services exist, decided or not, and no others
        do."""
        self._known = frozenset(services)
        if self._posts.keys() - self._known:
            self._posts = {key: post for key, post in self._posts.items() if key in self._known}
            self._tell()

    def answer(self, asked: PoolName) -> PoolAnswer:
        """Raises `not_found` for a pool that does not exist or has no autoscaling, and `link_lost` while there is no
        decision that is recent enough."""
        key, pool = self._resolve(asked)
        post = self._posts.get(key)
        if post is None:
            raise TandemError("link_lost", f"nothing has been decided for {asked} yet")
        if self._clock.now() - post.at > STALE_S:
            raise TandemError("link_lost", f"the last decision for {asked} is older than {STALE_S:.0f} s")
        scaling = post.scaling.pools.get(pool)
        if scaling is None:
            raise TandemError("not_found", f"there is no {asked} that has autoscaling")
        return PoolAnswer(post.scaling.active, scaling.metric(post.wanted.get(pool, 0)), scaling.replicas)

    async def changed(self, since: int, within_s: float) -> None:
        """Wait until the version differs from `since`, at most `within_s`."""
        if self.version != since:
            return
        change = self._changed
        self.waiting += 1
        try:
            async with asyncio.timeout(within_s):
                await change.wait()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    def _resolve(self, asked: PoolName) -> tuple[tuple[str, str], str]:
        if self._known is None:
            raise TandemError("link_lost", "nobody has looked for services yet")
        if asked.service and asked.pool:
            if (asked.namespace, asked.service) not in self._known:
                raise TandemError("not_found", f"there is no service {asked.service!r} in {asked.namespace!r}")
            return (asked.namespace, asked.service), asked.pool
        for (namespace, service), post in self._posts.items():
            for pool in post.scaling.pools:
                if namespace == asked.namespace and f"{service}-{pool}" == asked.scaled_object:
                    return (namespace, service), pool
        raise TandemError("not_found", f"there is no pool {asked}; name it in the trigger by `service` and `pool`")

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
