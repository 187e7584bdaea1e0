"""Give resumable attempts to the routers that claim them, with everything that was reported about them."""

from collections.abc import Callable

import msgspec

from kv_transfer.fetch_progress import FetchReport
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    ResumeAttempt,
    ResumeNotFound,
    RetainOutputs,
    RouterMessage,
    Submit,
    Transferred,
)
from tandem.worker.attempts import Attempt, AttemptTable
from tandem.worker.output_log import OutputLog
from tandem.worker.resumable_attempts import ResumableAttempt, ResumableAttempts


class AttemptResume:
    """Resumes attempts; one per `AttemptManager`, over its table. `say` sends a message to a session and ignores
    sessions that are gone."""

    def __init__(
        self, table: AttemptTable, holding: ResumableAttempts, clock: Clock, say: Callable[[int, RouterMessage], None]
    ) -> None:
        self._table = table
        self._clock = clock
        self._say = say
        self._resumable_attempts = holding

    def begin(self, attempt: Attempt) -> None:
        """An attempt starts; from now on it can be claimed if it is resumable."""
        if attempt.submit.resume:
            attempt.log = OutputLog(attempt.submit.kept)
            self._resumable_attempts.add(attempt)

    def keep(self, session_id: int, keep: RetainOutputs) -> None:
        """Keep the outputs that the router accepted from another worker."""
        held = self._resumable_attempts.at(session_id, keep.handle)
        if held is not None and held.attempt.log is not None:
            for output in keep.outputs:
                if output.sequence in held.attempt.outputs:
                    held.attempt.log.keep(output)

    def claim(self, session_id: int, claim: ResumeAttempt) -> None:
        """Hand the attempt over to the router that claims it, and notify the router that had it before, if it is
        there. Raises `invalid_request` for a handle in use."""
        if (
            self._table.by_handle(session_id, claim.handle) is not None
            or (session_id, claim.handle) in self._resumable_attempts
        ):
            raise TandemError("invalid_request", f"handle {claim.handle} is in use", param="handle")
        held = self._resumable_attempts.find(claim.keys, self._clock.now())
        if held is None:
            self._say(session_id, ResumeNotFound(claim.handle))
            return
        attempt = held.attempt
        place = (attempt.session_id, attempt.submit.handle)
        self._say(place[0], AttemptFailed(place[1], "taken_over", "another router goes on with this request"))
        self._table.move(attempt, session_id, claim.handle)
        self._resumable_attempts.moved(held, place, self._clock.now())
        self._tell(held)

    def failed(self, attempt: Attempt, failure: AttemptFailed) -> None:
        """Record that the attempt failed here, for the router that claims it."""
        held = self._resumable_attempts.at(attempt.session_id, attempt.submit.handle)
        if held is not None and held.attempt is attempt:
            held.failure = failure

    def ended(self, attempt: Attempt, report: AttemptReport) -> None:
        """Note that the attempt has ended; its outputs and report stay for a while."""
        self._resumable_attempts.ended(attempt, report, self._clock.now())

    def _tell(self, held: ResumableAttempt) -> None:
        """All outputs, what its router is to judge, `AttemptResumed`, and how the attempt ended if it has."""
        attempt, submit = held.attempt, held.attempt.submit
        assert attempt.log is not None, "a resumable attempt has a log"
        for message in attempt.log.messages(submit.handle):
            self._say(attempt.session_id, message)
        if attempt.asks and attempt.fetch is not None:
            self._say(attempt.session_id, transferred(submit, attempt.fetch))
        left_s = submit.deadline_s - (self._clock.now() - attempt.submitted)
        starts = tuple((branch.sequence, len(branch.forced) + 1) for branch in submit.branches)
        told = (submit.handle, submit.resume, submit.attempt, submit.mode, left_s, starts)
        self._say(attempt.session_id, AttemptResumed(*told, transferred=attempt.transferred, images=submit.images))
        if held.failure is not None:
            self._say(attempt.session_id, msgspec.structs.replace(held.failure, handle=submit.handle))
        if held.report is not None:
            self._say(attempt.session_id, msgspec.structs.replace(held.report, handle=submit.handle))


def transferred(submit: Submit, fetched: FetchReport) -> Transferred:
    """The message that reports a hand-off that has ended to a router."""
    assert submit.remote is not None, "nothing is fetched for a work without a remote"
    return Transferred(
        handle=submit.handle,
        holder=submit.remote.worker_id,
        holder_epoch=submit.remote.epoch,
        path=fetched.path,
        seconds=fetched.seconds,
        bytes=fetched.bytes,
        code=fetched.code,
        message=fetched.message,
        passed_over=fetched.passed_over,
    )
