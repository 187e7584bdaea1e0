"""The split of one service: runs its planner in slices, and gets routers to agree on what it decides.

Every router feeds its own planner what it sees, so that the router that decides next knows the traffic. Only the
router that holds the lease (`router.split.lease`) looks; the others follow the record that workers pass on. The split
in force changes where requests are placed from now on: running streams stay and end where they are.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.fleet.split_listing import FleetOutlook, SplitOptionListing
from router.placement import CostModel
from router.placement.view import WorkerView
from router.settings import RouterSettings
from router.split.lease import FORECASTS_MAX, REASON_MAX, Lease, LeaseSettings, plausible
from router.split.plan import Planner
from router.split.times import work_times
from router.split.values import Split
from router.split.worker_status import ROLE, able, carrying, left_out, of_role_auto, worker_statuses
from tandem.core.clock import Clock
from tandem.core.messages import Forecast, PublishSplit, SplitPublished, SplitRecord
from tandem.core.metrics import Meter
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_LEASE: Final = LeaseSettings()
_RENEW_S: Final = 5.0
_TICK_S: Final = 1.0
_PAUSE_S: Final = 0.004
"""Seconds between two slices of a look, so that requests come first."""
_SOON_S: Final = 0.05
"""Seconds from a change of workers to the look that it causes, as other workers may join or leave with it,"""
_APART_S: Final = 0.5
"""but not sooner than this after the one before."""
_SHARE: Final = 0.2
"""Weight of one look in what share of the service's requests comes by this router."""
_ALONE: Final = 0.9
"""A share that large is all: figures of workers are late."""
_BESIDE: Final = "; whole requests are served beside it by "
_NONE_YET: Final = "nothing is decided yet: every worker takes prompts and decodes"


class ServiceSplit:
    """Owned by the keeper. `holder` names this run of the router."""

    def __init__(
        self,
        model: str,
        holder: str,
        planner: Planner,
        fleet: Fleet,
        costs: CostModel,
        settings: RouterSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self.model = model
        self.planner = planner
        self.lease = Lease(holder, _LEASE)
        self._fleet = fleet
        self._costs = costs
        self._settings = settings
        self._loop = loop
        self._clock = clock
        self._meter = meter
        self._record: SplitRecord | None = None
        """The record of the split in force."""
        self._since = clock.now()
        self._slices: Iterator[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slice_timer: asyncio.TimerHandle | None = None
        self._next_look = 0.0
        self._settled_at = 0.0
        """The time from which traffic may cause a look before the next one is due."""
        self._last_look = float("-inf")
        self._renew_at = 0.0
        self._share: float | None = None
        """The share of the service's requests that comes through this router; None until some of them have been
        seen."""
        self._draining = False
        self._moves = 0
        self._left_out = ""
        """The workers that take part in no split, as of the latest look; empty where all take part."""

    @property
    def prefills(self) -> int:
        """How many workers take prompts for others, whichever router decides."""
        return 0 if self._record is None else len(self._record.prefills)

    # ---- what the router tells ----

    def workers_changed(self, joined: Peer | None = None) -> None:
        """A worker of the service came or went."""
        if joined is not None and self.lease.holds and self._record is not None:
            joined.send(PublishSplit(self._aged(self._record), _LEASE.lease_s))
        now = self._clock.now()
        self._next_look = min(self._next_look, max(now + _SOON_S, self._last_look + _APART_S))
        self._set_timer(now)

    def published(self, told: SplitPublished) -> None:
        """A worker keeps this record."""
        if not plausible(told, self.lease.term):
            return
        now = self._clock.now()
        if self.lease.heard(told.record, told.left_s, now):
            event(_log, "split_yielded", model=self.model, holder=told.record.holder)
            self._end_look()
            if self._record is not None:
                self._publish(0.0)
        newest = self.lease.record
        if newest is not None and newest is told.record and newest.holder != self.lease.holder:
            self._follow(newest, now)

    def drain(self) -> None:
        """Nothing is decided here any more; others may at once. What they decide is followed."""
        self._draining = True
        if self.lease.holds and self._record is not None:
            self._publish(0.0)
        self.lease.holds = False
        self._end_look()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._meter.set("tandem_split_decides", 0.0, self.model)

    # ---- time ----

    def _set_timer(self, now: float) -> None:
        if self._draining:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s = min(_TICK_S, max(0.0, self._next_look - now)) if self.lease.holds else _TICK_S
        self._timer = self._loop.call_later(max(_SOON_S, wait_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._members():
            self._end_look()
            for gauge in ("tandem_split_decides", "tandem_split_prefill_workers"):
                self._meter.set(gauge, 0.0, self.model)
            return  # Until one joins.
        now = self._clock.now()
        before = self.lease.holds
        if self.lease.look(now):
            if not before:
                self._begin_deciding(now)
            if now >= self._renew_at and self._record is not None:
                self._publish(_LEASE.lease_s)
            early = now >= self._settled_at and self.planner.due(now)
            if self._slices is None and (early or now >= self._next_look):
                self._begin_look(now)
        elif before:
            event(_log, "split_lease_lost", model=self.model)
            self._end_look()
        self._meter.set("tandem_split_decides", float(self.lease.holds), self.model)
        self._set_timer(now)

    # ---- deciding ----

    def _begin_deciding(self, now: float) -> None:
        """Go on from the split that is in force. One that another router decided stays until the pairs of this one,
        which may have just started, are proved."""
        known, self._left_out, self._share, self._next_look = self._record, "", None, now
        split = Split(frozenset(), None, _NONE_YET)
        if known is not None:
            split = Split(frozenset(known.prefills), known.itl_target_s, known.reason.partition(_BESIDE)[0])
            self._next_look = now + self._settings.split.look_s
        self._settled_at = self._next_look
        self.planner.split, self._moves = split, self.planner.moves
        event(_log, "split_decides", model=self.model, holder=self.lease.holder, term=self.lease.term)
        self._decided(split, now)

    def _begin_look(self, now: float) -> None:
        views = of_role_auto(self._fleet.views(self.model))
        self._last_look, self._next_look = now, now + self._settings.split.look_s
        if not views:
            return
        share = self._learned_share(views)
        pairs = self._fleet.pairs
        most = self._settings.placement.sequences_per_worker_max
        found = worker_statuses(views, pairs, self._barred(views), carrying(pairs), most)
        standing = able(found)
        self._left_out = left_out(found)
        times = work_times(self._costs, views, self._settings.placement)
        self._slices = self.planner.look(now, standing, times, self._fleet.services.slo(self.model), share)
        self._slice()

    def _slice(self) -> None:
        """One slice of a look; the loop gets its turn before the next."""
        slices, began = self._slices, self._clock.now()
        self._slice_timer = None
        if slices is None:
            return
        self._slices = None
        try:
            next(slices)
        except StopIteration:
            now = self._clock.now()
            # A router that was paused may have been replaced meanwhile.
            if self.lease.look(now):
                self._decided(self.planner.split, now)
        else:
            self._slices = slices
            self._slice_timer = self._loop.call_later(_PAUSE_S, self._slice)
        finally:
            self._meter.add("tandem_split_planner_seconds_total", self._clock.now() - began, self.model)

    def _end_look(self) -> None:
        self._slices = None
        if self._slice_timer is not None:
            self._slice_timer.cancel()
            self._slice_timer = None

    def _decided(self, split: Split, now: float) -> None:
        """Put this split into force from now on, for every router."""
        here = {view.worker_id for view in self._members()}
        prefills = tuple(sorted(split.prefills & here))
        before = self._record
        if before is None or (before.prefills, before.itl_target_s) != (prefills, split.itl_s):
            self._since = now
        beside = _BESIDE + self._left_out if self._left_out else ""
        self._record = SplitRecord(
            self.lease.term,
            self.lease.holder,
            prefills,
            split.itl_s,
            (split.reason + beside)[:REASON_MAX],
            now - self._since,
            self.planner.moves,
            self.planner.forecast_error,
            tuple(Forecast(*each.way, *each[1:]) for each in self.planner.outlooks[:FORECASTS_MAX]),
        )
        self._put_in_force(self._record, before)
        self._publish(_LEASE.lease_s)

    def _publish(self, lease_s: float) -> None:
        assert self._record is not None
        now = self._clock.now()
        self._renew_at = now + _RENEW_S
        command = PublishSplit(self._aged(self._record), lease_s)
        for view in self._members():
            peer = self._fleet.peer(view.worker_id)
            if peer is not None:
                peer.send(command)

    def _aged(self, record: SplitRecord) -> SplitRecord:
        return SplitRecord(
            record.term,
            record.holder,
            record.prefills,
            record.itl_target_s,
            record.reason,
            max(0.0, self._clock.now() - self._since),
            record.moves,
            record.forecast_error,
            record.forecasts,
        )

    # ---- what is in force ----

    def _follow(self, record: SplitRecord, now: float) -> None:
        before, self._record = self._record, record
        self._since = now - record.age_s
        self.planner.rest()
        self._put_in_force(record, before)

    def _put_in_force(self, record: SplitRecord, before: SplitRecord | None) -> None:
        self._meter.set("tandem_split_prefill_workers", float(len(record.prefills)), self.model)
        if record.forecast_error is not None:
            self._meter.set("tandem_split_forecast_error_ratio", record.forecast_error, self.model)
        if self.lease.holds and self.planner.moves > self._moves:
            self._meter.add("tandem_split_moves_total", float(self.planner.moves - self._moves), self.model)
            self._moves = self.planner.moves
        if before is not None and (before.prefills, before.itl_target_s) == (record.prefills, record.itl_target_s):
            return
        self._fleet.set_split(self.model, record)
        self._want_pairs(record)
        workers, prefills = len(self._members()), len(record.prefills)
        event(_log, "split_changed", model=self.model, prefills=prefills, workers=workers, reason=record.reason)

    def _want_pairs(self, record: SplitRecord) -> None:
        """Have some pairs of each that takes prompts proved before the first request asks; for others placement asks
        as it looks at them."""
        answering = [view.worker_id for view in self._members() if view.worker_id not in record.prefills]
        most = min(len(answering), self._settings.fleet.pairs.partners_max)
        for number, prefill in enumerate(record.prefills):
            turned = [answering[(number + place) % len(answering)] for place in range(most)]
            self._fleet.want([(prefill, decode) for decode in turned])

    def _members(self) -> list[WorkerView]:
        return [view for view in self._fleet.views(self.model) if view.role == ROLE]

    def _learned_share(self, views: tuple[WorkerView, ...]) -> float:
        """The share of the service's requests that comes through this router, as learned from the sequences on these
        workers."""
        here, everywhere = sum(view.sequences_in_flight for view in views), sum(view.sequences for view in views)
        if here:
            observed = here / everywhere
            known = observed if self._share is None else self._share
            self._share = known + _SHARE * (observed - known)
        return 1.0 if self._share is None or self._share > _ALONE else self._share

    def _barred(self, views: tuple[WorkerView, ...]) -> dict[str, str]:
        """The workers whose KV no other worker can fetch, with the reason."""
        barred = dict[str, str]()
        for view in views:
            peer = self._fleet.peer(view.worker_id)
            if peer is not None and not peer.hello.addresses:
                barred[view.worker_id] = next(iter(peer.hello.problems), "its KV is not exchanged")
        return barred

    # ---- showing ----

    def outlook(self) -> FleetOutlook:
        """The outlook of the service as of now."""
        record, services, now = self._record, self._fleet.services, self._clock.now()
        workers, facts, slo = [view.worker_id for view in self._members()], services.of(self.model), None
        slo = services.slo(self.model)
        target_s = services.itl_target_s(self.model)
        if record is not None and record.itl_target_s is not None:
            target_s = record.itl_target_s
        bounds = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "itl_s": slo.itl_s}
        return FleetOutlook(
            service=self.model if facts is None else facts.name,
            model=self.model,
            prefills=() if record is None else tuple(each for each in record.prefills if each in workers),
            workers=tuple(workers),
            itl_ms=None if target_s is None else target_s * 1e3,
            why=_NONE_YET if record is None else record.reason,
            since_s=max(0.0, now - self._since),
            decides="" if record is None else record.holder,
            decides_here=self.lease.holds,
            moves=0 if record is None else record.moves,
            forecast_error=None if record is None else record.forecast_error,
            outlooks=() if record is None else tuple(_listed(each) for each in record.forecasts),
            objective={name: bound for name, bound in bounds.items() if bound is not None},
        )


def _listed(forecast: Forecast) -> SplitOptionListing:
    target_s = forecast.itl_target_s
    itl_ms = None if target_s is None else target_s * 1e3
    return SplitOptionListing(forecast.prefills, itl_ms, forecast.attainment, forecast.tokens_per_s, forecast.carried)
