"""Reads one worker's state stream: load figures into its view, KV events into the block index."""

import asyncio
from collections.abc import Iterable
from math import isfinite

from kv_transfer.index.protocol import BlockIndex
from router.fleet.kv_feed import Change, Forget, Replace, slices
from router.fleet.peer import Peer, PeerListener
from router.settings import FleetSettings
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import NAME_BYTES
from tandem.core.messages import KvDelta, KvSnapshot, Load, StepFit


class StateReader:
    """Applies index changes in slices, with a turn of the loop after each full one.

    While a snapshot is being applied the index knows a part of it: less than the worker has, never more, so
    placement at worst overlooks a prefix.
    """

    def __init__(
        self, peer: Peer, index: BlockIndex, clock: Clock, settings: FleetSettings, listener: PeerListener
    ) -> None:
        self._peer = peer
        self._index = index
        self._clock = clock
        self._settings = settings
        self._listener = listener

    async def run(self) -> None:
        """Apply the worker's updates until the link ends, which raises `link_lost`."""
        while True:
            for update in await self._peer.link.state.receive():
                if isinstance(update, Load):
                    self._take_load(update)
                else:
                    await self._take_event(update)

    def _take_load(self, load: Load) -> None:
        if not sound(load):
            raise TandemError("link_lost", f"{self._peer.worker_id} tells of load in figures that cannot be: {load}")
        self._peer.view.loaded(load, self._clock.now(), self._settings.load_lag_s)
        self._listener.loaded(self._peer, load)

    async def _take_event(self, update: KvDelta | KvSnapshot) -> None:
        peer = self._peer
        for action in peer.feed.take(update):
            if not peer.alive:
                return
            match action:
                case Replace():
                    self._index.drop(peer.worker_id)
                    for piece in action.pieces:
                        await self._apply(piece.names, b"", piece.tier)
                case Change():
                    await self._apply(action.stored, action.removed, action.tier)
                case Forget():
                    self._index.drop(peer.worker_id)
                    peer.ask_snapshot(self._clock.now())

    async def _apply(self, stored: bytes, removed: bytes, tier: str) -> None:
        size = self._settings.names_per_slice
        worker_id = self._peer.worker_id
        if len(stored) + len(removed) < size * NAME_BYTES:
            if self._peer.alive:
                self._index.change(worker_id, stored, removed, tier)
            return
        for packed, gained in ((stored, True), (removed, False)):
            for part in slices(packed, size):
                if not self._peer.alive:
                    return
                self._index.change(worker_id, part if gained else b"", b"" if gained else part, tier)
                await asyncio.sleep(0)


def sound(load: Load) -> bool:
    """Whether figures are such as can be measured: placement learns from them, and what is no number would spread."""
    return all(isfinite(value) and value >= 0.0 for value in (*_times(load), *_fit(load.fit)))


def _times(load: Load) -> Iterable[float]:
    yield from (load.running, load.waiting, load.queued_prompt_tokens, load.step_s, load.prefill_tokens_per_s)
    yield from (load.decode_tokens_per_s, load.prefill_token_s, load.prefill_position_s)
    yield from (load.longest_step_s, load.overdue_s)


def _fit(fit: StepFit | None) -> Iterable[float]:
    if fit is None:
        return
    yield from (fit.base_s, fit.sequence_s, fit.read_s, fit.piece_s, fit.token_s, fit.position_s)
    for sums in (fit.plain, fit.prompts):
        # Steps that took no time are none.
        yield sums.seconds if sums.seconds > 0.0 or not sums.steps else -1.0
        yield from (sums.steps, sums.rows, sums.reads, sums.pieces, sums.tokens, sums.positions)
