"""Sends canaries: asks a decode worker to pull from a prefill worker, and reports the outcome to the pair registry.

A canary is a request of the router's own (`tandem.core.canary`), with a lease and a ticket like any other. The prober
runs on asyncio only.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.tickets import Claims, Keyring, issue
from router.fleet.breaker import Outcome, State
from router.fleet.pairs import Key, PairRegistry, Partner
from router.fleet.peer import Peer
from router.placement.pairs import Pairs
from router.settings import PairSettings
from tandem.core.canary import CANARY, canary_prompt, canary_submit
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import Entropy
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    Cancel,
    Export,
    RemoteKv,
    SequenceOutput,
    Transferred,
)
from tandem.core.metrics import Meter
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_OVERDUE: Final = "deadline_exceeded"


class PairProber:
    """Owns the pairs of one router. The fleet reports workers and transfers to it; `run` sends the canaries that are
    due."""

    def __init__(
        self,
        settings: PairSettings,
        keyring: Keyring,
        clock: Clock,
        entropy: Entropy,
        deadlines: Deadlines,
        meter: Meter,
        signing: Callable[[str], Keyring] | None = None,
    ) -> None:
        """`signing` gives the keys that sign tickets for the workers of a model; by default `keyring`."""
        self.book = PairRegistry(settings)
        self._settings = settings
        self._signing = signing or (lambda _model: keyring)
        self._clock = clock
        self._entropy = entropy
        self._deadlines = deadlines
        self._meter = meter
        self._peers: dict[str, Peer] = {}
        self._trips: dict[Key, _Trip] = {}
        self._wake = asyncio.Event()
        self.opened: Callable[[str, str, str], None] = lambda _prefill, _decode, _reason: None
        """Told of every pair whose breaker opens: prefill worker, decode worker, why."""

    @property
    def views(self) -> Pairs:
        return self.book.views

    # -- what the fleet tells --

    def ready(self, peer: Peer) -> None:
        """A worker takes work."""
        view = peer.view
        preference = tuple(address.partition("://")[0] for address in peer.hello.addresses)
        # One whose KV is not exchanged offers nothing, and serves like a unified worker.
        either = view.role == "auto" and bool(preference)
        group = view.model, view.pairing
        partner = Partner(peer.worker_id, view.role == "prefill", group, preference, either)
        self._peers[peer.worker_id] = peer
        self.book.add(partner, self._clock.now())
        self._measure()
        self._wake.set()

    def gone(self, peer: Peer) -> None:
        """A worker cannot be used any more, or takes nothing new."""
        if self._peers.get(peer.worker_id) is not peer:
            return
        for key in self.book.of(peer.worker_id):
            trip = self._trips.pop(key, None)
            if trip is not None:
                trip.end()
        del self._peers[peer.worker_id]
        self.book.remove(peer.worker_id)
        self._wake.set()

    def want(self, keys: Iterable[Key]) -> None:
        """Ask for proof of these pairs, which placement would have looked at."""
        if self.book.want(keys, self._clock.now()):
            self._wake.set()

    def heard(self, decode: Peer, told: Transferred) -> None:
        """A fetch on a decode worker has ended: a canary's, or a request's."""
        key = told.holder, decode.worker_id
        trip, breaker = self._trips.get(key), self.book.breakers.get(key)
        if trip is None and not told.code and breaker is not None and breaker.carries(told.path):
            return  # as it should be, and as nearly all of them are
        outcome = Outcome(told.path, told.code, told.message)
        if trip is not None and trip.is_decode(decode, told.handle):
            self._ended(trip, outcome, told)
            return
        holder = self._peers.get(told.holder)
        if holder is not None and holder.epoch == told.holder_epoch and self._peers.get(decode.worker_id) is decode:
            before = self._state(key)
            self.book.transferred(key, outcome, self._clock.now())
            self._tell_change(key, before)

    # -- canaries --

    async def run(self) -> None:
        """Begin what is due, and end what is overdue, until cancelled."""
        while True:
            self._wake.clear()
            now = self._clock.now()
            for trip in [trip for trip in self._trips.values() if trip.deadline <= now]:
                within = f"no result within {self._settings.canary_s:g} s"
                self._ended(trip, Outcome("", _OVERDUE, within))
            for key in self.book.begin_due(now):
                self._send(key, now)
            self._measure()
            await self._until(now)

    async def _until(self, now: float) -> None:
        """Wait for a change, the next canary that is due, or the next that is overdue."""
        times = [trip.deadline for trip in self._trips.values()]
        due = self.book.next_due
        if due is not None and len(self._trips) < self._settings.canaries_max:
            times.append(due)
        wait_s = max(0.0, min(times) - now) if times else None
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _send(self, key: Key, now: float) -> None:
        prefill, decode = self._peers[key[0]], self._peers[key[1]]
        bound_s, nonce = self._settings.canary_s, self._entropy.token(12).hex()
        trip = self._trips[key] = _Trip(key, now, now + bound_s, self._ended)
        of_prefill, of_decode = trip.open_on(prefill), trip.open_on(decode)
        # As long as any request's: its lease ends much sooner, and clocks may differ by more than a canary takes.
        expires = self._clock.wall() + self._deadlines.total_s
        claims = Claims(CANARY, prefill.epoch, nonce, decode.epoch, expires)
        ticket = issue(self._signing(decode.view.model), claims)
        remote = RemoteKv(prefill.worker_id, prefill.epoch, prefill.hello.addresses, nonce, ticket)
        export = Export(nonce, decode.epoch, self._deadlines.lease_s)
        view = prefill.view
        blocks, context = min(view.blocks, decode.view.blocks), min(view.context_tokens, decode.view.context_tokens)
        prompt = canary_prompt(view.layout.block_tokens, blocks, context)
        prefill.send(canary_submit(of_prefill, "prefill", prompt, nonce, bound_s, export=export))
        decode.send(canary_submit(of_decode, "decode", prompt, nonce, bound_s, remote=remote))

    def _ended(self, trip: "_Trip", outcome: Outcome, told: Transferred | None = None) -> None:
        if self._trips.get(trip.key) is not trip:
            return
        del self._trips[trip.key]
        trip.end()
        now, before = self._clock.now(), self._state(trip.key)
        self.book.probed(trip.key, outcome, now)
        self._meter.add("tandem_canaries_total", 1.0, "pair", outcome.path, outcome.code or "ok")
        if told is not None and not told.code and told.passed_over:
            self._log_fallback(trip.key, told)
        self._tell_change(trip.key, before, now - trip.began)
        self._wake.set()

    def _measure(self) -> None:
        for state, count in self.book.counts().items():
            self._meter.set("tandem_pairs", float(count), state)

    def _log_fallback(self, key: Key, told: Transferred) -> None:
        reasons = "; ".join(told.passed_over)
        event(
            _log,
            "pair_fallback",
            level=logging.WARNING,
            prefill=key[0],
            decode=key[1],
            path=told.path,
            reasons=reasons,
        )

    # -- figures --

    def _state(self, key: Key) -> State | None:
        breaker = self.book.breakers.get(key)
        return breaker.state if breaker is not None else None

    def _tell_change(self, key: Key, before: State | None, seconds: float = 0.0) -> None:
        breaker = self.book.breakers.get(key)
        if breaker is None or breaker.state is before:
            return
        self._meter.add("tandem_pair_changes_total", 1.0, breaker.state.value)
        self._wake.set()
        prefill, decode = key
        if breaker.state is State.CLOSED:
            ms = round(seconds * 1e3, 1)
            event(_log, "pair_proved", prefill=prefill, decode=decode, path=breaker.view.path, ms=ms)
        else:
            reason = breaker.view.reason
            event(_log, "pair_open", level=logging.WARNING, prefill=prefill, decode=decode, reason=reason)
        if breaker.state is State.OPEN:
            self.opened(prefill, decode, breaker.view.reason)


@dataclass(eq=False)
class _Trip:
    """One canary under way."""

    key: Key
    began: float
    deadline: float
    on_end: "Callable[[_Trip, Outcome], None]"
    worker_streams: list["CanaryStream"] = field(default_factory=list)

    def open_on(self, peer: Peer) -> int:
        """A handle on a worker for it."""
        leg = CanaryStream(self, peer)
        self.worker_streams.append(leg)
        return leg.handle

    def is_decode(self, peer: Peer, handle: int) -> bool:
        return (self.worker_streams[-1].peer, self.worker_streams[-1].handle) == (peer, handle)

    def end(self) -> None:
        """Let go of it everywhere."""
        for leg in self.worker_streams:
            if leg.peer.alive:
                leg.peer.send(Cancel(leg.handle))
                leg.peer.close(leg.handle)


class CanaryStream:
    """The `router.fleet.peer.Target` of one canary on one worker. It ignores what the canary generates."""

    def __init__(self, trip: _Trip, peer: Peer) -> None:
        self.peer = peer
        self.handle = peer.open(self)
        self._trip = trip

    def on_output(self, output: SequenceOutput, now: float) -> None:
        return None

    def on_report(self, report: AttemptReport) -> None:
        return None

    def on_progress(self, now: float, tokens: int) -> None:
        """Ignored: the canary has bounds of its own."""

    def on_transferred(self, code: str) -> None:
        return None

    def on_claimed(self, claimed: AttemptResumed | None) -> None:
        return None

    def on_failed(self, failure: AttemptFailed) -> None:
        self._trip.on_end(self._trip, Outcome("", failure.code, f"{self.peer.worker_id}: {failure.message}"))

    def on_lost(self, reason: str) -> None:
        """Ignored: the fleet also reports that the worker is gone, which ends the canary."""
