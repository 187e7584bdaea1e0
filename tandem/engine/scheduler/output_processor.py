"""Processing of drawn tokens: each is the next position of its sequence, is reported, and may be its last."""

from collections.abc import Callable, Collection
from typing import Final

from tandem.core.messages import TokenLogprob
from tandem.engine.protocol import Emitted
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.plan import Drawn
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.sequence import ScheduledRequest, Sequence
from tandem.engine.scheduler.sequence_status import SequenceStatus

_DECODE: Final = SequenceStatus.RUNNING_DECODE
_FINISHED: Final = SequenceStatus.FINISHED


class OutputProcessor:
    """The processing of drawn tokens for the requests of one scheduler. `close` ends a branch."""

    def __init__(
        self,
        jobs: dict[int, ScheduledRequest],
        state: SchedulerState,
        outbox: EngineEvents,
        close: Callable[[Sequence, float], None],
    ) -> None:
        self._jobs = jobs
        self._state = state
        self._outbox = outbox
        self._close = close

    def columns(self, generating: Collection[Sequence], tokens: Collection[int], now: float) -> None:
        """Accept a token for everybody in a step's columns who is still here."""
        emitted = self._outbox.emitted
        for sequence, token in zip(generating, tokens, strict=True):
            if sequence.status is not _DECODE:
                continue
            position = sequence.outputs + 1
            sequence.computed += 1
            if position >= sequence.outputs_max or token in sequence.ends:
                self.accept(sequence, token, None, now)
                continue
            # What `accept` would do for nearly every token there is.
            sequence.last = packed = token.to_bytes(4, "little")
            sequence.tokens += packed
            sequence.length += 1
            sequence.outputs = position
            emitted.append(Emitted(sequence.lane.work_id, sequence.index, position, token))

    def drawn(self, drawn: tuple[Drawn, ...], now: float) -> None:
        """Accept drawn tokens, but for those whose sequence is gone or learned the position in another way."""
        jobs, emitted = self._jobs, self._outbox.emitted
        for one in drawn:
            job = jobs.get(one.work_id)
            if job is None:
                continue
            branch, token, position = job.branches[one.sequence], one.token, one.position
            if branch.status is _FINISHED or position != branch.outputs + 1:
                continue
            decoding = branch.status is _DECODE
            if decoding and position < job.max_tokens and token not in job.ends and not job.prefills:
                # What `accept` would do for nearly every token there is.
                branch.append(token)
                if job.first_token is None:
                    job.first_token = now
                emitted.append(Emitted(one.work_id, one.sequence, position, token, None, None, one.logprob))
                continue
            finish = self.accept(branch, token, one.logprob, now)
            if not decoding and finish is None and not branch.finished:
                self._state.settle(branch)

    def accept(
        self,
        branch: Sequence,
        token: int,
        logprob: TokenLogprob | None,
        now: float,
        emit: bool = True,
        relayed: bool = False,
    ) -> str | None:
        """Accept `token` as the next position of a branch: report it, and end the branch when the token ends it.
        Returns the branch's finish, if any."""
        job, position = branch.job, branch.append(token)
        finish, stop_reason = None, None
        if position >= job.max_tokens or token in job.ends:
            finish, stop_reason = job.stop_check.finish_of(token, position)
        if job.first_token is None:
            job.first_token = now
        if emit:
            self._outbox.emitted.append(
                Emitted(job.work_id, branch.index, position, token, finish, stop_reason, logprob, relayed)
            )
        if job.prefills:
            job.first.append((branch.index, token, finish))
            self._close(branch, now)
        elif finish is not None:
            self._close(branch, now)
        return finish
