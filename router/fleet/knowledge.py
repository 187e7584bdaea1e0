"""What the router knows of which workers hold which blocks: exact by workers' events, else from a shared index, else
guessed."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kv_transfer.index.protocol import BlockIndex, Held
from kv_transfer.index.redis_wire import RedisHolder
from router.fleet.approximate_index import ApproximateIndex, IndexChange
from router.fleet.orphaned_holders import IndexScope, OrphanedHolder, OrphanedHolders, SharedIndex, view_of
from router.fleet.peer import Peer
from router.placement.view import WorkerView
from router.settings import FleetSettings
from tandem.core.clock import Clock
from tandem.core.kv import Layout, compatibility_key

_TEND_EVERY_S: Final = 0.5


Pairing = tuple[str, bytes, Layout]
"""Revision, root name and layout (`compatibility_key`): workers that agree in them may exchange blocks."""


class LiveWorkers(NamedTuple):
    """The live workers by id and the number of each pairing, kept current by the fleet."""

    peers: Mapping[str, Peer]
    pairings: Mapping[Pairing, int]


class BlockKnowledge:
    """The knowledge of which workers hold which blocks. Without `shared`, only links report blocks."""

    def __init__(
        self,
        index: BlockIndex,
        known: LiveWorkers,
        clock: Clock,
        settings: FleetSettings,
        shared: SharedIndex | None = None,
    ) -> None:
        self.index = index
        self._peers, self._pairings = known
        self._clock = clock
        self._settings = settings
        self._strangers = None if shared is None else OrphanedHolders(shared, clock, settings.answer_s)
        self._approximate_indexes: dict[str, ApproximateIndex] = {}

    async def run(self) -> None:
        """Do the work that was put off, such as removing the entries of lost workers, a slice per turn of the loop,
        until cancelled."""
        while True:
            await asyncio.sleep(_TEND_EVERY_S)
            for worker_id, guesses in self._approximate_indexes.items():
                self._guessed(worker_id, guesses.expired(self._clock.now()))
            while self.index.tend():  # noqa: ASYNC110  (it works, it does not wait)
                await asyncio.sleep(0)

    def leading(self, names: Sequence[bytes], scope: IndexScope | None = None) -> dict[str, Held]:
        """The number of leading names that each holder has, where it has them, and how that is known: by links
        alone, or also by what the shared index told in a scope."""
        held = self.index.longest(names)
        for worker_id in self._approximate_indexes:
            if worker_id in held:
                held[worker_id] = held[worker_id]._replace(known_by="approximate")
        if self._strangers is not None and scope is not None:
            for holder, each in self._strangers.holding(names, scope).items():
                if self._is_news(holder, each):
                    held[holder] = each.held
        return held

    def forget(self, worker_id: str) -> None:
        """A worker is lost."""
        self.index.drop(worker_id)
        self._approximate_indexes.pop(worker_id, None)

    # ---- guesses ----

    def sent(self, peer: Peer, names: Sequence[bytes]) -> None:
        """Note that a prompt of these blocks goes to a worker. This only counts for a worker that reports no
        events."""
        if peer.hello.kv_events or not peer.alive:
            return
        guesses = self._approximate_indexes.get(peer.worker_id)
        if guesses is None:
            guesses = self._approximate_indexes[peer.worker_id] = ApproximateIndex(
                peer.hello.blocks, self._settings.guess_s
            )
        self._guessed(peer.worker_id, guesses.used(names, self._clock.now()))

    def _guessed(self, worker_id: str, changed: IndexChange) -> None:
        self.index.stored(worker_id, changed.stored)
        self.index.removed(worker_id, changed.removed)

    # ---- strangers ----

    async def seek(self, names: Sequence[bytes], scope: IndexScope) -> None:
        """Ask the shared index about a prompt, if any worker reports blocks there and not here."""
        if self._strangers is not None and names and self._strangers.some(self._told_here(), scope.service):
            await self._strangers.seek(names, scope)

    def beyond(self, names: Sequence[bytes], scope: IndexScope) -> tuple[WorkerView, ...]:
        """Holders of a prompt's blocks that this router has no link to and whose blocks a linked worker can use, by
        id."""
        found = {} if self._strangers is None else self._strangers.holding(names, scope)
        views = []
        for holder in sorted(found):
            hello = found[holder].hello
            pairing = self._pairings.get((hello.revision, hello.root, compatibility_key(hello.layout)))
            if holder not in self._peers and pairing is not None:
                views.append(view_of(hello, pairing))
        return tuple(views)

    def holder(self, worker_id: str, scope: IndexScope) -> Peer | OrphanedHolder | None:
        """The worker, or the holder told of in a scope, that is known to keep blocks under this id; None where there
        is none."""
        peer = self._peers.get(worker_id)
        return peer if peer is not None or self._strangers is None else self._strangers.stranger(worker_id, scope)

    def _told_here(self) -> list[str]:
        return [worker_id for worker_id, peer in self._peers.items() if peer.feed.last is not None]

    def _is_news(self, holder: str, told: RedisHolder) -> bool:
        """Whether no link reports more than the shared index: there is no link, or its feed has a gap now."""
        peer = self._peers.get(holder)
        return peer is None or (peer.epoch == told.hello.epoch and peer.feed.last is None)
