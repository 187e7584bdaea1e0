"""Describes a request taken over from another router: what workers handed over of it, and how it becomes an attempt
again."""

from dataclasses import dataclass

from router.dispatch.attempt import Attempt, Deliver, WorkerStream, WorkerStreamOwner
from router.dispatch.sequences import Sequences
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Breakdown, Candidate, Placement, Work
from tandem.core.messages import AttemptFailed, AttemptReport, AttemptResumed, Cancel, SampleFirst, SequenceOutput

_UNKNOWN_COST = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class RecoveredAttempt:
    """What one worker handed over: the attempt under `handle`, every output of it, the code with which its fetch
    ended (None while it goes on), and how it ended if it has."""

    peer: Peer
    handle: int
    claimed: AttemptResumed
    outputs: tuple[SequenceOutput, ...]
    transferred: str | None
    failure: AttemptFailed | None
    report: AttemptReport | None

    @property
    def decodes(self) -> bool:
        """Whether the worker generates, or only computed the prompt."""
        return self.claimed.mode != "prefill"

    @property
    def moved(self) -> bool:
        """Whether every sequence has got beyond where the attempt began."""
        told = {output.sequence: output.position for output in self.outputs}
        return all(told.get(sequence, 0) >= start for sequence, start in self.claimed.starts)

    def replay(self, leg: WorkerStream, now: float) -> None:
        """Deliver every message again, to the leg that the handle belongs to now."""
        for output in self.outputs:
            leg.on_output(output, now)
        if self.transferred is not None:
            leg.on_transferred(self.transferred)
        if self.failure is not None:
            leg.on_failed(self.failure)
        if self.report is not None:
            leg.on_report(self.report)


@dataclass(frozen=True)
class Failover:
    """A request and its latest attempt. Without `decode` only the worker that computed the prompt is left."""

    generation: Generation
    cached_tokens: int
    decode: RecoveredAttempt | None
    prefill: RecoveredAttempt | None

    @property
    def number(self) -> int:
        """The attempt's number."""
        share = self.decode or self.prefill
        assert share is not None, "a takeover has at least one share"
        return share.claimed.attempt

    @property
    def outputs(self) -> tuple[SequenceOutput, ...]:
        """The outputs that prefill has reported."""
        return self.prefill.outputs if self.prefill is not None else ()

    def attempt(
        self, owner: WorkerStreamOwner, sequences: Sequences, deliver: Deliver, span_id: str, now: float
    ) -> Attempt | None:
        """The attempt under its claimed handles; None when no worker generates. Nothing has been replayed yet."""
        share, prefill = self.decode, self.prefill
        if share is None:
            return None
        computed = max(1, self.generation.prompt_tokens - self.cached_tokens)
        first = dict.fromkeys(sequences.positions, 0) | dict(share.claimed.starts)
        return Attempt(
            number=share.claimed.attempt,
            placement=self._placement(share.peer, prefill.peer if prefill is not None else None, computed),
            decode=_leg(owner, share, sequences, deliver, computed if share.claimed.mode == "local" else 0, now),
            prefill=None if prefill is None else _leg(owner, prefill, sequences, deliver, computed, now),
            first=first,
            accepted_before=0,
            span_id=span_id,
            started=now,
            patient_since=now,
        )

    def replay(self, attempt: Attempt, now: float) -> None:
        """Replay everything that the workers handed over, prefill's part first. Where prefill is lost, decode is
        instructed to do without it."""
        prefill, decode = attempt.prefill, attempt.decode
        if self.prefill is not None and prefill is not None:
            self.prefill.replay(prefill, now)
        if self.decode is not None:
            self.decode.replay(decode, now)
            decode.watched = decode.watched or not self.decode.moved
            if self.prefill is None and self.decode.claimed.mode == "decode" and decode.live and decode.watched:
                decode.computes_prompt = True
                decode.send(SampleFirst(decode.handle))

    def let_go(self) -> None:
        """End whatever the workers still hold of it."""
        for share in (self.decode, self.prefill):
            if share is not None:
                share.peer.send(Cancel(share.handle))
                share.peer.close(share.handle)

    def _placement(self, decode: Peer, prefill: Peer | None, computed: int) -> Placement:
        prefill_id = None if prefill is None else prefill.worker_id
        return Placement(
            mode="local" if prefill is None else "disaggregated",
            decode=decode.worker_id,
            prefill=prefill_id,
            prefill_tokens=computed,
            cached_tokens=self.cached_tokens,
            costs=((Candidate(decode.worker_id, prefill_id or ""), _UNKNOWN_COST),),
            reasons=("taken over from another router",),
        )


def _leg(
    owner: WorkerStreamOwner,
    share: RecoveredAttempt,
    sequences: Sequences,
    deliver: Deliver,
    prompt_tokens: int,
    now: float,
) -> WorkerStream:
    work = Work(len(share.claimed.starts), prompt_tokens)
    return WorkerStream(owner, share.peer, sequences.positions, deliver, work, now, share.handle)
