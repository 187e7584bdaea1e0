"""Watches what routers know of blocks beyond their links: the knowledge must be there soon, and must never contradict
a link."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_connection import Connect
from kv_transfer.index.redis_index import RedisIndex
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import RedisHolder
from router.fleet.knowledge import BlockKnowledge
from router.fleet.orphaned_holders import IndexScope
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.watch import Broken
from tandem.core.metrics import Meter


class WatchedRedisIndex(RedisIndex):
    """Tells when a look-up is over, and when it began."""

    def __init__(
        self,
        settings: RedisSettings,
        meter: Meter,
        connect: Connect,
        now: Callable[[], float],
        asked: Callable[[float], None],
    ) -> None:
        super().__init__(settings, meter, connect)
        self._now = now
        self._asked = asked

    async def longest(self, names: Sequence[bytes], service: str = "") -> dict[str, RedisHolder]:
        began = self._now()
        try:
            return await super().longest(names, service)
        finally:
            self._asked(began)


class WatchedKnowledge(BlockKnowledge):
    """Knowledge that must not claim what a live link disproves."""

    def __init__(self, *arguments: Any, broken: Broken) -> None:
        super().__init__(*arguments)
        self._broken = broken

    def leading(self, names: Sequence[bytes], scope: IndexScope | None = None) -> dict[str, Held]:
        held = super().leading(names, scope)
        told: Mapping[str, RedisHolder] = {}
        if self._strangers is not None and scope is not None:
            told = self._strangers.holding(names, scope)
        for holder, each in held.items():
            if each.known_by == "redis":
                self._check_told(holder, told[holder])
        return held

    def _check_told(self, holder: str, told: RedisHolder) -> None:
        """Check a holder that has a link: it must be the incarnation that Redis knows, and must have lost its
        feed."""
        peer = self._peers.get(holder)
        if peer is None:
            return
        if peer.epoch != told.hello.epoch:
            self._broken(Violation(f"Redis is believed of {holder}, whose link tells of another incarnation"))
        elif peer.feed.last is not None:
            self._broken(Violation(f"Redis is believed of {holder}, whose link tells everything"))
