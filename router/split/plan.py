"""Decides which workers of role `auto` take prompts for others, and what their steps may take. Pure.

A look replays the latest traffic through `router.split.outlook` for the ways at hand. A way that is expected to be
better by a little is taken when it is so twice running, one that is better by much at once. Every look also replays
what came since an earlier one under the split that was in force, and compares it with what became of those requests:
where the model promised more than was reached nobody follows it for a while.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from router.settings import SplitSettings
from router.split.outlook import Replay, demands, present
from router.split.values import Outlook, Seen, Split, Standing, Way, WorkTimes
from router.split.window import answers_in_truth, repeated, since_change
from tandem.core.slo import Slo

_NEAR: Final = (0, 1, -1, 2, -2)
"""Ways that are tried at every look, counted from the one in force."""
_PROBES: Final = (0.25, 0.5, 0.625, 0.75, 0.375)
"""Of the workers: one of these is tried at every look, in turn."""
_STEP_MAX: Final = 2
"""Workers that change at a time where little is at stake."""
_DOUBLINGS: Final = 10.0
_TOLD_MIN: Final = 0.7
"""Of the requests of a stretch whose end must be known before it is compared with its forecast."""
_ERROR_WEIGHT: Final = 0.3
_ENDING: Final = 0.25
"""Of the window: younger requests may be under way still, and the slow ones are the last to be told."""
_SHARE_MIN: Final = 0.05
_EXPECTED: Final = 10
"""Answers that count as much as what was expected of them."""
_GOOD: Final = 0.9
"""Where no way near promises this share, others are tried as well."""
_PRESENT_S: Final = 10.0
"""Requests that come so soon are not counted: what waits already decides about them, whatever is done."""
_UNKNOWN: Final = 0.5
"""Share in the objective that unified workers are taken to reach where that was not seen."""
_OBSERVED_MAX: Final = 2000
"""Outcomes of one number of workers that count; older ones weigh less."""
_TOKENS_WEIGHT: Final = 0.01
"""What all of the output tokens count for beside the share of requests: a tie-break."""


@dataclass(slots=True)
class _Stretch:
    """What came since a look, until it is compared: how the fleet stood at its begin, and what was in force."""

    begin_s: float
    now: tuple[Standing, ...]
    way: Way
    told: int = 0
    met: int = 0


class Planner:
    """Of one service. `split` is what is to be in force."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._seen: deque[Seen] = deque(maxlen=settings.requests_max)
        self._answers: deque[tuple[float, float]] = deque(maxlen=settings.requests_max)
        """(arrival, tokens) of requests that have ended."""
        self._stretches: deque[_Stretch] = deque(maxlen=max(1, ceil(2 * settings.window_s / settings.look_s)))
        self.split = Split(frozenset(), None, "nothing has been seen yet: every worker takes prompts and decodes")
        self.outlooks: tuple[Outlook, ...] = ()
        """Of the last look, the best first."""
        self.last_look_s: float | None = None
        self.moves = 0
        """How many workers have changed what they take."""
        self.forecast_error: float | None = None
        """Mean difference of the attainment that was forecast from the one that was observed; None while unknown."""
        self._itl_share = settings.itl_shares[0]
        self._ahead: Way | None = None
        """What was ahead at the last look, by little."""
        self._moved_s = -inf
        self._direction = 0
        """Of the last change: more of them, or fewer."""
        self._looks = 0
        self._observed: dict[int, tuple[float, float]] = {}
        """By how many took prompts: outcomes that were told, and those within the objective."""
        self._too_good = 0
        """Comparisons in a row that the model promised too much for."""
        self._distrusted_s = -inf
        self._distrust_s = settings.distrust_s

    def seen(self, request: Seen) -> None:
        """A request was placed for the first time."""
        self._seen.append(request)

    def outcome(self, arrival_s: float, met: bool, answer_tokens: float | None = None) -> None:
        """A request that arrived then has ended, within its objective or not, with so many tokens of answers (None
        where it failed). Those that their clients cancelled are not told."""
        if answer_tokens is not None:
            self._answers.append((arrival_s, answer_tokens))
        for stretch in reversed(self._stretches):
            if stretch.begin_s <= arrival_s:
                stretch.told += 1
                stretch.met += met
                told, kept = self._observed.get(stretch.way.prefills, (0.0, 0.0))
                weight = 1.0 if told < _OBSERVED_MAX else 0.5
                self._observed[stretch.way.prefills] = weight * told + 1, weight * kept + met
                return

    def look(
        self, now: float, standings: Sequence[Standing], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        """Look at the ways there are: yields after every slice of work, so that an event loop gets its turn. When it
        is exhausted `split` is what is to be in force. `share` is the share of the service's requests that are told
        here."""
        present_ids = {standing.worker_id for standing in standings}
        self._drop_gone(present_ids)
        self.last_look_s = now
        self._looks += 1
        why = held_at_unified(standings)
        if why is not None:
            self._take(now, frozenset(), self._itl_s(slo, 1.0) if _tunable(standings) else None, why)
            self.outlooks = ()
            return
        requests = self._latest(now, share)
        settings = self._settings
        if len(requests) < settings.requests_min:
            self._note(now, standings)
            return
        yield from self._compare(now, standings, times, slo, share)
        seen = len(requests)
        latest = since_change(requests, now, settings.window_s, settings.requests_min)
        requests = list(repeated(latest, settings.window_s, settings.requests_max))
        factor = self._answers_factor(now - (now - latest[0].arrival_s) / min(1.0, max(share, _SHARE_MIN)))
        requests = [seen._replace(answer_tokens=factor * seen.answer_tokens) for seen in requests]
        fleet = present(standings, requests, times)
        work = demands(requests, times, slo)
        counted_s = min(_PRESENT_S, work[-1].at_s / 3)
        outlooks: list[Outlook] = []
        ways = deque(self._ways(len(standings), slo, bound_by_memory(standings)))
        while ways:
            replay = Replay(ways.popleft(), work, fleet, times, slo, counted_s)
            yield from replay.run()
            outlooks.append(replay.outlook())
            if not ways and (len(latest) < seen or max(each.attainment for each in outlooks) < _GOOD):
                tried = {each.way for each in outlooks}
                ways += [way for way in self._probes(standings, slo) if way not in tried]
        prices = {each.way: self._price(each.way, standings, times) for each in outlooks}
        changed_s = latest[0].arrival_s if len(latest) < seen else -inf
        self._decide(now, standings, outlooks, prices, slo, changed_s)
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
        self._stretches.clear()
        reason = f"{gone} of those that took prompts are gone, or the last that decoded: {len(kept)} do now"
        self.split = Split(kept, self.split.itl_s, reason)

    def _latest(self, now: float, share: float) -> list[Seen]:
        """Requests of the window, as many more as other routers see of them: arrivals are closer together."""
        begin_s = now - self._settings.window_s
        while self._seen and self._seen[0].arrival_s < begin_s:
            self._seen.popleft()
        share = min(1.0, max(share, _SHARE_MIN))
        requests = sorted(self._seen)
        if share > 0.99:
            return requests
        return [seen._replace(arrival_s=now - (now - seen.arrival_s) * share) for seen in requests]

    def _answers_factor(self, begin_s: float) -> float:
        """How long answers are, of requests that came since then, over what was expected of them: what is learned by
        kinds of request lags behind where traffic changes."""
        came = sorted(seen for seen in self._seen if seen.arrival_s >= begin_s)
        tokens, known = answers_in_truth(came, sorted(self._answers), begin_s)
        expected = sum(seen.answer_tokens for seen in came) / len(came) if came else 0.0
        if not known or expected <= 0.0:
            return 1.0
        return (known * tokens / expected + _EXPECTED) / (known + _EXPECTED)

    def _ways(self, workers: int, slo: Slo, prefills_max: int) -> list[Way]:
        """Those that are tried at this look; the one in force is first, all unified always among them."""
        prefills = len(self.split.prefills)
        probe = round(_PROBES[self._looks % len(_PROBES)] * workers)
        counts = [prefills + step for step in _NEAR]
        if self.outlooks:
            counts.append(self.outlooks[0].way.prefills)
        counts += [0, probe]
        likely = dict.fromkeys(count for count in counts if count == 0 or 0 < count <= prefills_max)
        itl_s = self._itl_s(slo, self._itl_share)
        ways = [Way(count, itl_s) for count in likely]
        if prefills not in likely:
            ways.insert(0, Way(prefills, itl_s))
        other = [share for share in self._settings.itl_shares if share != self._itl_share]
        if other and itl_s is not None:
            share = other[self._looks % len(other)]
            ways += [Way(count, self._itl_s(slo, share)) for count in dict.fromkeys((prefills, 0))]
        return ways

    def _probes(self, standings: Sequence[Standing], slo: Slo) -> list[Way]:
        """Ways all over, for when nothing near promises enough."""
        most, itl_s = bound_by_memory(standings), self._itl_s(slo, self._itl_share)
        counts = dict.fromkeys(round(share * len(standings)) for share in _PROBES)
        return [Way(count, itl_s) for count in counts if 0 < count <= most]

    def _itl_s(self, slo: Slo, share: float) -> float | None:
        return None if slo.step_s is None else slo.step_s * share

    # ---- what is decided ----

    def _price(self, way: Way, standings: Sequence[Standing], times: WorkTimes) -> float:
        """Share of requests that is lost by moving there: prefixes that are computed again elsewhere, as a share of
        what the fleet can do in a window."""
        moved = who(way.prefills, self.split.prefills, standings) ^ self.split.prefills
        held = sum(
            (each.blocks - each.blocks_free) * each.block_tokens for each in standings if each.worker_id in moved
        )
        lost_s = self._settings.lost_prefix * held * times.prompt_token_s
        return lost_s / (len(standings) * self._settings.window_s)

    def _decide(
        self,
        now: float,
        standings: Sequence[Standing],
        outlooks: Sequence[Outlook],
        prices: Mapping[Way, float],
        slo: Slo,
        changed_s: float,
    ) -> None:
        settings = self._settings
        most = max((each.tokens_per_s for each in outlooks), default=0.0) or 1.0
        scores = {
            each.way: each.attainment + _TOKENS_WEIGHT * each.tokens_per_s / most - prices[each.way]
            for each in outlooks
        }
        ordered = sorted(outlooks, key=lambda each: -scores[each.way])
        self.outlooks = tuple(ordered)
        here, best = outlooks[0], ordered[0]
        ahead = scores[best.way] - scores[here.way]
        told = _told(here, ordered, len(standings))
        if now < self._distrusted_s:
            self._keep(f"the forecasts have promised too much and are not followed: {told}")
            return
        if ahead <= settings.ahead:
            self._ahead = None
            self._keep(f"{told}: nothing is better by more than {100 * settings.ahead:g} points")
            return
        confirmed = self._ahead is not None and _same_side(self._ahead, best.way, here.way)
        self._ahead = best.way
        settled = now - self._moved_s >= settings.settle_s
        onward = self._direction * (best.way.prefills - here.way.prefills) > 0 or changed_s > self._moved_s
        if ahead > settings.urgent and (settled or confirmed or onward):
            goal = best.way
        elif confirmed and settled:
            goal = best.way
            step = goal.prefills - here.way.prefills
            if abs(step) > _STEP_MAX and goal.prefills:
                near = [each for each in ordered if abs(each.way.prefills - here.way.prefills) <= _STEP_MAX]
                goal = near[0].way
        else:
            waits = "once more" if not confirmed else f"{settings.settle_s:g} s after the last change"
            self._keep(f"{told}: to be taken if it is so {waits}")
            return
        self._ahead = None
        if slo.step_s:
            self._itl_share = (goal.itl_s or slo.step_s) / slo.step_s
        self._take(now, who(goal.prefills, self.split.prefills, standings), goal.itl_s, f"{told}: taken")

    def _keep(self, reason: str) -> None:
        self.split = self.split._replace(reason=reason)

    def _take(self, now: float, prefills: frozenset[str], itl_s: float | None, reason: str) -> None:
        changed = len(prefills ^ self.split.prefills)
        self._direction = len(prefills) - len(self.split.prefills)
        if changed or itl_s != self.split.itl_s:
            if self.split.itl_s is not None or changed:
                self._moved_s = now
            self._stretches.clear()
        self.moves += changed
        self.split = Split(prefills, itl_s, reason)

    # ---- forecasts and what became of them ----

    def _note(self, now: float, standings: Sequence[Standing]) -> None:
        """A stretch begins."""
        way = Way(len(self.split.prefills), self.split.itl_s)
        self._stretches.append(_Stretch(now, tuple(standings), way))

    def _compare(
        self, now: float, standings: Sequence[Standing], times: WorkTimes, slo: Slo, share: float
    ) -> Iterator[None]:
        """The traffic since a look half a window ago, replayed from how the fleet stood then, with its outcomes."""
        settings = self._settings
        begun_s = self._stretches[0].begin_s if self._stretches else now
        # What ran and waited at the begin and after a change is of another way.
        settled_s = max(begun_s, self._moved_s) + settings.window_s / 2
        begins = [each for each in self._stretches if settled_s <= each.begin_s <= now - settings.window_s / 2]
        if not begins:
            return
        begin, until_s = begins[-1], now - _ENDING * settings.window_s
        stretches = [each for each in self._stretches if begin.begin_s <= each.begin_s < until_s]
        end_s = min((each.begin_s for each in self._stretches if each.begin_s >= until_s), default=now)
        came = [seen for seen in self._latest(now, share) if begin.begin_s <= seen.arrival_s < end_s]
        told, met = sum(each.told for each in stretches), sum(each.met for each in stretches)
        if len(came) < settings.requests_min or told < _TOLD_MIN * share * len(came):
            return
        replay = Replay(begin.way, demands(came, times, slo), present(begin.now, came, times), times, slo)
        yield from replay.run()
        over = replay.outlook().attainment - met / told
        error = abs(over)
        known = self.forecast_error
        self.forecast_error = error if known is None else known + _ERROR_WEIGHT * (error - known)
        self._too_good = self._too_good + 1 if over > settings.error_max else 0
        if self._too_good >= 2 and now >= self._distrusted_s:
            self._distrust(now, slo, standings)
        elif error < settings.error_max / 2 and now - self._distrusted_s > self._distrust_s:
            self._distrust_s = settings.distrust_s

    def _distrust(self, now: float, slo: Slo, standings: Sequence[Standing]) -> None:
        """Back to what was the best in truth, where it is not in force."""
        self._too_good = 0
        self._distrusted_s = now + self._distrust_s
        self._distrust_s = min(2 * self._distrust_s, _DOUBLINGS * self._settings.distrust_s)
        shares = {
            prefills: met / told
            for prefills, (told, met) in self._observed.items()
            if told >= self._settings.requests_min and prefills < max(1, len(standings))
        }
        here = len(self.split.prefills)
        shares.setdefault(0, _UNKNOWN)
        best = max(shares, key=lambda prefills: (shares[prefills], -prefills), default=here)
        if shares.get(best, 0.0) <= shares.get(here, 0.0) + self._settings.ahead:
            return
        self._itl_share = self._settings.itl_shares[0]
        told = f"forecasts have promised too much: back to {best} of {len(standings)} that take prompts"
        self._take(now, who(best, self.split.prefills, standings), self._itl_s(slo, self._itl_share), told)


def held_at_unified(standings: Sequence[Standing]) -> str | None:
    """Why all workers have to do both; None where there is a choice."""
    barred = next((each for each in standings if each.barred), None)
    if barred is not None:
        return f"every worker takes prompts and decodes: {barred.worker_id} {barred.barred}"
    fixed = next((each for each in standings if not each.itl_target), None)
    if fixed is not None:
        return f"every worker takes prompts and decodes: what steps of {fixed.worker_id} may take cannot be told"
    if len(standings) < 2:
        return "every worker takes prompts and decodes: there is one alone" if standings else "there is no worker"
    return None


def bound_by_memory(standings: Sequence[Standing]) -> int:
    """How many workers may take prompts for others, so that the rest holds what is decoded."""
    held = sum(each.attended_tokens for each in standings)
    each = min(standing.blocks * standing.block_tokens for standing in standings)
    needed = max(1, ceil(held / (0.9 * each))) if each else len(standings)
    return max(0, len(standings) - needed)


def who(prefills: int, taking: frozenset[str], standings: Sequence[Standing]) -> frozenset[str]:
    """Those that are to take prompts for others, as few of them new as possible: who begins has the fewest streams,
    who stops the fewest prompts waiting."""
    inside = [each for each in standings if each.worker_id in taking]
    outside = [each for each in standings if each.worker_id not in taking]
    if prefills <= len(inside):
        inside.sort(key=lambda each: (-each.queued_prompt_tokens, each.worker_id))
        return frozenset(each.worker_id for each in inside[:prefills])
    outside.sort(key=lambda each: (each.running, each.attended_tokens, each.worker_id))
    return taking | {each.worker_id for each in outside[: prefills - len(inside)]}


def _tunable(standings: Sequence[Standing]) -> bool:
    return bool(standings) and all(each.itl_target for each in standings)


def _same_side(before: Way, best: Way, here: Way) -> bool:
    """Whether two looks point the same way from here."""
    first, second = before.prefills - here.prefills, best.prefills - here.prefills
    return first * second > 0 or (first == second == 0 and before.itl_s == best.itl_s)


def name(way: Way, workers: int) -> str:
    """As it is told: 3 of 8 take prompts, or 8 unified; and the bound on steps."""
    bound = "" if way.itl_s is None else f", steps up to {way.itl_s * 1e3:.3g} ms"
    split = f"{way.prefills} of {workers} take prompts" if way.prefills else f"{workers} unified"
    return split + bound


def _told(here: Outlook, ordered: Sequence[Outlook], workers: int) -> str:
    """What was compared."""
    others = [each for each in ordered if each.way != here.way][:2]
    compared = " and ".join(f"{name(each.way, workers)} of {each.attainment:.0%}" for each in others)
    beside = f", of {compared}" if compared else ""
    return f"{name(here.way, workers)} promises {here.attainment:.0%} in the objective{beside}"
