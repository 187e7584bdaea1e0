"""A worker of the fleet simulator that is Tandem's own scheduler: its plans, with a simulated GPU's step times.

Nothing is computed: a step's result is counts alone, and a block's name stands for its tokens.
"""

from array import array
from collections.abc import Sequence

from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import Listener, WorkerSettings
from benchmarks.fleet.workload import Request
from tandem.core.kv import RootIdentity
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest, FetchJob, RequestStats, StepReport
from tandem.engine.scheduler.plan import Drawn, Step, StepResult
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.engine.scheduler.step_model import StepLoad
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel

ROOT = RootIdentity("simulated", "u64", 16).name()
_LEASE_S = 1e6
_ANSWER = 1 << 31
"""Tokens of answers are above, those of prompts below."""


class RealWorker:
    """Has the interface of `benchmarks.fleet.worker.Worker`."""

    def __init__(self, index: int, role: str, settings: WorkerSettings, listener: Listener, seed: int = 0) -> None:
        assert settings.itl_target_s is not None
        size, time = settings.engine_block_tokens, settings.step_time
        self.index = index
        self.role = role
        self.settings = settings
        self.blocks = settings.kv_tokens // size
        self.model = SimulatedModel(
            context_tokens=1 << 20, block_tokens=size, blocks=self.blocks,
            base_s=time.base_s, sequence_s=time.sequence_s, read_s=time.read_s,
            token_s=time.token_s, context_s=time.context_s,
        )  # fmt: skip
        bounds = SchedulerSettings(
            settings.max_sequences, settings.max_batched_tokens, settings.min_prefill_tokens, settings.itl_target_s,
            queue_s=1e6,
        )  # fmt: skip
        self.scheduler = Scheduler(self.model.info(), bounds)
        self._learn()
        self.due: float | None = None
        self.work_s = 0.0
        self.load = self.scheduler.load()
        self._last: dict[int, float] = {}
        """By request, when its last token came."""
        self._listener = listener
        self._jobs: dict[int, WorkerRequest] = {}
        self._ids: dict[WorkerRequest, int] = {}
        self._fetches: dict[int, FetchJob] = {}
        """Of hand-overs that have their slots, what they wait for."""
        self._words: dict[int, int] = {}
        """Of each name of a prompt's block, the token of which it consists here."""
        self._step: Step | None = None
        self._took_s = 0.0
        self._report_due = 0.0

    def _learn(self) -> None:
        """Let the scheduler measure steps of all kinds, as it has when it has run for a while."""
        for rows in (0, 1, 4, 16, 64):
            for tokens in (0, 32, 256, 2048):
                for start in (0, 2000, 16_000):
                    load = StepLoad(
                        rows, tokens, tokens * (start + tokens / 2), int(tokens > 0), rows * (start + 500.0)
                    )
                    if rows or tokens:
                        self.scheduler._budget.observe(load, self.model.step_s(load))

    # ---- what comes in ----

    def submit(self, job: WorkerRequest, now: float) -> None:
        """A job arrives."""
        self.touch(now)
        request = job.request
        work_id = len(self._ids) + 1
        self._ids[job], self._jobs[work_id] = work_id, job
        mode = "prefill" if job.prefill_only else "decode" if job.handed_over else "local"
        self.scheduler.submit(
            EngineRequest(
                work_id=work_id,
                mode=mode,
                prompt=self._prompt(job),
                branches=(ChildRequest(0, 1),),
                sampling=Sampling(),
                stopping=Stopping(request.output_tokens, ignore_eos=True),
                root=ROOT,
                deadline=1e9,
                priority=request.priority,
                lease_id=str(work_id) if job.prefill_only else "",
                lease_s=_LEASE_S,
            ),
            now,
        )
        self.wake(now)

    def prompt_ready(self, job: WorkerRequest, now: float) -> None:
        """The prompt of a job that is handed over has been computed elsewhere, and its first token drawn."""
        self.touch(now)
        work_id = self._ids[job]
        fetch = self._fetches.get(work_id)
        if fetch is not None and len(fetch.targets) > 1:
            # Blocks land while the rest is computed: a transfer that is under way is not idle.
            self.scheduler.landed(work_id, fetch.targets[0].index, b"", now)
        self.scheduler.provide_first(work_id, 0, _ANSWER | work_id, now)
        self._hear(self.scheduler.take_report(), now)
        self.wake(now)

    def arrived(self, job: WorkerRequest, now: float) -> None:
        """All blocks that a hand-over asked for are in their slots."""
        self.touch(now)
        fetch = self._fetches.pop(self._ids[job])
        for target in fetch.targets:
            self.scheduler.landed(fetch.work_id, target.index, b"", now)
        self.scheduler.fetch_ended(fetch.work_id, None, now)
        self._hear(self.scheduler.take_report(), now)
        self.wake(now)

    def cancel(self, job: WorkerRequest, now: float) -> None:
        """Nothing happens: requests of these workloads are not given up, and one that has ended leaves nothing."""
        assert job.left == 0 or job.prefill_only, "a request that has not ended was cancelled"

    def held(self, request: Request) -> int:
        """Leading prompt tokens that were in the pool when the hand-over got its slots."""
        missing = [
            fetch.targets for work_id, fetch in self._fetches.items() if self._jobs[work_id].request is request
        ]
        return request.input_tokens - sum(target.tokens for targets in missing for target in targets)

    def _prompt(self, job: WorkerRequest) -> bytes:
        request, words = job.request, self._words
        tokens = array("I")
        for place, name in enumerate(request.blocks):
            word = words.setdefault(name, len(words) + 1)
            tokens.extend([word] * (request.leading(place + 1) - request.leading(place)))
        return tokens.tobytes()

    def wake(self, now: float) -> None:
        """Something has changed."""
        if self._step is None:
            self._plan(now)

    def advance(self) -> None:
        """The step ends, and the next is planned."""
        now = self.due
        assert now is not None
        self.touch(now)
        step, self._step = self._step, None
        if step is not None:
            self.work_s += self._took_s - self.model.base_s
            self._hear(self.scheduler.apply(_result(step, self._took_s), now), now)
        self._plan(now)

    def touch(self, now: float) -> None:
        """Before anything changes: figures of the last multiple of `load_every_s`."""
        if now >= self._report_due:
            every_s = self.settings.load_every_s
            self._report_due = (now // every_s + 1) * every_s
            self.load = self.scheduler.load()

    def release_kept(self, job: WorkerRequest, now: float) -> None:
        """What a prefill job kept for its transfer may go."""
        self.touch(now)
        job.keeps = False
        self.scheduler.leases.release(str(self._ids[job]))
        self.wake(now)

    # ---- steps ----

    def _plan(self, now: float) -> None:
        step, report = self.scheduler.plan(now)
        self._step = step
        if step is not None:
            self._took_s = self.model.step_s(_load(step))
            self.due = now + self._took_s
        else:
            self.due = self.scheduler.next_wake(now)
        self._hear(report, now)

    def _hear(self, report: StepReport | None, now: float) -> None:
        if report is None:
            return
        assert not report.failed, report.failed
        for emitted in report.emitted:
            self._emitted(self._jobs[emitted.work_id], now)
        for work_id in report.withdrawn:
            del self._fetches[work_id]
            self.scheduler.fetch_ended(work_id, None, now)
            self._listener.withdrawn(self._jobs[work_id], now)
        for fetch in report.fetches:
            self._fetches[fetch.work_id] = fetch
            self._listener.reserved(self._jobs[fetch.work_id], now)
        for ended in report.ended:
            self._ended(ended.work_id, ended.stats, now)

    def _emitted(self, job: WorkerRequest, now: float) -> None:
        request = job.request
        job.left -= 1
        request.emitted += 1
        if request.first_s < 0:
            self._listener.first_token(job, now)
        else:
            request.gaps.add(now - self._last.get(request.number, request.first_s))
        self._last[request.number] = now

    def _ended(self, work_id: int, stats: RequestStats, now: float) -> None:
        job = self._jobs[work_id]
        request = job.request
        request.computed += stats.tokens_computed
        request.reused += stats.tokens_reused
        request.preempted += stats.preemptions
        if not job.handed_over and stats.admitted is not None:
            request.begun_s = stats.admitted
        job.keeps = job.prefill_only and job.left > 0
        self._listener.finished(job, now)

    @property
    def preemptions(self) -> int:
        return self.scheduler.state.preemptions

    def leading(self, names: Sequence[int]) -> int:
        """How many of the first names are here: nobody asks where placement is fixed."""
        return 0

    def check(self, kept: Sequence[WorkerRequest] = ()) -> None:
        """Assert the scheduler's invariants."""
        self.scheduler.check()


def _load(step: Step) -> StepLoad:
    """What the step costs. Rows that draw one token of those that generate are columns."""
    rows, context = 0, 0
    if step.columns is not None:
        rows, context = len(step.columns.starts), sum(step.columns.starts)
    attended = sum(row.count * (row.start + row.count / 2) for row in step.rows)
    return StepLoad(rows, sum(row.count for row in step.rows), attended, len(step.rows), context)


def _result(step: Step, seconds: float) -> StepResult:
    """What a runner would answer, its tokens all different from those of prompts."""
    drawn = tuple(
        Drawn(draw.work_id, draw.sequence, draw.position, _ANSWER | draw.work_id)
        for row in step.rows
        for draw in row.draws
    )
    lanes = step.columns.lanes if step.columns is not None else []
    tokens = [_ANSWER | lane.work_id for lane in lanes]
    return StepResult(step.number, drawn, (b"",) * len(step.complete), seconds, tokens)
