"""Collects what happened until somebody takes it as one `StepReport`."""

from tandem.core.messages import TokenLogprob
from tandem.engine.protocol import Emitted, FetchJob, KvChange, StepReport, WorkEnded, WorkFailed, WorkStats


class Outbox:
    """Events since the last `take`, in order. A `take` of nothing gives None."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._emitted: list[Emitted] = []
        self._failed: list[WorkFailed] = []
        self._ended: list[WorkEnded] = []
        self._fetches: list[FetchJob] = []
        self._reasons: dict[str, None] = {}

    def emit(
        self,
        work_id: int,
        sequence: int,
        position: int,
        token: int,
        finish: str | None,
        stop_reason: int | None,
        logprob: TokenLogprob | None,
        relayed: bool,
    ) -> None:
        self._emitted.append(Emitted(work_id, sequence, position, token, finish, stop_reason, logprob, relayed))

    def fail(self, work_id: int, code: str, message: str) -> None:
        self._failed.append(WorkFailed(work_id, code, message))

    def end(self, work_id: int, stats: WorkStats) -> None:
        self._ended.append(WorkEnded(work_id, stats))

    def fetch(self, job: FetchJob) -> None:
        self._fetches.append(job)

    def explain(self, reason: str) -> None:
        self._reasons[reason] = None

    def take(self, kv: KvChange) -> StepReport | None:
        """Everything since the last call, together with changed names; None when there is nothing to tell."""
        happened = self._emitted or self._failed or self._ended or self._fetches or self._reasons
        if not (happened or kv.stored or kv.removed):
            return None
        report = StepReport(
            emitted=tuple(self._emitted),
            failed=tuple(self._failed),
            ended=tuple(self._ended),
            fetches=tuple(self._fetches),
            kv=kv,
            reasons=tuple(self._reasons),
        )
        self._clear()
        return report
