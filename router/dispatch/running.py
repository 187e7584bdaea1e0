"""One request between admission and its end: attempts, failures, deadlines, usage.

    queued ──► running ◄──► waiting          waiting: for a worker or a backoff, after an attempt failed
      │           │            │
      └───────────┴────────────┴──► over     by way of `ending` while the last report is awaited

Everything happens on the event loop, synchronously; one timer per request serves all its deadlines.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from router.dispatch import endings
from router.dispatch.attempt import Attempt, Leg
from router.dispatch.context import Host, Tools
from router.dispatch.patience import earliest, next_look
from router.dispatch.phase import FINAL, UNCHARGED, Phase
from router.dispatch.positions import Mismatch
from router.dispatch.retry_budget import backoff_s
from router.dispatch.sequences import Sequences
from router.dispatch.story import Story, Summary
from router.dispatch.submit import send_attempt
from router.fleet.peer import Peer
from router.generation import Generation, Sink, Usage
from router.placement import Placement, PlacementRequest, Unplaced
from tandem.core.errors import KINDS, TandemError
from tandem.core.messages import AttemptReport, Cancel, ProvideFirst, SampleFirst, SequenceOutput

_TIMER_SLACK_S: Final = 0.001


class RunningRequest:
    """`router.generation.Running`, and the owner of its legs and positions."""

    def __init__(
        self, host: "Host[RunningRequest]", tools: Tools, generation: Generation, sink: Sink, key: int
    ) -> None:
        deadlines, now = tools.settings.deadlines, tools.clock.now()
        self.generation = generation
        self.key = key
        self.phase = Phase.QUEUED
        self.retry_at = now
        self._host = host
        self._tools = tools
        self._sink = sink
        self._arrived = now
        self._deadline = generation.received + min(generation.timeout_s, deadlines.total_s)
        self._give_up_at = now + deadlines.queue_s
        self._sequences = Sequences(generation)
        self._unfinished = generation.n
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._fruitless = 0
        self._legs: list[Leg] = []
        self._excluded: tuple[tuple[str, int], ...] = ()
        self._obstacle: Unplaced | None = None
        self._cached: int | None = None
        self._cached_expected = 0
        self._first_at: float | None = None
        self._story = Story(generation, tools.entropy)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def legs(self) -> tuple[Leg, ...]:
        """Legs of all attempts whose handles may still be open."""
        return tuple(self._legs)

    @property
    def accepted(self) -> int:
        """Output tokens delivered so far, all sequences together."""
        return self._sequences.accepted

    # ---- attempts ----

    def placement_request(self, cached: Mapping[str, int]) -> PlacementRequest:
        """What placement has to know; `cached` gives leading prompt tokens by worker id."""
        replayed = self._sequences.replayed
        return PlacementRequest(
            model=self.generation.model,
            prompt_tokens=self.generation.prompt_tokens + replayed,
            sequences=self._unfinished,
            max_tokens=max(1, self.generation.stopping.max_tokens - replayed),
            cached=cached,
            excluded=self._excluded,
            local_only=replayed > 0 and self.generation.n > 1,
        )

    def wait_in_line(self) -> None:
        """Nobody can take the request now: wait for as long as the queue allows."""
        self._arm(self._give_up_at)

    def unplaced(self, obstacle: Unplaced) -> None:
        """No worker can take the request now, and why."""
        self._obstacle = obstacle
        if obstacle.code == "out_of_blocks":
            self.fail(endings.never_fits(obstacle))

    def begin(self, placement: Placement, decode: Peer, prefill: Peer | None) -> None:
        """Start an attempt on these workers."""
        now = self._tools.clock.now()
        if self._attempts == 0:
            self._story.queued(self._arrived, now, self._obstacle.reasons if self._obstacle is not None else ())
            self._tools.meter.observe("tandem_stage_seconds", now - self._arrived, "queue")
        self._attempts += 1
        self.phase = Phase.RUNNING
        self._attempt = attempt = self._new_attempt(placement, decode, prefill, now)
        self._legs = [leg for leg in self._legs if leg.open]
        self._legs.extend(attempt.legs())
        left_s = max(0.001, self._deadline - now)
        send_attempt(self._tools, self.generation, attempt, self._sequences.branches(), left_s)
        self._tools.meter.add("tandem_placements_total", 1.0, placement.mode)
        self._await_progress(attempt)

    def _new_attempt(self, placement: Placement, decode: Peer, prefill: Peer | None, now: float) -> Attempt:
        deliver, count, computed = self._sink.output, self._unfinished, placement.prefill_tokens
        positions, decoded = self._sequences.positions, computed if prefill is None else 0
        on_prefill = None if prefill is None else Leg(self, prefill, positions, deliver, count, computed, now)
        on_decode = Leg(self, decode, positions, deliver, count, decoded, now)
        return Attempt(
            number=self._attempts,
            placement=placement,
            decode=on_decode,
            prefill=on_prefill,
            first=self._sequences.next_positions(),
            accepted_before=self.accepted,
            span_id=self._story.new_span_id(),
            started=now,
            patient_since=now,
        )

    def _end_attempt(self, outcome: str, *, cancel: bool) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        for leg in attempt.legs():
            # Prefill may still hold blocks for a fetch that was given up; of one that came through it holds nothing.
            leg.fence(cancel=cancel or leg is attempt.prefill)
        self._story.attempted(attempt, self._tools.clock.now(), outcome)
        self._tools.meter.add("tandem_attempts_total", 1.0, outcome)
        self._cached_expected = attempt.placement.cached_tokens
        self._host.freed()

    # ---- what legs tell ----

    def advanced(self, leg: Leg, output: SequenceOutput) -> None:
        """`leg` brought accepted positions: prefill's first tokens go to decode, finishes are counted."""
        attempt = self._attempt
        assert attempt is not None
        if self._first_at is None:
            self._first_at = self._tools.clock.now()
        if leg is attempt.prefill:
            self._prefill_advanced(attempt, leg, output)
        else:
            leg.watched = False
        if output.finish is not None:
            self._unfinished -= 1
            if self._unfinished == 0:
                self._finish(attempt)

    def _prefill_advanced(self, attempt: Attempt, leg: Leg, output: SequenceOutput) -> None:
        decode = attempt.decode
        if output.finish is not None:
            decode.send(Cancel(decode.handle, output.sequence))
        elif output.tokens:
            decode.send(ProvideFirst(decode.handle, output.sequence, output.tokens[0]))
        if not self._sequences.lacks_first(attempt):
            leg.release()
            self._host.freed()

    def mismatched(self, leg: Leg, mismatch: Mismatch) -> None:
        """What came cannot be part of the answer, so neither can anything else of this attempt."""
        self._restart(leg, "internal", f"{leg.peer.worker_id} sent what does not fit: {mismatch.reason}")

    def leg_failed(self, leg: Leg, code: str, message: str) -> None:
        assert self._attempt is not None
        if leg is self._attempt.prefill:
            self._go_on_without_prefill(self._attempt, leg, f"{code}: {message}")
        elif code in FINAL:
            self.fail(TandemError(code, message))
        else:
            self._restart(leg, code if code in KINDS else "internal", message)

    def leg_reported(self, leg: Leg, report: AttemptReport) -> None:
        """The figures of a leg; the first that computed the prompt tells how much of it was cached."""
        if report.spans:
            self._tools.recorder.record(self.generation.request_id, report.spans)
            self._tools.costs.observe_spans(report.spans)
        worked = report.tokens_computed or report.tokens_reused
        if leg.computes_prompt and worked and self._cached is None:
            self._cached = min(report.tokens_reused, self.generation.prompt_tokens)
        if not leg.live:
            leg.close()
        if self.phase is Phase.ENDING and self._cached is not None:
            self._done()
        elif self.phase is Phase.OVER:
            self._forget_when_silent()

    # ---- failures ----

    def _go_on_without_prefill(self, attempt: Attempt, leg: Leg, reason: str) -> None:
        """Decode computes what it cannot fetch; when all first positions are known its own fetch decides."""
        leg.fence(cancel=True)
        attempt.prefill = None
        self._exclude(leg)
        attempt.notes.append(f"went on without prefill on {leg.peer.worker_id} ({reason})")
        if self._sequences.lacks_first(attempt):
            attempt.patient_since = self._tools.clock.now()
            attempt.decode.computes_prompt = True
            attempt.decode.send(SampleFirst(attempt.decode.handle))
            self._tools.meter.add("tandem_attempts_total", 1.0, "prefill_lost")
        self._await_progress(attempt)
        self._host.freed()

    def _restart(self, leg: Leg, code: str, message: str) -> None:
        """The attempt is lost: try elsewhere with everything accepted so far, within the bounds on retries."""
        attempt, retry = self._attempt, self._tools.settings.retry
        assert attempt is not None
        self._fruitless = self._fruitless + 1 if self.accepted == attempt.accepted_before else 0
        self._exclude(leg)
        attempt.notes.append(message)
        self._end_attempt(code, cancel=True)
        if self._fruitless >= retry.fruitless_attempts_max or self._attempts >= retry.attempts_max:
            self.fail(endings.gave_up(code, self._attempts, message))
        elif code not in UNCHARGED and not self._host.may_retry():
            self.fail(endings.too_many_retries(code, message))
        else:
            now = self._tools.clock.now()
            self.phase = Phase.WAITING
            self.retry_at = now + backoff_s(retry, self._fruitless)
            self._give_up_at = now + retry.resume_wait_s
            self._arm(self.retry_at if self.retry_at > now else self._give_up_at)
            self._host.place_again(self)

    def _exclude(self, leg: Leg) -> None:
        self._excluded = (*self._excluded, (leg.peer.worker_id, leg.peer.epoch))

    # ---- deadlines ----

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = at if self.phase in (Phase.ENDING, Phase.OVER) else min(at, self._deadline)
        self._timer = self._tools.loop.call_later(max(0.0, at - self._tools.clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._tools.clock.now() + _TIMER_SLACK_S
        if self.phase is Phase.OVER:
            self._forget()
        elif self.phase is Phase.ENDING:
            self._done()
        elif now >= self._deadline:
            self.fail(endings.too_late(self._deadline - self.generation.received, self.accepted))
        elif self._attempt is not None:
            self._look_for_stalls(self._attempt, now)
        elif now >= self._give_up_at:
            retry_after_s = self._host.retry_after_s(self.generation.model)
            self.fail(endings.no_worker_came(now - self._arrived, self._host.obstacle(self), retry_after_s))
        else:
            self._arm(self._give_up_at)
            self._host.place_again(self)

    def _await_progress(self, attempt: Attempt) -> None:
        self._arm(
            next_look(attempt, self._sequences.unfinished(), self._tools.settings.deadlines, self._tools.clock.now())
        )

    def _look_for_stalls(self, attempt: Attempt, now: float) -> None:
        due, each = earliest(attempt, self._sequences.unfinished(), self._tools.settings.deadlines)
        if now < due:
            self._await_progress(attempt)
            return
        stalled = f"sequence {each.sequence} made no progress at position {each.next_position} in time"
        if attempt.prefill is not None and each.next_position == attempt.first[each.sequence]:
            self._go_on_without_prefill(attempt, attempt.prefill, stalled)
        else:
            self._restart(attempt.decode, "deadline_exceeded", f"{attempt.decode.peer.worker_id}: {stalled}")

    # ---- the end ----

    def cancel(self, reason: str) -> None:
        """Free everything everywhere; the sink hears nothing more."""
        if self.phase is not Phase.OVER:
            self._end_attempt("cancelled", cancel=True)
            self._over("cancelled", reason)

    def fail(self, error: TandemError) -> None:
        """End the request with a typed error."""
        if self.phase is not Phase.OVER:
            self._end_attempt(error.code, cancel=True)
            self._over(error.code, error.message)
            self._sink.failed(error)

    def discard(self) -> None:
        """Forget a request that never began; its sink hears nothing."""
        assert self._attempts == 0, "a request that has begun is cancelled, not discarded"
        self._over("refused", "")

    def check(self) -> None:
        """Raise `AssertionError` when this request's own state does not fit together."""
        unfinished = len(self._sequences.unfinished())
        assert self._unfinished == unfinished, f"{self._unfinished} counted, {unfinished} unfinished"
        assert (self._attempt is not None) == (self.phase is Phase.RUNNING), f"an attempt while {self.phase}"
        assert self._attempts <= self._tools.settings.retry.attempts_max, f"{self._attempts} attempts"
        assert len([leg for leg in self._legs if leg.live]) <= 2, "more live legs than an attempt has"
        assert (self._timer is not None) or self.phase is Phase.OVER, f"no timer while {self.phase}"
        for leg in self._legs:
            assert not leg.live or self.phase is Phase.RUNNING, f"a live leg while {self.phase}"

    def _finish(self, attempt: Attempt) -> None:
        """Every sequence has finished. Where the first token already was the last, decode has not stopped by
        itself and nobody has ended prefill's lease."""
        at_first = self._sequences.ended_at_first(attempt)
        self._end_attempt("done", cancel=at_first and attempt.prefill is not None)
        self.phase = Phase.ENDING
        if self._cached is None and any(leg.open and leg.computes_prompt for leg in self._legs):
            self._arm(self._tools.clock.now() + self._tools.settings.usage_wait_s)
        else:
            self._done()

    def _done(self) -> None:
        cached = self._cached if self._cached is not None else self._cached_expected
        self._over("done", "")
        self._sink.done(Usage(self.generation.prompt_tokens, self.accepted, cached))

    def _over(self, outcome: str, reason: str) -> None:
        self.phase = Phase.OVER
        now = self._tools.clock.now()
        spans = self._story.ended(
            now, outcome, reason, Summary(self.accepted, self._attempts, self._cached, self._first_at)
        )
        self._tools.recorder.record(self.generation.request_id, spans)
        self._host.over(self)
        self._arm(now + self._tools.settings.report_wait_s)
        self._forget_when_silent()

    def _forget_when_silent(self) -> None:
        if not any(leg.open for leg in self._legs):
            self._forget()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for leg in self._legs:
            leg.close()
        self._legs = []
        self._host.forgotten(self)
