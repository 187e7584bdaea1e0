"""Moves streams off draining workers: looks at each such worker a few times a second until it is empty or gone."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from router.dispatch.deps import DispatchDeps
from router.dispatch.migration import Leaving, Stream, moves
from router.fleet.peer import Peer


class MigratableRequest(Protocol):
    """A running request, as migration sees it."""

    @property
    def key(self) -> int: ...

    @property
    def tokens_left(self) -> int:
        """The most that its longest sequence may still generate."""
        ...

    @property
    def under_way(self) -> bool:
        """Whether the request was moved and has delivered no token since."""
        ...


class MigrationHost(Protocol):
    """The dispatcher, as migration sees it."""

    def generated_on(self, peer: Peer) -> Iterable[MigratableRequest]:
        """Requests whose tokens come from this worker."""
        ...

    def move(self, key: int, reason: str) -> None:
        """Let the request go on on another worker, if there is one that could hold it now."""
        ...

    def moving(self) -> int:
        """Requests that are under way, from any worker."""
        ...


class DrainMigrator:
    """One timer for each draining worker that generates anything."""

    def __init__(self, tools: DispatchDeps, streams: MigrationHost) -> None:
        self._tools = tools
        self._streams = streams
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def drains(self, peer: Peer) -> None:
        """Begin to move streams off a worker that leaves at `peer.leaves_at`, perhaps earlier than it announced
        before."""
        self.gone(peer)
        if peer.leaves_at is not None:
            self._look(peer, peer.leaves_at)

    def gone(self, peer: Peer) -> None:
        """The worker has left."""
        timer = self._timers.pop(peer.worker_id, None)
        if timer is not None:
            timer.cancel()

    def _look(self, peer: Peer, leaves_at: float) -> None:
        self._timers.pop(peer.worker_id, None)
        left_s = leaves_at - self._tools.clock.now()
        streams = {movable.key: movable for movable in self._streams.generated_on(peer)}
        if not peer.alive or not streams or left_s <= 0:
            return
        found = moves(
            [Stream(key, movable.tokens_left) for key, movable in streams.items()],
            self._streams.moving(),
            Leaving(peer.worker_id, self._step_s(peer), left_s),
            self._tools.settings.migration,
        )
        for key, reason in found.items():
            self._streams.move(key, reason)
        self._timers[peer.worker_id] = self._tools.loop.call_later(
            self._tools.settings.migration.every_s, self._look, peer, leaves_at
        )

    def _step_s(self, peer: Peer) -> float:
        """Seconds that a step takes on the worker: as last measured or as the cost model expects, whichever is
        longer."""
        load = peer.view.load
        expected_s = self._tools.costs.step_ms(peer.worker_id, peer.view.sequences) / 1e3
        return max(load.step_s, expected_s) if load is not None else expected_s
