"""Admission: how many requests the router holds, who waits, who goes next. Pure; one owner changes it in place.

A request goes at once while a worker of its model has room and nobody of equal or higher priority waits. Otherwise it
waits, bounded in number and time, so that it is placed late and well instead of queueing at a worker. One that is not
expected to have its turn in time is refused when it comes: `refusal`. Whatever has been learned, what nobody is
before is never refused, so the service always has work to learn better from.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from router.settings import AdmissionSettings

_SHARE: Final = 0.1
_AHEAD_S: Final = 1.0
"""So long before a worker has memory for it a request is sent there: figures are late, and the worker is to have
something to begin with."""
_INTERVAL_S: Final = 0.05
"""How often a request is taken to end where nobody knows."""
_SURE: Final = 0.75
"""The share of a bound that an expected wait may take: most of what is accepted is to keep the bound itself."""
_RESERVED: Final = ""
"""The line, always empty, of requests that never stand in one."""


@dataclass(frozen=True)
class Admitted:
    """Place it now."""


@dataclass(frozen=True)
class Queued:
    """It waits; `ahead` requests of the same model go first."""

    ahead: int


@dataclass(frozen=True)
class Refused:
    """Not accepted: an error code, the sentence, and when to try again."""

    code: str
    reason: str
    retry_after_s: float


class Expected(NamedTuple):
    """What a request is expected to wait for on its workers, in seconds: `memory_s` until `holder` has blocks for it,
    beyond the time in which its prompt is computed, and `prompts_s` for prompts before its own on `computing`.
    `own_s` is what its own prompt takes."""

    memory_s: float = 0.0
    holder: str = ""
    prompts_s: float = 0.0
    computing: str = ""
    own_s: float = 0.0

    @property
    def soon(self) -> bool:
        """Whether its workers have memory for it about when it needs some. Otherwise it waits here."""
        return self.memory_s <= _AHEAD_S

    @property
    def reason(self) -> str:
        """The longer of both waits, in words."""
        if self.memory_s >= self.prompts_s:
            return f"{self.holder} is expected to have KV memory for it in {self.memory_s:.1f} s"
        return f"{self.computing} is expected to have computed the prompts before it in {self.prompts_s:.1f} s"


def refusal(expected: Expected, line_s: float, queue_s: float, ttft_s: float | None) -> Refused | None:
    """Why a request is refused that comes now: those who wait before it take `line_s`, it may wait for `queue_s`, and
    is to have its first token within `ttft_s` where that is told.

    Prompts that get on before it do not count against `queue_s`, as on a worker; they do against `ttft_s`. The time
    of its own prompt is not a reason to refuse it where it would not wait."""
    wait_s, bound_s = line_s + expected.memory_s, queue_s
    over_s = wait_s - _SURE * bound_s
    if ttft_s is not None:
        # Prompts are computed while memory comes free.
        first_wait_s = line_s + max(expected.memory_s, expected.prompts_s)
        late_s = first_wait_s - max(0.0, _SURE * ttft_s - expected.own_s)
        if late_s > over_s:
            wait_s, bound_s, over_s = first_wait_s, ttft_s, late_s
    if wait_s <= 0.0 or over_s <= 0.0:
        return None
    told = [f"it is expected to wait for {wait_s:.1f} s, which is not sure to be within its {bound_s:g} s"]
    if line_s > 0.0:
        told.append(f"the requests before it take {line_s:.1f} s")
    if wait_s > line_s:
        told.append(expected.reason)
    return Refused("queue_full", "; ".join(told), _told_s(over_s))


def _told_s(seconds: float) -> float:
    """What a client is told to wait."""
    return min(30.0, max(1.0, seconds))


Decision = Admitted | Queued | Refused
_ADMITTED: Final = Admitted()


@dataclass
class _Line:
    """The waiting requests of one model: a heap of (-priority, order, key); left entries are skipped later."""

    heap: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)
    last_end: float | None = None
    """When one of the model ended last while others waited."""
    end_interval_s: float | None = None
    """How often one ends while others wait; None where that is not known of this wait."""


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
        """Decide on a new request; `room` tells whether one of the model's workers could take it now."""
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
            line.last_end = line.end_interval_s = None
        elif not waited:
            if line.last_end is not None:
                interval_s = min(now - line.last_end, 5.0)
                before_s = interval_s if line.end_interval_s is None else line.end_interval_s
                line.end_interval_s = before_s + _SHARE * (interval_s - before_s)
            line.last_end = now

    def check(self) -> None:
        """Raise `AssertionError` when a bound was passed. Those that wait again were admitted before."""
        assert len(self._held) <= self._settings.requests_max, f"{len(self._held)} requests are held"
        for model, line in self._lines.items():
            queued = sum(1 for _, order, key in line.heap if order > 0 and key in line.waiting)
            assert queued <= self._settings.queued_max, f"{queued} requests for {model} are queued"

    def retry_after_s(self, model: str) -> float:
        """When a place in line is likely: the line's length times the pace at which requests end, 1 to 30 s."""
        return _told_s(self.line_s(model, self.queued(model), _INTERVAL_S))

    def line_s(self, model: str, ahead: int, interval_s: float) -> float:
        """How long so many requests take to leave the line: `interval_s` each where no pace has been seen."""
        line = self._lines.get(model)
        seen_s = line.end_interval_s if line is not None else None
        return ahead * (interval_s if seen_s is None else seen_s)

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
