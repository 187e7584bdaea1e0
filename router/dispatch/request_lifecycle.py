"""A request from its admission to its end: its legs, its time, its account, and exactly one end.

`router.dispatch.request_state` adds the attempts.
"""

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from router.alarms import Alarm
from router.dispatch.account import Account
from router.dispatch.answer_log import AnswerLog
from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.deps import DispatchDeps, Host
from router.dispatch.hedging import Hedging
from router.dispatch.phase import Phase
from router.dispatch.request_status import StatusReader
from router.dispatch.retry_state import RetryState
from router.dispatch.sequences import Sequences
from router.dispatch.tallies import EndedRequest
from router.dispatch.why_missed import Evidence
from router.generation import Generation, RequestStatus, Sink
from router.placement import Unplaced
from tandem.core.errors import TandemError

Self = TypeVar("Self")
"""The class of the request itself, which the dispatcher takes."""
_OVERDUE_S: Final = 0.05
"""Seconds by which the timer of a request may be late before this counts as a fault."""


class RequestLifecycle(ABC, Generic[Self]):
    """Owns everything of a request that must be released at its end."""

    def __init__(self, host: Host[Self], tools: DispatchDeps, generation: Generation, sink: Sink, key: int) -> None:
        """The sink of a resumable request is an `AnswerLog`."""
        deadlines, now = tools.settings.deadlines, tools.clock.now()
        self.generation = generation
        self.key = key
        self.phase = Phase.QUEUED
        self._outcome = ""
        self.revision = ""
        """The revision of the workers on which the request was placed last."""
        self.arrived = now
        self.retry_at = now
        self._host = host
        self._tools = tools
        self._sink = sink
        self._log = sink if isinstance(sink, AnswerLog) else None
        self._deadline = generation.received + min(generation.timeout_s, deadlines.total_s)
        self._give_up_at = now + host.queue_s(generation.model)
        self._sequences = Sequences(generation)
        self._unfinished = generation.n
        self._attempt: Attempt | None = None
        self._hedging = Hedging(tools.settings.retry, self._sequences, self._close)
        self._retry_state = RetryState(tools.settings.retry, generation.avoid)
        self._worker_streams: list[WorkerStream] = []
        self._obstacle: Unplaced | None = None
        self._moved_at = -1
        self._account = Account(tools, generation, now)
        self._alarm = Alarm(tools.alarms, self._on_alarm)
        self._status_reader: StatusReader | None = None

    @property
    def worker_streams(self) -> tuple[WorkerStream, ...]:
        """Legs of all attempts whose handles may still be open."""
        return tuple(self._worker_streams)

    @property
    def accepted(self) -> int:
        """Output tokens delivered so far, all sequences together."""
        return self._sequences.accepted

    @property
    def attempts(self) -> int:
        """The number of attempts that have begun."""
        return self._retry_state.attempts

    def ended(self) -> EndedRequest:
        """The outcome and figures of the request, once it is over."""
        first_at, generation, times = self._account.first_at, self.generation, None
        if first_at is not None and generation.pin is None:
            later = max(1.0, self.accepted / generation.n - 1.0)
            times = first_at - generation.received, (self._tools.clock.now() - first_at) / later
        return EndedRequest(generation.model, self.revision, self._outcome, times, self.accepted)

    def missed(self, evidence: Evidence) -> None:
        """Record what is known of why some of the request's prompt has to be computed."""
        self._account.missed = evidence

    def standing(self) -> RequestStatus:
        """The current status of the request."""
        if self._status_reader is None:
            self._status_reader = StatusReader(self.generation, self._host)
        return self._status_reader.standing(self._attempt, self._sequences, self._retry_state.attempts)

    # ---- time ----

    def _arm(self, at: float) -> None:
        self._alarm.set(at if self.phase in (Phase.ENDING, Phase.OVER) else min(at, self._deadline))

    @abstractmethod
    def _on_alarm(self) -> None:
        """The time that was set has come."""

    @abstractmethod
    def _tell_over(self) -> None:
        """The request has ended; its handles may stay open a little for late reports."""

    @abstractmethod
    def _tell_forgotten(self) -> None:
        """Report that no handle of the request is left."""

    # ---- the end of an attempt ----

    def _end_attempt(self, outcome: str, *, cancel: bool) -> None:
        attempt, self._attempt = self._attempt, None
        for each, sure in ((self._hedging.take(), True), (attempt, cancel)):
            if each is not None:
                self._close(each, outcome, cancel=sure)

    def _close(self, attempt: Attempt, outcome: str, *, cancel: bool = True) -> None:
        for leg in attempt.worker_streams():
            # Prefill may still hold blocks for a fetch that was given up; of one that came through it holds nothing.
            leg.fence(cancel=cancel or leg is attempt.prefill)
        self._account.attempted(attempt, outcome)
        self._host.freed()

    # ---- the end ----

    def cancel(self, reason: str) -> None:
        """End the request and free everything it holds, on all workers. The sink receives nothing more."""
        if self.phase is not Phase.OVER:
            self._end_attempt("cancelled", cancel=True)
            self._over("cancelled", reason)

    def fail(self, error: TandemError) -> None:
        """End the request with a typed error."""
        if self.phase is not Phase.OVER:
            self._end_attempt(error.code, cancel=True)
            self._over(error.code, error.message)
            self._sink.failed(error)

    def let_go(self, error: TandemError) -> None:
        """End it here and leave it where it runs: another router has it, or may claim it."""
        if self.phase is not Phase.OVER:
            for leg in self._worker_streams:
                leg.close()
            self._end_attempt(error.code, cancel=False)
            self._over(error.code, error.message)
            self._sink.failed(error)

    def discard(self) -> None:
        """Forget a request that never began; its sink receives nothing."""
        assert self._retry_state.attempts == 0, "a request that has begun is cancelled, not discarded"
        self._over("refused", "")

    def check(self) -> None:
        """Raise `AssertionError` when this request's own state does not fit together, or its time is over."""
        if self.phase is Phase.OVER:
            assert self._attempt is None, "an attempt after the end"
            assert True not in [leg.live for leg in self._worker_streams], "a live leg after the end"
            return
        late_s = self._tools.clock.now() - self._deadline
        assert self.phase is Phase.ENDING or late_s < _OVERDUE_S, (
            f"{self.generation.request_id} is alive {late_s:.2f} s after its deadline"
        )
        unfinished = len(self._sequences.unfinished())
        assert self._unfinished == unfinished, f"{self._unfinished} counted, {unfinished} unfinished"
        assert (self._attempt is not None) == (self.phase is Phase.RUNNING), f"an attempt while {self.phase}"
        self._retry_state.check()
        attempts = (self._attempt is not None) + (self._hedging.second is not None)
        live = [leg.live for leg in self._worker_streams].count(True)
        assert live <= 2 * attempts, "more live legs than attempts have"
        assert self._alarm.is_set, f"no timer while {self.phase}"
        assert not live or self.phase is Phase.RUNNING, f"a live leg while {self.phase}"

    def _finish(self, attempt: Attempt) -> None:
        """End the attempt once every sequence has finished. Where the first token was also the last, decode has not
        stopped by itself and prefill's lease has not been ended."""
        at_first = self._sequences.ended_at_first(attempt)
        self._end_attempt("done", cancel=at_first and attempt.prefill is not None)
        self.phase = Phase.ENDING
        if self._account.cached is None and any(leg.open and leg.computes_prompt for leg in self._worker_streams):
            settings = self._tools.settings
            wait_s = settings.usage_wait_s if self.generation.pin is None else settings.report_wait_s
            self._arm(self._tools.clock.now() + wait_s)
        else:
            self._done()

    def _done(self) -> None:
        self._over("done", "")
        self._sink.done(self._account.usage(self.accepted))

    def _over(self, outcome: str, reason: str) -> None:
        self.phase, self._outcome = Phase.OVER, outcome
        self._account.close(outcome, reason, self._sequences.lengths, self._retry_state.attempts)
        self._tell_over()
        self._arm(self._tools.clock.now() + self._tools.settings.report_wait_s)
        self._forget_when_silent()

    def _forget_when_silent(self) -> None:
        for leg in self._worker_streams:
            if leg.open:
                return
        self._forget()

    def _forget(self) -> None:
        self._alarm.retire()
        self._hedging.retire()
        for leg in self._worker_streams:
            leg.close()
        self._worker_streams = []
        self._tell_forgotten()
