"""Collects events until they are taken as one `StepReport`."""

from collections.abc import Iterable

from tandem.engine.protocol import Emitted, FetchJob, KvChange, RequestEnded, RequestFailed, RequestStats, StepReport


class EngineEvents:
    """Events since the last `take`, in order. A `take` of nothing gives None."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.emitted: list[Emitted] = []
        self._failed: list[RequestFailed] = []
        self._ended: list[RequestEnded] = []
        self._fetches: list[FetchJob] = []
        self._withdrawn: list[int] = []
        self._progressed: dict[int, int] = {}
        self._reasons: dict[str, None] = {}

    def fail(self, work_id: int, code: str, message: str, param: str | None = None) -> None:
        self._failed.append(RequestFailed(work_id, code, message, param))

    def end(self, work_id: int, stats: RequestStats) -> None:
        self._ended.append(RequestEnded(work_id, stats))

    def fetch(self, job: FetchJob) -> None:
        self._fetches.append(job)

    def withdraw(self, work_id: int) -> bool:
        """Have a fetch stopped. False when it has not been reported yet: then it never begins, and never ends."""
        told = [job for job in self._fetches if job.work_id != work_id]
        if len(told) < len(self._fetches):
            self._fetches = told
            return False
        self._withdrawn.append(work_id)
        return True

    def progress(self, works: Iterable[tuple[int, int]]) -> None:
        """Note that these requests, as (work id, prompt tokens computed so far), make progress or wait behind others
        that do."""
        self._progressed.update(works)

    def explain(self, reason: str) -> None:
        self._reasons[reason] = None

    def take(self, kv: KvChange) -> StepReport | None:
        """The report of everything since the last call, together with changed names; None when there is nothing to
        report."""
        happened = self.emitted or self._failed or self._ended or self._fetches or self._reasons or self._withdrawn
        if not (happened or self._progressed or kv.stored or kv.removed):
            return None
        report = StepReport(
            emitted=tuple(self.emitted),
            failed=tuple(self._failed),
            ended=tuple(self._ended),
            fetches=tuple(self._fetches),
            withdrawn=tuple(self._withdrawn),
            progressed=tuple(self._progressed.items()),
            kv=kv,
            reasons=tuple(self._reasons),
        )
        self._clear()
        return report
