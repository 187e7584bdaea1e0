"""Implements the circuit breaker of one pair: whether a decode worker may pull from a prefill worker.

    unproven ──ok──► closed ──a transfer failed──► doubted ──canary ok──► closed, or open if k transfers failed lately
        └──failed──► open ◄──canary failed────────────┘
                      └──back-off──► half-open ──canary ok──► closed
                                         └──canary failed──► open, for twice as long

The first failure already triggers a canary, which is answered within milliseconds on a healthy path. Until then
traffic takes other paths, so a dead path costs only the requests that were on it. Failures are counted for paths that
carry canaries and lose transfers. Only a canary closes a pair, and there is never more than one under way. Pure: time
is passed in, and nothing is sent here.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from router.placement.pairs import UNSEEN, PairView
from router.settings import PairSettings

FAULTS: Final = frozenset(("transfer_failed", "kv_corrupt", "ticket_refused", "protocol_mismatch"))
"""Outcomes of a transfer that count against the path. Blocks that are gone and an incarnation that is over do not:
the next transfer may go well."""


class State(Enum):
    """The state of a pair, as `/v1/workers` and metrics call it."""

    UNPROVEN = "unproven"
    CLOSED = "closed"
    DOUBTED = "doubted"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a transfer or a canary. `code` is empty when it brought everything."""

    path: str
    code: str = ""
    message: str = ""


class Breaker:
    """One pair. `preference` are the holder's transports, best first; `view` is what placement reads."""

    def __init__(self, settings: PairSettings, preference: Sequence[str], now: float) -> None:
        self.view = PairView(False, UNSEEN.reason)
        self.state = State.UNPROVEN
        self.probing = False
        self.tried = False
        """A canary has ended, well or not."""
        self.failures: deque[float] = deque(maxlen=settings.failures_max)
        """Times of recent failed transfers that no success has made up for."""
        self._settings = settings
        self._preference = tuple(preference)
        self._best = ""
        self._last = Outcome("")
        self._wait_s = settings.backoff_first_s
        self._closed_at = now
        self._due_at: float | None = now

    @property
    def due_at(self) -> float | None:
        """When the next canary is due; None while a canary is under way or none is wanted."""
        return None if self.probing else self._due_at

    def carries(self, path: str) -> bool:
        """Whether another transfer over this path, without a failure, would change nothing."""
        return self.state is State.CLOSED and not self.failures and path == self.view.path

    def begin(self) -> None:
        """A canary starts."""
        assert not self.probing, "one canary at a time"
        self.probing = True
        self._due_at = None
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN

    def probed(self, outcome: Outcome, now: float) -> None:
        """The canary has ended. It decides, except for a closed pair that only looks for a better path."""
        assert self.probing, "no canary is under way"
        self.probing = False
        self.tried = True
        if not outcome.code:
            self._carried(outcome.path, now)
        elif self.state is State.CLOSED:
            self._fail(outcome, now)
        else:
            self._open(outcome, now)

    def transferred(self, outcome: Outcome, now: float) -> None:
        """Note that a transfer of a request has ended. A transfer that began before the pair opened adds no
        information."""
        if self.state not in (State.CLOSED, State.DOUBTED):
            return
        if outcome.code in FAULTS:
            self._fail(outcome, now)
        elif not outcome.code:
            if self.failures:
                self.failures.popleft()
            if self.state is State.CLOSED and outcome.path != self.view.path:
                self._carried(outcome.path, now)

    def _fail(self, outcome: Outcome, now: float) -> None:
        while self.failures and self.failures[0] < now - self._settings.window_s:
            self.failures.popleft()
        self.failures.append(now)
        self._last = outcome
        if self.state is State.CLOSED:
            self.state = State.DOUBTED
            self._bar(f"in doubt after {outcome.code} ({outcome.message})")
            self._due_at = now

    def _carried(self, path: str, now: float) -> None:
        """Blocks came over `path`: traffic may."""
        if self.state is State.DOUBTED and len(self.failures) == self._settings.failures_max:
            self._open(self._last, now)
            return
        if self.state not in (State.CLOSED, State.DOUBTED):
            self.failures.clear()
            self._closed_at = now
        self.state = State.CLOSED
        self.view.usable, self.view.reason, self.view.path = True, "", path
        if not self._best or self._rank(path) < self._rank(self._best):
            self._best = path
        self._look_for_better(now)

    def _look_for_better(self, now: float) -> None:
        """A pair that has lost a better path is tried again, ever more rarely: the holder's order then decides."""
        if self.view.path != self._best:
            self._due_at = now + self._next_wait_s()
        else:
            self._due_at = None

    def _open(self, outcome: Outcome, now: float) -> None:
        """Bar traffic until a canary has passed. A pair that opens again soon after closing waits longer each
        time."""
        if self.state is State.DOUBTED and now - self._closed_at > self._settings.window_s:
            self._wait_s = self._settings.backoff_first_s
        self.state = State.OPEN
        self.failures.clear()
        self._bar(f"open after {outcome.code} ({outcome.message})")
        self._due_at = now + self._next_wait_s()

    def _bar(self, reason: str) -> None:
        """Bar traffic from the pair, for `reason`."""
        self.view.usable, self.view.reason = False, reason

    def _next_wait_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.backoff_max_s)
        return wait_s

    def _rank(self, path: str) -> int:
        return self._preference.index(path) if path in self._preference else len(self._preference)
