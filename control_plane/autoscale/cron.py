"""Floors by the clock: five cron fields in UTC, as Debian's cron reads them. `cronsim` parses and evaluates them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from tandem.core.errors import TandemError
from tandem.spec.pool import ScheduledFloor

_FIELDS: Final = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31"),
    ("month", "1 to 12"),
    ("weekday", "0 to 7"),
)
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
_TEXTS_MAX: Final = 256
"""Schedules whose verdict is kept: finding that one never starts costs a search through 50 years."""


@dataclass(frozen=True)
class Cron:
    """A cron schedule that has starts."""

    text: str

    def last_start(self, now: float, within_s: float) -> float | None:
        """The latest start at or before `now` that is less than `within_s` seconds ago, None without one. `now` and
        the start are seconds since the epoch."""
        # The search begins before the moment that it is given, and knows whole seconds.
        after = datetime.fromtimestamp(int(now) + 1, UTC)
        start = next(CronSim(self.text, after, reverse=True), None)
        return None if start is None or start.timestamp() <= now - within_s else start.timestamp()


def parse(text: str) -> Cron:
    """The schedule of five cron fields. Raises `bad_setting` that names the field, or says that there is no such
    day."""
    fault = _fault(text)
    if fault:
        raise TandemError("bad_setting", f"{text!r}{fault}", param="start")
    return Cron(text)


@lru_cache(maxsize=_TEXTS_MAX)
def _fault(text: str) -> str:
    """What is wrong with a schedule; empty for a good one."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        return f" has {len(fields)} fields; cron has five"
    for position, (name, allowed) in enumerate(_FIELDS):
        alone = ["*"] * len(_FIELDS)
        alone[position] = fields[position]
        if not _is_read(" ".join(alone)):
            return f": the {name} {fields[position]!r} is not a value, range or step from {allowed}"
    if not _is_read(text) or next(CronSim(text, _ANY_TIME), None) is None:
        return ": there is no day on which it starts"
    return ""


def _is_read(text: str) -> bool:
    try:
        CronSim(text, _ANY_TIME)
    except CronSimError:
        return False
    return True


def open_floor(schedule: Iterable[ScheduledFloor], now: float) -> int:
    """The highest floor whose window is open at `now`, in seconds since the epoch; 0 without one. Raises
    `bad_setting`."""
    return max((floor.replicas for floor in schedule if _open(floor, now)), default=0)


def _open(floor: ScheduledFloor, now: float) -> bool:
    return parse(floor.start).last_start(now, floor.duration_seconds) is not None
