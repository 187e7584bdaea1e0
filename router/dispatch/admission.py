"""Admission: how many requests the router holds, which of them wait, and which goes next. Pure; one owner changes it
in place.

A request goes at once while a worker of its model has room and no request of equal or higher priority waits.
Otherwise it waits, bounded in number and time, so that it is placed late and well instead of queueing at a worker. A
request that is not expected to have its turn in time is refused on arrival (`refusal`). A request with none ahead of
it is never refused, whatever has been learned, so the service always has work to learn better from.
"""

import heapq
from dataclasses import dataclass, field
from math import sqrt
from typing import Final, NamedTuple

from router.settings import AdmissionSettings

_SHARE: Final = 0.1
_INTERVAL_S: Final = 0.05
"""The time between ends for `Retry-After` until a pace is measured."""
_ENDS_MIN: Final = 8
"""A pace needs this many ends."""
_PACE_KEPT_S: Final = 30.0
"""The pace of a line that emptied holds for the next line of its model for so long."""
_SPREADS: Final = 2.0
"""Standard deviations above the mean that a bound has to allow for."""
_RESERVED: Final = ""
"""The line, always empty, of requests that never stand in one."""


@dataclass(frozen=True)
class Admitted:
    """Place it now."""


@dataclass(frozen=True)
class Queued:
    """The request waits; `ahead` requests of the same model go first."""

    ahead: int


@dataclass(frozen=True)
class Refused:
    """The refusal of a request: an error code, the sentence, and the seconds after which to try again."""

    code: str
    reason: str
    retry_after_s: float


class QueueWait(NamedTuple):
    """The expected wait of a request in a queue, in seconds, behind `ahead` requests that leave it one by one."""

    mean_s: float
    ahead: int

    @property
    def deviation_s(self) -> float:
        """The standard deviation of the wait. The gaps between departures are taken as exponential, so each has one
        as long as its mean."""
        return self.mean_s / sqrt(self.ahead) if self.ahead else 0.0

    @property
    def latest_s(self) -> float:
        """The wait that is hardly ever exceeded: the mean and two standard deviations."""
        return self.mean_s + _SPREADS * self.deviation_s if self.ahead else 0.0


class FirstToken(NamedTuple):
    """The expected time from the queue to the first token: its mean in seconds, and its variance over requests."""

    mean_s: float
    variance: float = 0.0

    def after(self, first_s: float) -> "FirstToken":
        """This estimate after one more request, expected to take `first_s`, has left the queue. The request counts
        for a tenth."""
        off_s = first_s - self.mean_s
        return FirstToken(self.mean_s + _SHARE * off_s, self.variance + _SHARE * (off_s**2 - self.variance))

    def latest_s(self, wait: QueueWait) -> float:
        """The time to first token after `wait` that is hardly ever exceeded, in seconds. The wait and the time after
        it are taken to be independent."""
        return wait.mean_s + self.mean_s + _SPREADS * sqrt(wait.deviation_s**2 + self.variance)


def refusal(wait: QueueWait, turn_within_s: float, first: FirstToken, first_within_s: float | None) -> Refused | None:
    """The refusal of a new request, or None. The request may wait `turn_within_s` in the queue. An objective bounds
    its time to first token, of which `first` follows the queue, by `first_within_s`. A request at the head is never
    refused."""
    if not wait.ahead:
        return None
    if (over_s := wait.latest_s - turn_within_s) > 0.0:
        bound = f"may wait {turn_within_s:g} s for its turn"
    elif first_within_s is not None and (over_s := first.latest_s(wait) - first_within_s) > 0.0:
        bound = f"is to have its first token within {first_within_s:g} s"
    else:
        return None
    before = f"{wait.ahead} before it" if wait.ahead > 1 else "one before it"
    reason = f"with {before} it waits for {wait.mean_s:.1f} to {wait.latest_s:.1f} s, and {bound}"
    return Refused("queue_full", reason, _retry_after_s(over_s))


def _retry_after_s(seconds: float) -> float:
    """The bounded value of `Retry-After`, in seconds."""
    return min(30.0, max(1.0, seconds))


Decision = Admitted | Queued | Refused
_ADMITTED: Final = Admitted()


@dataclass
class _Line:
    """The waiting requests of one model: a heap of (-priority, order, key); left entries are skipped later."""

    heap: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)
    last_end: float | None = None
    """The time of the model's latest end while others waited."""
    paced_at: float = 0.0
    """The time of the latest end that counts in the pace."""
    ends: int = 0
    """Ends that count in the pace."""
    interval_s: float = 0.0
    """The mean time between these ends."""

    def pace_s(self, now: float) -> float | None:
        """The measured time between two ends, or None. A line that does not move has the pace that it had."""
        recent = self.last_end is not None or now - self.paced_at <= _PACE_KEPT_S
        return self.interval_s if recent and self.ends >= _ENDS_MIN else None


class Admission:
    """Counts and queues by a key of the caller's. Every key that was admitted or queued is `ended` exactly once."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._lines: dict[str, _Line] = {}
        self._held: dict[int, str] = {}
        self._order = 0
        self._draining = False

    @property
    def held(self) -> int:
        """Requests running and waiting."""
        return len(self._held)

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Refuse whatever arrives from now on; what is held runs to its end."""
        self._draining = True

    def queued(self, model: str) -> int:
        line = self._lines.get(model)
        return len(line.waiting) if line is not None else 0

    @property
    def waiting(self) -> bool:
        """Whether anyone stands in line."""
        for line in self._lines.values():  # noqa: SIM110  (asked often; a generator costs more than the look)
            if line.waiting:
                return True
        return False

    def models_waiting(self) -> tuple[str, ...]:
        return tuple(model for model, line in self._lines.items() if line.waiting)

    def arrive(self, key: int, model: str, priority: int, room: bool) -> Decision:
        """Decide on a new request; `room` says whether one of the model's workers could take it now."""
        assert key not in self._held, f"request {key} is held already"
        refused = self._refusal(model)
        if refused is not None:
            return refused
        self._held[key] = model
        line = self._lines.setdefault(model, _Line())
        if room and not (line.waiting and self._outranked(line, priority)):
            return _ADMITTED
        self._order += 1
        heapq.heappush(line.heap, (-priority, self._order, key))
        line.waiting[key] = priority
        return Queued(ahead=sum(1 for other in line.waiting.values() if other >= priority) - 1)

    def reserve(self, key: int) -> Refused | None:
        """Hold a place for a request that runs already and comes from another router: it never waits in line."""
        assert key not in self._held, f"request {key} is held already"
        refused = self._refusal(_RESERVED)
        if refused is None:
            self._held[key] = _RESERVED
            self._lines.setdefault(_RESERVED, _Line())
        return refused

    def wait_again(self, key: int, priority: int) -> None:
        """An admitted request found no worker after all: it waits, before later ones of its priority."""
        line = self._lines[self._held[key]]
        heapq.heappush(line.heap, (-priority, 0, key))
        line.waiting[key] = priority

    def next(self, model: str) -> int | None:
        """The request that is to be placed next, or None; it stays in line until `leave_line`."""
        line = self._lines.get(model)
        if line is None:
            return None
        while line.heap and line.heap[0][2] not in line.waiting:
            heapq.heappop(line.heap)
        return line.heap[0][2] if line.heap else None

    def leave_line(self, key: int) -> None:
        """The request waits no longer: it was placed."""
        self._lines[self._held[key]].waiting.pop(key, None)

    def ended(self, key: int, now: float) -> None:
        """The request is over, wherever it was."""
        line = self._lines[self._held.pop(key)]
        waited = line.waiting.pop(key, None) is not None
        if len(line.heap) > 2 * len(line.waiting) + 64:
            line.heap = [entry for entry in line.heap if entry[2] in line.waiting]
            heapq.heapify(line.heap)
        if not line.waiting:
            # Ends tell how fast a line gets on only while there is one.
            line.last_end = None
        elif not waited:
            if line.last_end is not None:
                line.ends += 1
                line.interval_s += max(_SHARE, 1.0 / line.ends) * (now - line.last_end - line.interval_s)
                line.paced_at = now
            elif now - line.paced_at > _PACE_KEPT_S:
                line.ends, line.interval_s = 0, 0.0
            line.last_end = now

    def check(self) -> None:
        """Raise `AssertionError` when a bound was passed. Those that wait again were admitted before."""
        assert len(self._held) <= self._settings.requests_max, f"{len(self._held)} requests are held"
        for model, line in self._lines.items():
            queued = sum(1 for _, order, key in line.heap if order > 0 and key in line.waiting)
            assert queued <= self._settings.queued_max, f"{queued} requests for {model} are queued"

    def retry_after_s(self, model: str) -> float:
        """Seconds until a place in line is likely: the line's length times its latest pace, however old, 1 to 30
        s."""
        line = self._lines.get(model)
        interval_s = line.interval_s if line is not None and line.ends >= _ENDS_MIN else _INTERVAL_S
        return _retry_after_s(self.queued(model) * interval_s)

    def wait(self, model: str, ahead: int, guess_s: float, now: float, begins_s: float = 0.0) -> QueueWait:
        """The wait behind `ahead` requests of the line. Until a pace is known they leave it every `guess_s`, from
        `begins_s` seconds on."""
        line = self._lines.get(model)
        pace_s = None if line is None else line.pace_s(now)
        return QueueWait(begins_s + ahead * guess_s if pace_s is None else ahead * pace_s, ahead)

    def _refusal(self, model: str) -> Refused | None:
        queued = self.queued(model)
        if self._draining:
            code, reason = "draining", "this router is shutting down and takes no new requests"
        elif len(self._held) >= self._settings.requests_max:
            code, reason = "queue_full", f"the router holds {len(self._held)} requests, which is its bound"
        elif queued >= self._settings.queued_max:
            code, reason = "queue_full", f"{queued} requests for {model} wait already, which is the bound"
        else:
            return None
        return Refused(code, reason, self.retry_after_s(model))

    def _outranked(self, line: _Line, priority: int) -> bool:
        return any(other >= priority for other in line.waiting.values())
