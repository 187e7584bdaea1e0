"""What a planner of a split promised, and what was observed afterwards."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from router.settings import SplitSettings
from router.split.outlook import Replay
from router.split.values import ObservedRequest, SplitOption, WorkerStatus, WorkTimes
from router.split.work import demands, present
from tandem.core.slo import Slo

_DOUBLINGS: Final = 10.0
_TOLD_MIN: Final = 0.7
"""Share of the requests of a stretch whose end must be known before the stretch is compared with its forecast."""
_ERROR_WEIGHT: Final = 0.3
_ENDING: Final = 0.25
"""Share of the window: younger requests may still be under way, and the slow ones are reported last."""
_UNKNOWN: Final = 0.5
"""Share in the objective that a number of workers is taken to reach as far as that was not seen: as many requests as
decide anything count beside those that were."""
_OBSERVED_MAX: Final = 2000
"""Outcomes of one number of workers that count; older ones weigh less."""
_CHANGES_MAX: Final = 64
"""Changes of the split that are remembered: requests that came before the earliest of them count for none."""


@dataclass(slots=True)
class _Stretch:
    """The outcomes since a look, until they are compared with the forecast: how the fleet stood at the start of the
    stretch, and which option was in force."""

    begin_s: float
    now: tuple[WorkerStatus, ...]
    way: SplitOption
    told: int = 0
    met: int = 0


class Record:
    """The record of one planner, which changes it in place."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._stretches: deque[_Stretch] = deque(maxlen=max(1, ceil(2 * settings.window_s / settings.look_s)))
        self.error: float | None = None
        """Mean difference of the attainment that was forecast from the one that was observed; None while unknown."""
        self._observed: dict[int, tuple[float, float]] = {}
        """Outcomes by the number of workers that took prompts: how many were reported, and how many of them were
        within the objective."""
        self._in_force: deque[tuple[float, int]] = deque(maxlen=_CHANGES_MAX)
        """Changes of the split: the time, and the number of workers that took prompts from then on."""
        self._too_good = 0
        """Comparisons in a row that the model promised too much for."""
        self._distrusted_s = float("-inf")
        self._distrust_s = settings.distrust_s

    def begin(self, now: float, standings: Sequence[WorkerStatus], way: SplitOption) -> None:
        """A stretch begins."""
        if not self._in_force or self._in_force[-1][1] != way.prefills:
            self._in_force.append((now, way.prefills))
        self._stretches.append(_Stretch(now, tuple(standings), way))

    def clear(self) -> None:
        """Drop the stretches under way: they say nothing of the split that is in force now."""
        self._stretches.clear()

    def rest(self) -> None:
        """Others decide what is in force."""
        self.clear()
        self._in_force.clear()

    def outcome(self, arrival_s: float, met: bool, placed: bool) -> None:
        """Record that a request that arrived at `arrival_s` has ended. A request that was never placed is not
        replayed either. The outcome counts for what was in force when the request came, whatever is in force now:
        slow requests end last, and often after a change."""
        for begin_s, prefills in reversed(self._in_force):
            if begin_s <= arrival_s:
                told, kept = self._observed.get(prefills, (0.0, 0.0))
                weight = 1.0 if told < _OBSERVED_MAX else 0.5
                self._observed[prefills] = weight * told + 1, weight * kept + met
                break
        for stretch in reversed(self._stretches):
            if stretch.begin_s <= arrival_s:
                stretch.told += placed
                stretch.met += met and placed
                return

    def lately(self, now: float) -> float | None:
        """Share in the objective of what came since the last change and within half a window, and has ended; None
        where little has."""
        begin_s = now - self._settings.window_s / 2
        latest = [stretch for stretch in self._stretches if stretch.begin_s >= begin_s]
        told = sum(stretch.told for stretch in latest)
        return sum(stretch.met for stretch in latest) / told if told >= self._settings.requests_min else None

    def distrusted(self, now: float) -> bool:
        """Whether forecasts are not to be followed."""
        return now < self._distrusted_s

    def compare(
        self,
        now: float,
        latest: Sequence[ObservedRequest],
        times: WorkTimes,
        slo: Slo,
        share: float,
        moved_s: float,
    ) -> Iterator[None]:
        """Compare the forecast with the outcomes of the latest requests: those since a look half a window ago,
        replayed from the state of the fleet at that look."""
        settings = self._settings
        begun_s = self._stretches[0].begin_s if self._stretches else now
        # What ran and waited at the begin and after a change is of another way.
        settled_s = max(begun_s, moved_s) + settings.window_s / 2
        begins = [each for each in self._stretches if settled_s <= each.begin_s <= now - settings.window_s / 2]
        if not begins:
            return
        begin, until_s = begins[-1], now - _ENDING * settings.window_s
        stretches = [each for each in self._stretches if begin.begin_s <= each.begin_s < until_s]
        end_s = min((each.begin_s for each in self._stretches if each.begin_s >= until_s), default=now)
        came = [seen for seen in latest if begin.begin_s <= seen.arrival_s < end_s]
        told, met = sum(each.told for each in stretches), sum(each.met for each in stretches)
        if len(came) < settings.requests_min or told < _TOLD_MIN * share * len(came):
            return
        replay = Replay(begin.way, demands(came, times, slo), present(begin.now, came, times), times, slo)
        yield from replay.run()
        over = replay.outlook().attainment - met / told
        error, known = abs(over), self.error
        self.error = error if known is None else known + _ERROR_WEIGHT * (error - known)
        self._too_good = self._too_good + 1 if over > settings.error_max else 0
        if (
            not self.distrusted(now)
            and error < settings.error_max / 2
            and now - self._distrusted_s > self._distrust_s
        ):
            self._distrust_s = settings.distrust_s

    def fall_back(self, now: float, here: int, workers: int) -> int | None:
        """The number of workers taking prompts that did best in observed outcomes, once forecasts have promised too
        much and that number is not `here`; else None. Forecasts are then not followed for a while."""
        if self._too_good < 2 or self.distrusted(now):
            return None
        self._too_good = 0
        self._distrusted_s = now + self._distrust_s
        self._distrust_s = min(2 * self._distrust_s, _DOUBLINGS * self._settings.distrust_s)
        few = self._settings.requests_min
        shares = {
            prefills: (met + few * _UNKNOWN) / (told + few)
            for prefills, (told, met) in self._observed.items()
            if told >= few and prefills < max(1, workers)
        }
        shares.setdefault(0, _UNKNOWN)
        best = max(shares, key=lambda prefills: (shares[prefills], -prefills), default=here)
        return best if shares.get(best, 0.0) > shares.get(here, 0.0) + self._settings.ahead else None
