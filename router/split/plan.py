"""Decides which workers of role `auto` take prompts for others, and how long their steps may take. Pure.

A look replays the latest traffic through `router.split.outlook` for the ways at hand: from the fleet as it stands,
and at loads around the one that the best way just carries, from a fleet that has long had them. The first replay
shows what is at stake now, and says nothing where every way or none holds the objective; the others show which way
carries most. A way that is better by a little is taken when two looks in a row find it so, one that is better by much
at once. Forecasts are compared with what was observed afterwards (`router.split.record`).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

from router.settings import SplitSettings
from router.split.answers import AnswersByPrompt
from router.split.choice import (
    bound_by_memory,
    choose_prefill_workers,
    held_at_unified,
    same_side,
    step_towards,
    told,
    tunable,
)
from router.split.knee import LOADS, Knee
from router.split.offered import AHEAD_S, PER_TURN, Offered, growing
from router.split.outlook import Replay
from router.split.record import Record
from router.split.reuse import Reuse
from router.split.values import ObservedRequest, Outlook, Split, SplitOption, WorkerStatus, WorkTimes
from router.split.window import repeated, settled, since_change
from router.split.work import present
from tandem.core.slo import Slo

_NEAR: Final = (0, 1, -1, 2, -2)
"""Ways that are tried at every look, counted from the one in force."""
_PROBES: Final = (0.25, 0.5, 0.625, 0.75, 0.375, 0.875)
"""Shares of the workers that take prompts for others: every look tries one of these, in turn."""
_STEP_MAX: Final = 2
"""Workers that change at a time where little is at stake."""
_PHASE_MIN: Final = 0.25
"""Share of the window that lies between two changes of traffic at least."""
_SHARE_MIN: Final = 0.05
_GOOD: Final = 0.9
"""Where no way near promises this share of the requests, others are tried as well; a way in force that promises less
is urgent to change."""
_WELL: Final = 0.99
"""Where the way in force promises this share of the requests and has held it, nothing is changed."""
_PRESENT_S: Final = 10.0
"""Requests that come so soon are not counted: what waits already decides about them, whatever is done."""
_REMEMBERED_PER_TURN: Final = 1000
_REMEMBERED_ALONE: Final = 8
"""Marks that a request counts as, besides its own: `_REMEMBERED_PER_TURN` of them are processed before the caller
gets a turn, about a millisecond."""
_HOPELESS: Final = 0.5
"""A way in force that promises less than this share is left for one that promises more by as much as this."""
_WATCHED_LOOKS: Final = 1.8
"""Times `look_s` that traffic lasts before the first change: at the second look, also where it began just after
one. One look more where the way in force promises all, and another would only carry more; one less where the way in
force is hopeless, as what waits after ten seconds of it does not go away again."""
_HURRY_S: Final = 1.0
"""Least seconds between looks, however traffic changes."""
_OTHER_STEPS: Final = 0.10
"""Share of requests that steps have to gain which are longer than the objective allows: the model does not know what
they cost streams that run beside few others."""
_TOKENS_WEIGHT: Final = 0.01
"""Weight of all output tokens together beside the share of requests: a tie-break."""


class Planner:
    """The planner of one service. `split` is the split that is to be in force."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._seen: deque[ObservedRequest] = deque(maxlen=settings.requests_max)
        self._new: deque[ObservedRequest] = deque(maxlen=settings.requests_max)
        """Requests since the last look, with their marks."""
        self._reuse = Reuse()
        self._first_s: float | None = None
        """When the first request came since traffic last stopped for a whole window; None while there is none."""
        self._answers = AnswersByPrompt()
        self._record = Record(settings)
        self.split = Split(frozenset(), None, "nothing has been seen yet: every worker takes prompts and decodes")
        self.outlooks: tuple[Outlook, ...] = ()
        """The outlooks of the last look, the best first."""
        self.last_look_s: float | None = None
        self.moves = 0
        """How often a worker has changed what it takes."""
        self._itl_share = settings.itl_shares[0]
        self._ahead: SplitOption | None = None
        """The option that was ahead at the last look and awaits confirmation; None without one."""
        self._moved_s = -inf
        self._rests_on_s = 0.0
        """Seconds of traffic that the last change was decided on."""
        self._direction = 0
        """Direction of the last change: positive for more workers that take prompts for others, negative for
        fewer."""
        self._looks = 0
        self._knee = Knee()
        self._began_s: float | None = None
        """When the present traffic began; None while there is too little of it."""
        self._checked_s = -inf

    @property
    def forecast_error(self) -> float | None:
        """Mean difference of the attainment that was forecast from the one that was observed; None while unknown."""
        return self._record.error

    def seen(self, request: ObservedRequest) -> None:
        """A request was placed for the first time."""
        if self._first_s is None:
            self._first_s = request.arrival_s
        if len(self._new) == self._new.maxlen:
            # It will not be replayed, but it was in memory.
            self._reuse.distances(self._new[0].marks)
        self._new.append(request)

    def outcome(self, arrival_s: float, met: bool, placed: bool = True) -> None:
        """Record that a request that arrived at `arrival_s` has ended, within its objective or not. `placed` says
        whether it was passed to `seen`. Requests that their clients cancelled are not reported."""
        self._record.outcome(arrival_s, met, placed)

    def answered(self, prompt_tokens: int, max_tokens: int, tokens: float) -> None:
        """A sequence of such a request ended after so many output tokens, by itself or at its bound."""
        self._answers.observe(prompt_tokens, max_tokens, tokens)

    def rest(self) -> None:
        """Drop what was promised here, because another planner decides and this is not what will be seen."""
        self._record.rest()
        self._ahead = None

    def due(self, now: float) -> bool:
        """Whether to look before `look_s` is over: there is enough traffic for the first time, or it has changed."""
        settings, last_s = self._settings, self.last_look_s
        if len(self._seen) + len(self._new) < settings.requests_min:
            return False
        if last_s is not None and now - last_s < _HURRY_S:
            return False
        if last_s is None or self._began_s is None:
            return True
        if now - self._checked_s < _HURRY_S:
            return False
        self._checked_s = now
        seen = sorted([*self._seen, *self._new])
        latest = since_change(seen, settings.requests_min)
        return len(latest) < len(seen) and self._changes(latest[0].arrival_s)

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        """Compare the options there are. Yields after every slice of work, so that an event loop gets its turn. Once
        exhausted, `split` is what is to be in force. `share` is the share of the service's requests that this planner
        sees."""
        present_ids = {standing.worker_id for standing in standings}
        self._drop_gone(present_ids)
        self.last_look_s = now
        self._looks += 1
        yield from self._remember()
        why = held_at_unified(standings)
        if why is not None:
            self._take(now, frozenset(), self._itl_s(slo, 1.0) if tunable(standings) else None, why)
            self.outlooks = ()
            self._latest(now, share)
            self._began_s = now
            return
        requests = self._latest(now, share)
        settings = self._settings
        if len(requests) < settings.requests_min:
            self._began_s = None
            self._note(now, standings)
            return
        yield from self._compare(now, requests, standings, times, slo, share)
        # Told by one router of several, arrivals were moved together.
        told = min(1.0, max(share, _SHARE_MIN))
        began_s = requests[0].arrival_s if self._first_s is None else now - (now - self._first_s) * told
        known = settled(requests, began_s, now, settings.window_s * told, settings.requests_min)
        latest = since_change(known, settings.requests_min)
        changed = len(latest) < len(known)
        first_s = (latest if changed else requests)[0].arrival_s
        requests = list(repeated(latest, settings.window_s, settings.requests_max))
        yield
        offered = Offered(present(standings, requests, times, share), times, slo, growing(latest, AHEAD_S))
        yield
        for place in range(0, len(requests), PER_TURN):
            offered.add([self._answered(seen) for seen in requests[place : place + PER_TURN]])
            yield
        yield from offered.remember()
        counted_s = min(_PRESENT_S, offered.last_s / 3)
        outlooks: list[Outlook] = []
        ways = deque(self._ways(len(standings), slo, bound_by_memory(standings)))
        while ways:
            way = ways.popleft()
            work = yield from offered.at(way.prefills)
            replay = Replay(way, work, offered.now, times, slo, counted_s)
            yield from replay.run()
            outlooks.append(replay.outlook())
            if not ways and (changed or max(each.attainment for each in outlooks) < _GOOD):
                tried = {each.way for each in outlooks}
                ways += [way for way in self._probes(standings, slo) if way not in tried]
        began_s = now - (now - first_s) / told
        if self._began_s is None or (changed and self._changes(began_s)):
            self._began_s, self._knee.load = began_s, 1.0
        carried: dict[SplitOption, float] = {}
        yield from self._knee.carried(carried, [each.way for each in outlooks], offered, times, slo)
        outlooks = [each._replace(carried=carried[each.way]) for each in outlooks]
        self._decide(now, standings, outlooks, self._scores(outlooks, standings, times, slo), slo)
        self._note(now, standings)

    # ---- what is looked at ----

    def _drop_gone(self, present_ids: set[str]) -> None:
        """The split never names a worker that is gone."""
        kept = self.split.prefills & present_ids
        if len(kept) == len(self.split.prefills) and (len(kept) < len(present_ids) or not kept):
            return
        if kept and len(kept) >= len(present_ids):
            kept = frozenset(sorted(kept)[: len(present_ids) - 1])
        gone = len(self.split.prefills) - len(kept)
        self._record.clear()
        reason = f"{gone} of those that took prompts are gone, or the last that decoded: {len(kept)} do now"
        self.split = Split(kept, self.split.itl_s, reason)

    def _remember(self) -> Iterator[None]:
        """Keep the requests that came since the last look, each with the reuse distances of its prefixes."""
        new, self._new = self._new, deque(maxlen=self._settings.requests_max)
        work = 0
        for seen in new:
            distances = self._reuse.distances(seen.marks)
            self._seen.append(seen._replace(marks=(), distances=distances))
            work += _REMEMBERED_ALONE + len(seen.marks)
            if work >= _REMEMBERED_PER_TURN:
                work = 0
                yield

    def _latest(self, now: float, share: float) -> list[ObservedRequest]:
        """Requests of the window, as many more as other routers see of them: arrivals are closer together."""
        begin_s = now - self._settings.window_s
        while self._seen and self._seen[0].arrival_s < begin_s:
            self._seen.popleft()
        if not self._seen:
            self._first_s = None
        share = min(1.0, max(share, _SHARE_MIN))
        requests = sorted(self._seen)
        if share > 0.99:
            return requests
        return [seen._replace(arrival_s=now - (now - seen.arrival_s) * share) for seen in requests]

    def _changes(self, began_s: float) -> bool:
        """Whether traffic that began then is another than what is known."""
        return self._began_s is None or began_s > self._began_s + _PHASE_MIN * self._settings.window_s

    def _answered(self, seen: ObservedRequest) -> ObservedRequest:
        """The request with an answer as long as those of its kind have been."""
        otherwise = seen.answer_tokens / seen.sequences
        tokens = self._answers.drawn(seen.prompt_tokens, seen.max_tokens, otherwise)
        return seen._replace(answer_tokens=seen.sequences * tokens)

    def _ways(self, workers: int, slo: Slo, prefills_max: int) -> list[SplitOption]:
        """The options tried at this look: the one in force is first, and all unified is always among them."""
        prefills = len(self.split.prefills)
        probe = round(_PROBES[self._looks % len(_PROBES)] * workers)
        counts = [prefills + step for step in _NEAR]
        if self.outlooks:
            counts.append(self.outlooks[0].way.prefills)
        counts += [0, probe]
        likely = dict.fromkeys(count for count in counts if count == 0 or 0 < count <= prefills_max)
        itl_s = self._itl_s(slo, self._itl_share)
        ways = [SplitOption(count, itl_s) for count in likely]
        if prefills not in likely:
            ways.insert(0, SplitOption(prefills, itl_s))
        other = [share for share in self._settings.itl_shares if share != self._itl_share]
        if other and itl_s is not None:
            share = other[self._looks % len(other)]
            ways += [SplitOption(count, self._itl_s(slo, share)) for count in dict.fromkeys((prefills, 0))]
        return ways

    def _probes(self, standings: Sequence[WorkerStatus], slo: Slo) -> list[SplitOption]:
        """Ways all over, for when nothing near promises enough."""
        most, itl_s = bound_by_memory(standings), self._itl_s(slo, self._itl_share)
        counts = dict.fromkeys(round(share * len(standings)) for share in _PROBES)
        return [SplitOption(count, itl_s) for count in counts if 0 < count <= most]

    def _itl_s(self, slo: Slo, share: float) -> float | None:
        return None if slo.step_s is None else slo.step_s * share

    # ---- what is decided ----

    def _price(self, way: SplitOption, standings: Sequence[WorkerStatus], times: WorkTimes) -> float:
        """Share of requests that is lost by moving there: prefixes that are computed again elsewhere, as a share of
        what the fleet can do in a window."""
        moved = choose_prefill_workers(way.prefills, self.split.prefills, standings) ^ self.split.prefills
        held = sum(
            (each.blocks - each.blocks_free) * each.block_tokens for each in standings if each.worker_id in moved
        )
        lost_s = self._settings.lost_prefix * held * times.prompt_token_s
        return lost_s / (len(standings) * self._settings.window_s)

    def _scores(
        self,
        outlooks: Sequence[Outlook],
        standings: Sequence[WorkerStatus],
        times: WorkTimes,
        slo: Slo,
    ) -> dict[SplitOption, float]:
        """Share of requests in the objective, now and at the loads that were asked about, all alike."""
        itl_s = self._itl_s(slo, self._settings.itl_shares[0])
        most = max((each.tokens_per_s for each in outlooks), default=0.0) or 1.0
        loads = len(LOADS)
        return {
            each.way: (each.attainment + loads * each.carried) / (1 + loads)
            + _TOKENS_WEIGHT * each.tokens_per_s / most
            - self._price(each.way, standings, times)
            - (_OTHER_STEPS if each.way.itl_s != itl_s else 0.0)
            for each in outlooks
        }

    def _decide(
        self,
        now: float,
        standings: Sequence[WorkerStatus],
        outlooks: Sequence[Outlook],
        scores: Mapping[SplitOption, float],
        slo: Slo,
    ) -> None:
        settings = self._settings
        ordered = sorted(outlooks, key=lambda each: -scores[each.way])
        self.outlooks = tuple(ordered)
        here, best = outlooks[0], ordered[0]
        ahead = scores[best.way] - scores[here.way]
        compared = told(here, ordered, len(standings))
        if self._record.distrusted(now):
            self._keep(f"the forecasts have promised too much and are not followed: {compared}")
            return
        if ahead <= settings.ahead:
            self._ahead = None
            self._keep(f"{compared}: nothing is better by more than {100 * settings.ahead:g} points")
            return
        held = self._record.lately(now)
        if held is not None and min(held, here.attainment) >= _WELL:
            self._ahead = None
            self._keep(f"{compared}: {held:.1%} have been in the objective lately, so nothing is at stake")
            return
        confirmed = self._ahead is not None and same_side(self._ahead, best.way, here.way)
        self._ahead = best.way
        settle_s = min(settings.settle_s, self._rests_on_s)
        settled = now - self._moved_s >= settle_s
        onward = (
            self._direction * (best.way.prefills - here.way.prefills) > 0 or (self._began_s or 0.0) > self._moved_s
        )
        watch_s = watched_looks(here.attainment, best.attainment) * settings.look_s
        known = now - (now if self._first_s is None else self._first_s) >= watch_s
        if known and ahead > settings.urgent and (confirmed or settled or onward):
            goal = best.way
        elif known and confirmed and settled:
            goal = best.way
            step = goal.prefills - here.way.prefills
            if abs(step) > _STEP_MAX and goal.prefills:
                goal = step_towards(goal, here.way, ordered, _STEP_MAX)
        else:
            waits = "once more" if not confirmed else f"{settle_s:.0f} s after the last change"
            if not known:
                waits = f"when traffic has lasted {watch_s:g} s"
            self._keep(f"{compared}: to be taken if it is so {waits}")
            return
        self._ahead = None
        self._rests_on_s = now - (now if self._began_s is None else self._began_s)
        if slo.step_s:
            self._itl_share = (goal.itl_s or slo.step_s) / slo.step_s
        self._take(
            now,
            choose_prefill_workers(goal.prefills, self.split.prefills, standings),
            goal.itl_s,
            f"{compared}: taken",
        )

    def _keep(self, reason: str) -> None:
        self.split = self.split._replace(reason=reason)

    def _take(self, now: float, prefills: frozenset[str], itl_s: float | None, reason: str) -> None:
        changed = len(prefills ^ self.split.prefills)
        self._direction = len(prefills) - len(self.split.prefills)
        if changed or itl_s != self.split.itl_s:
            if self.split.itl_s is not None or changed:
                self._moved_s = now
            self._record.clear()
        self.moves += changed
        self.split = Split(prefills, itl_s, reason)

    # ---- forecasts and what became of them ----

    def _note(self, now: float, standings: Sequence[WorkerStatus]) -> None:
        """A stretch begins."""
        self._record.begin(now, standings, SplitOption(len(self.split.prefills), self.split.itl_s))

    def _compare(
        self,
        now: float,
        requests: Sequence[ObservedRequest],
        standings: Sequence[WorkerStatus],
        times: WorkTimes,
        slo: Slo,
        share: float,
    ) -> Iterator[None]:
        """Back to what was the best in truth, where forecasts promise too much and it is not in force."""
        answered = []
        for place in range(0, len(requests), PER_TURN):
            answered += [self._answered(seen) for seen in requests[place : place + PER_TURN]]
            yield
        yield from self._record.compare(now, answered, times, slo, share, self._moved_s)
        best = self._record.fall_back(now, len(self.split.prefills), len(standings))
        if best is not None:
            self._itl_share = self._settings.itl_shares[0]
            reason = f"forecasts have promised too much: back to {best} of {len(standings)} that take prompts"
            prefills = choose_prefill_workers(best, self.split.prefills, standings)
            self._take(now, prefills, self._itl_s(slo, self._itl_share), reason)


def watched_looks(here: float, best: float) -> float:
    """Times `look_s` that traffic lasts before the first change, by the shares of requests that the way in force and
    the best one promise. Of the first traffic only what is at stake now is known; what would be carried shows in
    more of it."""
    if here < _HOPELESS and best - here >= _HOPELESS:
        return _WATCHED_LOOKS - 1
    return _WATCHED_LOOKS if here < _WELL else _WATCHED_LOOKS + 1
