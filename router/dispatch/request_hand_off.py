"""Handles a hand-off until decode has its prompt: blocks do not come, or the prefill worker is lost, stands still or
is starved.

A prefill that is not wanted any more is cancelled, and has ended, before another worker computes its prompt.
"""

from abc import abstractmethod
from collections.abc import Sequence

from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.missing import MissingBlocks, decide_recompute
from router.dispatch.request_lifecycle import RequestLifecycle, Self
from router.dispatch.stall_timeout import call_off_s
from router.dispatch.starvation import WaitingPrompt
from tandem.core.messages import SampleFirst


class RequestHandOff(RequestLifecycle[Self]):
    """Owns the prefill leg of a request's attempt."""

    @abstractmethod
    def _await_progress(self, attempt: Attempt) -> None:
        """Let the attempt go on, and look for stalls when one is due."""

    @abstractmethod
    def _wait_for_place(self, backoff_s: float) -> None:
        """The attempt is over: place the request again after so long."""

    # ---- what is told of the hand-off ----

    def transferred(self, leg: WorkerStream, code: str) -> None:
        """Note that decode has all the blocks that it will get. Where some are missing, decode waits for permission
        to compute the rest. It then does not need the first token from another worker: prefill may still be far from
        its turn."""
        attempt = self._attempt
        if attempt is None or leg is not attempt.decode:
            if code:
                # What races another attempt has been charged when it began.
                leg.send(SampleFirst(leg.handle))
            return
        attempt.transferred = True
        self._let_prefill_go(attempt)
        if not code:
            return
        if attempt.prefill is not None:
            if attempt.missing is None:
                now = self._tools.clock.now()
                attempt.missing = MissingBlocks(code, now, now)
                self._judge_missing(attempt, attempt.prefill, attempt.missing, now)
        elif attempt.calls_off is None:
            leg.send(SampleFirst(leg.handle))

    def _judge_missing(self, attempt: Attempt, prefill: WorkerStream, missing: MissingBlocks, now: float) -> None:
        """Whether decode may compute now what it could not fetch: a retry."""
        if now < missing.ask_at:
            self._await_progress(attempt)
            return
        settings = self._tools.settings
        verdict = decide_recompute(
            missing, now, self._host.may_retry(), settings.retry, settings.deadlines.prefill_progress_s
        )
        if verdict.compute:
            self._call_off_prefill(attempt, prefill, verdict.reason)
            return
        if missing.refused == 0:
            attempt.notes.append(verdict.reason)
        attempt.missing = missing.again(verdict.ask_at)
        self._await_progress(attempt)

    def _let_prefill_go(self, attempt: Attempt) -> None:
        """End prefill's lease as soon as nothing is wanted of it: a fetch that failed could not always say so."""
        if attempt.transferred and attempt.prefill is not None and not self._sequences.lacks_first(attempt):
            attempt.prefill.fence(cancel=True)

    def pair_opened(self, prefill: str, decode: str, reason: str) -> None:
        """Note that nothing gets from one worker to the other. An attempt on both that still needs the transfer
        computes on decode, at once instead of after a stalled transfer of its own. No retry is charged, since the
        request did not choose this."""
        attempt = self._attempt
        if attempt is None or attempt.prefill is None or attempt.transferred or not attempt.decode.watched:
            return
        if (attempt.prefill.peer.worker_id, attempt.decode.peer.worker_id) == (prefill, decode):
            self._call_off_prefill(attempt, attempt.prefill, f"nothing gets through to {decode}: {reason}")

    # ---- off a starved worker ----

    def prompt_waits(self, leg: WorkerStream, turn_s: float, here_s: float, now: float) -> WaitingPrompt | None:
        """The state of the request's prompt, which waits on prefill for its turn in `turn_s` and a first token in
        `here_s`; None when some of the prompt has been computed, or another attempt races it."""
        attempt = self._attempt
        if attempt is None or attempt.prefill is not leg or leg.computed or self._hedging.second is not None:
            return None
        if not self._sequences.lacks_all_first(attempt):
            return None
        cost = attempt.placement.costs[0][1]
        expected_s = (cost.queue_ms + cost.fetch_ms + cost.prefill_ms) / 1e3
        waited_s, left_s, answer_s = now - attempt.started, self._deadline - now, cost.decode_ms / 1e3
        return WaitingPrompt(waited_s, expected_s, turn_s, here_s, answer_s, left_s, self._retry_state.prompt_moves)

    @property
    def prompt_moves(self) -> bool:
        """Whether its prompt is on its way to another worker."""
        return self._attempt is not None and self._attempt.moves_prompt

    @property
    def prompt_moved(self) -> bool:
        """Whether its prompt has left a starved worker."""
        return self._retry_state.prompt_moves > 0

    def move_prompt(self, reason: str, avoid: Sequence[tuple[str, int]]) -> None:
        """Have the prompt computed by workers other than `avoid` (id, epoch), as soon as its prefill worker has
        reported that the prompt has ended there, or is lost. None of the prompt has been computed, so this is no
        retry."""
        attempt = self._attempt
        assert attempt is not None, "a prompt that waits has an attempt"
        assert attempt.prefill is not None, "a prompt that waits is on a prefill worker"
        for incarnation in avoid:
            self._retry_state.exclude(*incarnation)
        attempt.moves_prompt = True
        self._call_off_prefill(attempt, attempt.prefill, f"nothing of its prompt has been computed: {reason}")

    # ---- the end of prefill ----

    def _give_up_prefill(self, attempt: Attempt, leg: WorkerStream, reason: str) -> None:
        """Have the prompt computed by decode although prefill still may: a retry. Where too much is being retried it
        is waited for all the same."""
        if self._host.may_retry():
            self._call_off_prefill(attempt, leg, reason)
            return
        attempt.notes.append(f"kept waiting for prefill on {leg.peer.worker_id}, as others are retried ({reason})")
        attempt.patient_since = self._tools.clock.now()
        self._await_progress(attempt)

    def _call_off_prefill(self, attempt: Attempt, leg: WorkerStream, reason: str) -> None:
        """Have the prompt computed by decode as soon as it has ended on prefill, where it is not wanted again."""
        if not self._sequences.lacks_first(attempt):
            self._go_on_without_prefill(attempt, leg, reason)
            return
        leg.fence(cancel=True)
        self._exclude(leg)
        within_s = call_off_s(leg, self._tools.settings.deadlines, moves=attempt.moves_prompt)
        until = self._tools.clock.now() + within_s
        attempt.prefill, attempt.calls_off, attempt.calls_off_until = None, leg, until
        attempt.notes.append(f"called off prefill on {leg.peer.worker_id} ({reason})")
        self._await_progress(attempt)
        if leg.reported or not leg.open:
            self._called_off(leg, leg.computed)

    def _called_off(self, leg: WorkerStream, tokens: int) -> None:
        """Note that a fenced leg has ended on its worker, which had computed `tokens` of the prompt."""
        attempt = self._attempt
        if attempt is not None and attempt.calls_off is leg:
            self._after_call_off(attempt, leg, tokens, "it was called off")
        self._computed_twice(leg, tokens)

    def _after_call_off(self, attempt: Attempt, leg: WorkerStream, tokens: int, reason: str) -> None:
        """Prefill has ended, or has had its time to. A prompt that moves is a retry after all where prefill was
        faster than the cancel and has computed some of it."""
        if not attempt.moves_prompt or not self._sequences.lacks_first(attempt):
            self._go_on_without_prefill(attempt, leg, reason)
            return
        leg.given_up = True
        if tokens:
            self._host.may_retry()
        self._retry_state.prompt_moved()
        self._tools.meter.add("tandem_starved_prompts_total", 1.0, "moved")
        self._end_attempt("moved", cancel=True)
        self._wait_for_place(0.0)

    def _computed_twice(self, leg: WorkerStream, tokens: int) -> None:
        if leg.given_up and tokens:
            self._tools.meter.add("tandem_tokens_computed_twice_total", tokens)
        leg.given_up = False

    def _go_on_without_prefill(self, attempt: Attempt, leg: WorkerStream, reason: str) -> None:
        """Have decode compute what it cannot fetch, and draw the first positions that are not known yet. Once decode
        has delivered a position of its own, nothing is left to fetch."""
        if leg.live:
            leg.fence(cancel=True)
        attempt.prefill = attempt.calls_off = None
        self._exclude(leg)
        attempt.notes.append(f"went on without prefill on {leg.peer.worker_id} ({reason})")
        lacks_first = self._sequences.lacks_first(attempt)
        if lacks_first or attempt.decode.watched or attempt.missing is not None:
            attempt.decode.send(SampleFirst(attempt.decode.handle))
        if lacks_first or attempt.missing is not None:
            leg.given_up = True
            if leg.reported:
                self._computed_twice(leg, leg.computed)
        if lacks_first:
            attempt.patient_since = self._tools.clock.now()
            attempt.decode.computes_prompt = True
            self._tools.meter.add("tandem_attempts_total", 1.0, "prefill_lost")
        self._await_progress(attempt)
        self._host.freed()

    def _exclude(self, leg: WorkerStream) -> None:
        self._retry_state.exclude(leg.peer.worker_id, leg.peer.epoch)
