"""One request between admission and its end: attempts, failures, deadlines, moves.

    queued ──► running ◄──► waiting          waiting: for a worker or a backoff, after an attempt failed
      │           │            │
      └───────────┴────────────┴──► over     by way of `ending` while the last report is awaited

Everything happens on the event loop, synchronously; one timer per request serves all its deadlines.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kv_transfer.index.protocol import Held
from router.dispatch import errors as endings
from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.failover import Failover
from router.dispatch.objectives import objective_of
from router.dispatch.opening import open_attempt
from router.dispatch.phase import FINAL, UNCHARGED, Phase
from router.dispatch.positions import Mismatch
from router.dispatch.request_hand_off import RequestHandOff
from router.dispatch.stall_timeout import earliest, next_look
from router.dispatch.submit import send_attempt
from router.fleet.peer import Peer
from router.fleet.services import ServiceFacts
from router.placement import Placement, PlacementRequest, Unplaced
from tandem.core.errors import KINDS, TandemError
from tandem.core.messages import AttemptReport, Cancel, ProvideFirst, RetainOutputs, SequenceOutput

_TIMER_SLACK_S: Final = 0.001


class RequestState(RequestHandOff["RequestState"]):
    """The request as `router.generation.Running`, and the owner of its legs and positions."""

    # ---- attempts ----

    def placement_request(
        self,
        names: Mapping[bytes, Sequence[bytes]],
        held: Mapping[str, Held],
        avoid: tuple[tuple[str, int], ...],
        facts: ServiceFacts | None,
    ) -> PlacementRequest:
        """The input of placement: the names of the prompt's blocks by root name, the workers that hold them and how
        many each holds, and the objective that the request is to meet."""
        age_ms = max(0.0, self._tools.clock.now() - self.generation.received) * 1e3
        held_to = objective_of(facts, begun=self.accepted > 0)
        excluded = (*self._retry_state.excluded, *avoid)
        return self._sequences.placement_request(names, held, excluded, held_to, age_ms)

    def wait_in_line(self) -> None:
        """Wait for as long as the queue allows, since no worker can take the request now."""
        self._arm(self._give_up_at)

    def unplaced(self, obstacle: Unplaced) -> None:
        """Note that no worker can take the request now, and the `obstacle` that is the reason."""
        self._obstacle = obstacle
        if obstacle.code == "out_of_blocks":
            self.fail(endings.never_fits(obstacle))

    def begin(self, placement: Placement, decode: Peer, prefill: Peer | None) -> None:
        """Start an attempt on these workers."""
        if self._retry_state.begin() == 1:
            self._account.placed_first(self._obstacle.reasons if self._obstacle is not None else ())
        self.phase = Phase.RUNNING
        self._attempt = self._open(placement, decode, prefill)
        self._await_progress(self._attempt)

    def begin_beside(self, placement: Placement, decode: Peer, prefill: Peer | None) -> None:
        """Start a second attempt, which races the running one to the first token."""
        assert self._attempt is not None
        self._retry_state.begin()
        self._hedging.second = self._open(placement, decode, prefill)

    def _open(self, placement: Placement, decode: Peer, prefill: Peer | None) -> Attempt:
        now, deliver = self._tools.clock.now(), self._sink.output
        if self.revision not in ("", decode.view.revision) and not self.under_way:
            # Whoever was moved off a worker that leaves has lost nothing.
            self._host.left_revision(self, self.revision)
        self.revision = decode.view.revision
        number, span_id, workers = self._retry_state.attempts, self._account.new_span_id(), (decode, prefill)
        attempt = open_attempt(self, self._sequences, deliver, placement, workers, number, span_id, now)
        if self._worker_streams:
            self._worker_streams = [leg for leg in self._worker_streams if leg.open]
        self._worker_streams.extend(attempt.worker_streams())
        left_s = max(0.001, self._deadline - now)
        kept = self._log.kept() if self._log is not None else ()
        branches, peer = self._sequences.branches(), self._host.peer
        send_attempt(self._tools, self.generation, attempt, branches, left_s, kept, peer=peer)
        self._tools.meter.add("tandem_placements_total", 1.0, placement.mode)
        return attempt

    # ---- what legs tell ----

    def advanced(self, leg: WorkerStream, output: SequenceOutput) -> None:
        """Handle accepted positions of `leg`: send prefill's first tokens to decode, and count finishes."""
        assert self._attempt is not None
        self._attempt = attempt = self._hedging.decide(self._attempt, leg)
        self._account.advanced(attempt)
        if leg is attempt.prefill:
            self._prefill_advanced(attempt, leg, output)
        else:
            leg.watched = False
        if output.finish is not None:
            self._unfinished -= 1
            if self._unfinished == 0:
                self._finish(attempt)

    def _prefill_advanced(self, attempt: Attempt, leg: WorkerStream, output: SequenceOutput) -> None:
        decode = attempt.decode
        if self._log is not None:
            decode.send(RetainOutputs(decode.handle, (output,)))
        if output.finish is not None:
            decode.send(Cancel(decode.handle, output.sequence))
        elif output.tokens:
            decode.send(ProvideFirst(decode.handle, output.sequence, output.tokens[0]))
        if not self._sequences.lacks_first(attempt):
            leg.release()
            self._let_prefill_go(attempt)
            self._host.freed()

    def mismatched(self, leg: WorkerStream, mismatch: Mismatch) -> None:
        """Restart the attempt: what arrived cannot be part of the answer, so neither can anything else of this
        attempt."""
        self._restart(leg, "internal", f"{leg.peer.worker_id} sent what does not fit: {mismatch.reason}")

    def stream_failed(self, leg: WorkerStream, code: str, message: str, param: str = "") -> None:
        assert self._attempt is not None
        if leg is self._attempt.prefill:
            self._go_on_without_prefill(self._attempt, leg, f"{code}: {message}")
            if not leg.open:
                self._computed_twice(leg, leg.computed)
        elif code == "taken_over":
            self.let_go(TandemError(code, message))
        elif code in FINAL and not self._hedging.runs(leg):
            self.fail(TandemError(code, message, param=param or None))
        else:
            self._restart(leg, code if code in KINDS else "internal", message)

    def stream_reported(self, leg: WorkerStream, report: AttemptReport) -> None:
        """Record the figures of a leg, which are the last message of a fenced leg."""
        self._account.reported(leg, report)
        if not leg.live:
            leg.close()
            self._called_off(leg, report.tokens_computed)
        if self.phase is Phase.ENDING and self._account.cached is not None:
            self._done()
        elif self.phase is Phase.OVER:
            self._forget_when_silent()

    def stream_closed(self, leg: WorkerStream) -> None:
        self._called_off(leg, leg.computed)

    # ---- failures ----

    def _restart(self, leg: WorkerStream, code: str, message: str) -> None:
        """The attempt is lost: try elsewhere with everything accepted so far, within the bounds on retries."""
        attempt = self._attempt
        assert attempt is not None
        self._exclude(leg)
        if (left := self._hedging.fall_back(attempt, leg, code, message)) is not None:
            self._attempt = left
            self._await_progress(left)
            return
        enough = self._retry_state.ended(code, message, fruitful=self.accepted > attempt.accepted_before)
        attempt.notes.append(message)
        self._end_attempt(code, cancel=True)
        if enough is not None:
            self.fail(enough)
        elif code not in UNCHARGED and not self._host.may_retry():
            self.fail(endings.too_many_retries(code, message))
        else:
            self._wait_for_place(self._retry_state.backoff_s())

    def _wait_for_place(self, backoff_s: float) -> None:
        now = self._tools.clock.now()
        self.phase = Phase.WAITING
        self.retry_at = now + backoff_s
        self._give_up_at = now + self._tools.settings.retry.resume_wait_s
        self._arm(self.retry_at if backoff_s > 0 else self._give_up_at)
        self._host.place_again(self)

    # ---- from and to another router ----

    def carry_on(self, failover: Failover) -> None:
        """Go on with what another router began: its attempt, or, without a decode worker, what prefill knows."""
        now, deliver = self._tools.clock.now(), self._sink.output
        self._retry_state.attempts = failover.number
        self._account.taken_over(failover.cached_tokens)
        self._attempt = failover.attempt(self, self._sequences, deliver, self._account.new_span_id(), now)
        if (attempt := self._attempt) is not None:
            self.phase, self.revision = Phase.RUNNING, attempt.decode.peer.view.revision
            self._worker_streams.extend(attempt.worker_streams())
            self._await_progress(attempt)
            failover.replay(attempt, now)
        else:
            self._sequences.recall(failover.outputs, deliver)
            failover.let_go()
            self._unfinished = len(self._sequences.unfinished())
        if now >= self._deadline and self._unfinished:
            self._too_late()
        elif self.phase is Phase.QUEUED and self._unfinished:
            self._wait_for_place(0.0)
        elif self.phase is Phase.QUEUED:
            self._done()

    def _too_late(self) -> None:
        self.fail(endings.too_late(self._deadline - self.generation.received, self.accepted))

    def failed_on(self, peer: Peer) -> bool:
        """Whether an attempt on this worker was given up."""
        return (peer.worker_id, peer.epoch) in self._retry_state.excluded

    # ---- moving off a worker that leaves ----

    @property
    def generated_on(self) -> Peer | None:
        """The worker that its tokens come from."""
        return self._attempt.decode.peer if self._attempt is not None else None

    @property
    def tokens_left(self) -> int:
        """The most that its longest sequence may still generate."""
        return self._sequences.tokens_left

    @property
    def under_way(self) -> bool:
        """Whether the request was moved and has delivered no token since."""
        return self._moved_at == self.accepted

    def move(self, reason: str, placement: Placement, decode: Peer, prefill: Peer | None) -> None:
        """Go on elsewhere with everything accepted so far; the worker has not failed and no retry is charged."""
        assert self._attempt is not None
        self._attempt.notes.append(reason)
        self._moved_at = self.accepted
        self._retry_state.moved()
        self._end_attempt("moved", cancel=True)
        self.begin(placement, decode, prefill)

    # ---- deadlines ----

    def _on_alarm(self) -> None:
        now = self._tools.clock.now() + _TIMER_SLACK_S
        if self.phase is Phase.OVER:
            self._forget()
        elif self.phase is Phase.ENDING:
            self._done()
        elif now >= self._deadline:
            self._too_late()
        elif self._attempt is not None:
            self._look_for_stalls(self._attempt, now)
        elif now >= self._give_up_at:
            retry_after_s = self._host.retry_after_s(self.generation.model)
            self.fail(endings.no_worker_came(now - self.arrived, self._host.obstacle(self), retry_after_s))
        else:
            self._arm(self._give_up_at)
            self._host.place_again(self)

    def _await_progress(self, attempt: Attempt) -> None:
        now = self._tools.clock.now()
        look_at = next_look(attempt, self._sequences.unfinished(), self._tools.settings.deadlines, now)
        self._arm(self._hedging.next_look(attempt, look_at, now))

    def _look_for_stalls(self, attempt: Attempt, now: float) -> None:
        self._hedging.look(attempt, now, lambda avoid: self._host.place_beside(self, avoid))
        if attempt.calls_off is not None:
            if now >= attempt.calls_off_until:
                leg = attempt.calls_off
                self._after_call_off(attempt, leg, leg.computed, "it did not say that it has ended")
            return
        if attempt.missing is not None and attempt.prefill is not None:
            self._judge_missing(attempt, attempt.prefill, attempt.missing, now)
            return
        due, each = earliest(attempt, self._sequences.unfinished(), self._tools.settings.deadlines)
        if now < due:
            self._await_progress(attempt)
            return
        stalled = f"sequence {each.sequence} made no progress at position {each.next_position} in time"
        if attempt.prefill is not None and each.next_position == attempt.first[each.sequence]:
            self._give_up_prefill(attempt, attempt.prefill, stalled)
        else:
            self._restart(attempt.decode, "deadline_exceeded", f"{attempt.decode.peer.worker_id}: {stalled}")

    def _tell_over(self) -> None:
        self._host.over(self)

    def _tell_forgotten(self) -> None:
        self._host.forgotten(self)
