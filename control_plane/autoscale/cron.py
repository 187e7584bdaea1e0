"""Floors by the clock: five cron fields in UTC, each a list of values, ranges and steps.

Months and weekdays may be names; weekday 7 is Sunday. As in cron, where day and weekday are both restricted either
suffices.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from tandem.core.errors import TandemError
from tandem.spec.pool import ScheduledFloor

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY_S: Final = 86_400
_SHORTCUTS: Final = 256


@dataclass(frozen=True)
class Cron:
    """A cron schedule: sorted values of each field. `either` says that day and weekday are both restricted."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either: bool

    def last_start(self, now: float, within_s: float) -> float | None:
        """The latest start at or before `now` that is less than `within_s` ago."""
        day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        while day.timestamp() + _DAY_S > now - within_s:
            if self._on(day):
                start = self._last_in(day.timestamp(), now)
                if start is not None:
                    return start if start > now - within_s else None
            day -= timedelta(days=1)
        return None

    def _on(self, day: datetime) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        fits = in_month or in_week if self.either else in_month and in_week
        return day.month in self.months and fits

    def _last_in(self, midnight: float, now: float) -> float | None:
        """The latest start of a day, not after `now`."""
        minute = min(int((now - midnight) // 60), 1439)
        for hour in reversed(self.hours[: bisect_right(self.hours, minute // 60)]):
            fitting = bisect_right(self.minutes, minute - hour * 60)
            if fitting:
                return midnight + 60 * (hour * 60 + self.minutes[fitting - 1])
        return None


@lru_cache(maxsize=_SHORTCUTS)
def parse(text: str) -> Cron:
    """Raises `bad_setting` that names the field."""
    fields = text.split()
    if len(fields) != 5:
        raise TandemError("bad_setting", f"{text!r} has {len(fields)} fields; cron has five", param="start")
    minutes = _values(text, "minute", fields[0], 0, 59)
    hours = _values(text, "hour", fields[1], 0, 23)
    days = _values(text, "day", fields[2], 1, 31)
    months = _values(text, "month", fields[3], 1, 12, _MONTHS)
    weekdays = _values(text, "weekday", fields[4], 0, 7, _DAYS)
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        either,
    )


def _values(text: str, name: str, field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found = set[int]()
    for part in field.lower().split(","):
        span, slash, step = part.partition("/")
        try:
            begin, end = _span(span, low, high, names)
            every = int(step) if slash else 1
        except ValueError:
            raise _bad(text, name, part, low, high) from None
        if slash and "-" not in span and span != "*":
            end = high
        if not low <= begin <= end <= high or every < 1:
            raise _bad(text, name, part, low, high)
        found.update(range(begin, end + 1, every))
    return found


def _span(span: str, low: int, high: int, names: tuple[str, ...]) -> tuple[int, int]:
    """First and last value. Raises `ValueError`."""
    if span == "*":
        return low, high
    begin, dash, end = span.partition("-")
    first = _value(begin, low, names)
    return first, _value(end, low, names) if dash else first


def _value(word: str, low: int, names: tuple[str, ...]) -> int:
    return names.index(word) + low if word in names else int(word)


def _bad(text: str, name: str, part: str, low: int, high: int) -> TandemError:
    what = f"{text!r}: the {name} {part!r} is not a value, range or step from {low} to {high}"
    return TandemError("bad_setting", what, param="start")


def open_floor(schedule: Iterable[ScheduledFloor], now: float) -> int:
    """The highest floor whose window is open. Raises `bad_setting`."""
    return max((floor.replicas for floor in schedule if _open(floor, now)), default=0)


def _open(floor: ScheduledFloor, now: float) -> bool:
    return parse(floor.start).last_start(now, floor.duration_seconds) is not None
