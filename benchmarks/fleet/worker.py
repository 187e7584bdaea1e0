"""One worker: continuous batching step by step, many alike steps at once.

Scheduling is that of Tandem's workers, by the rules they have in common (`step_rules`): sequences that
decode go first, one token each; what is left of `max_batched_tokens`, and of the ITL target where there is one, goes
to prompts by priority and arrival, in chunks. Who comes next is admitted when its blocks fit beside what is in use: a
job whose prompt is computed elsewhere reserves its room without any budget, and parks until the blocks have come.
When running sequences outgrow the pool the least urgent is preempted and computed again.
Between two changes of the batch every step differs from the one before by one position per sequence, so their time
is summed in closed form; alike steps with prompts in them are planned at once (`benchmarks.fleet.prompts`).
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final

from benchmarks.fleet.block_tables import preempt_request, publish, release
from benchmarks.fleet.decode_batch import DecodeBatch
from benchmarks.fleet.onboarding import PromptOnboarding
from benchmarks.fleet.places import WorkerAdmission
from benchmarks.fleet.pool import Pool
from benchmarks.fleet.prompts import Prompts, Step
from benchmarks.fleet.rates import Rates
from benchmarks.fleet.step_noise import StepNoise
from benchmarks.fleet.step_time import attended
from benchmarks.fleet.tiers import Tiers
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import Listener, WorkerSettings
from benchmarks.fleet.workload import Request
from tandem.core.messages import Load, StepFit
from tandem.engine.scheduler.step_model import StepLoad, StepTimeModel

_FIRST_TOKEN_S: Final = 1e-4
"""What a worker takes a prompt token to take before its first step."""


class Worker:
    """`due` is when the step, or run of steps, that is under way ends; `advance` carries it out."""

    def __init__(self, index: int, role: str, settings: WorkerSettings, listener: Listener, seed: int = 0) -> None:
        self.index = index
        self.role = role
        self.blocks = settings.kv_tokens // settings.block_tokens
        self.settings = settings
        self.pool = Pool(settings.kv_tokens)
        self.tiers = Tiers(settings.tiers, self._told)
        self.due: float | None = None
        self.work_s = 0.0
        """Seconds that requests have added to steps: all but the base of each."""
        self.preemptions = 0
        self.load = Load(0, 0, 0, self.blocks, 0, 0, 0.0, 0.0, 0.0, 0)
        """What it told of itself last."""
        self._page = (0, settings.kv_tokens)
        self._left_waiting = 0
        self._report_due = 0.0
        self._listener = listener
        self._size = settings.engine_block_tokens
        self._time = self._next_time = settings.step_time
        self._noise = StepNoise(settings.step_noise, seed, index) if settings.step_noise else None
        self._batch = DecodeBatch(settings.step_time, self._size)
        self._prompts = Prompts(settings, self.pool, self._batch)
        self._rates = Rates()
        self._model = StepTimeModel(_FIRST_TOKEN_S) if settings.tells_fit else None
        self._fit: StepFit | None = None
        self._fit_due = 0.0
        self._bringing = PromptOnboarding(index, self.tiers, settings.step_time, listener)
        self._places = WorkerAdmission(settings, self.pool)
        self._clock = 0.0
        """When the step or run of steps that is under way began."""
        self._steps = 0
        """Of a run of steps that only decode."""
        self._planned: list[Step] = []
        """Steps with prompts, of which the first so many have been carried out."""
        self._carried_out = 0
        self._joining: list[WorkerRequest] = []
        """Those whose blocks have come, until the next step is planned."""
        self._cancelled: list[WorkerRequest] = []
        """To be dropped when the step that is under way ends."""
        self._look_s = inf
        """When a parked job is looked at that will be idle by then."""
        self._queued = 0
        """Prompt tokens to compute before a new prompt's."""

    # ---- what comes in ----

    def submit(self, job: WorkerRequest, now: float) -> None:
        """A job arrives; it is looked at when the running step ends."""
        request = job.request
        tokens = request.input_tokens + request.output_tokens
        assert tokens < self.pool.capacity, f"a request of {tokens} tokens never fits {self.pool.capacity}"
        self.touch(now)
        if not job.handed_over:
            if self.tiers or request.sources:
                self._bringing.choose(job, self.pool.leading(request.blocks), now)
            job.uncached -= request.leading(max(job.bring, self.pool.leading(request.blocks)))
        self._queued += job.uncached
        places = self._places
        places.queue(job)
        # Nobody overtakes a job that waits for room.
        if self.due is None or places.shortage is None or job.order < places.shortage.job.order:
            self.wake(now)

    def prompt_ready(self, job: WorkerRequest, now: float) -> None:
        """The prompt of a job that is handed over has been computed elsewhere."""
        self.touch(now)
        if self._places.make_ready(job):
            self.wake(now)

    def arrived(self, job: WorkerRequest, now: float) -> None:
        """All blocks of a parked job are here, and its first token is known: it goes on."""
        self.touch(now)
        self._places.unpark(job)
        job.done = job.total
        self._tell(publish(self.pool, job, job.total))
        self._joining.append(job)
        self.wake(now)

    def cancel(self, job: WorkerRequest, now: float) -> None:
        """Nobody wants the rest: all that the job has here is given back as soon as the step that is under way has
        ended. Nothing happens when it is over already."""
        if job.keeps:
            self.release_kept(job, now)
        elif not job.over and not job.cancelled:
            self.touch(now)
            job.cancelled = True
            self._cancelled.append(job)
            self.wake(now)

    def run_at(self, pace: float, now: float) -> None:
        """From the next step on every step takes `pace` times as long as the settings say."""
        self._next_time = self.settings.step_time.paced(pace)
        self.wake(now)

    def tune(self, itl_target_s: float | None, now: float) -> None:
        """From the next step on prompts are held to that ITL target; None: to the one of its settings."""
        self._prompts.tune(self.settings.itl_target_s if itl_target_s is None else itl_target_s)
        self._listener.wake_at(self.index, now, self.wake)

    def tell_no_fit(self) -> None:
        """Nobody asks what its steps cost: learning that takes a large part of a simulation's time."""
        self._model = None

    def wake(self, now: float) -> None:
        """Something has changed: plan at the next step boundary."""
        if self.due is None:
            self._clock = now
            self._plan()
        elif self._planned:
            self._carry_out_until(now)
            del self._planned[self._carried_out + 1 :]
            self.due = self._planned[-1].end_s
        elif self.due > now:
            steps = self._batch.steps_until(now - self._clock)
            if steps < self._steps:
                self._steps = steps
                self.due = self._clock + self._batch.seconds(steps)

    def advance(self) -> None:
        """The step or run of steps that was planned ends, and the next is planned."""
        assert self.due is not None
        now = self.due
        self.touch(now)
        if self._planned:
            self._carry_out(self._planned[self._carried_out])
            self._planned, self._carried_out = [], 0
        else:
            self._end_steps(self._steps, now)
            self._drop_cancelled()
        for job in self._batch.ended():
            self._finish(job, now)
        self._page = self._left_waiting, self.pool.free
        self._plan()

    def touch(self, now: float) -> None:
        """Before anything changes: steps that have ended are carried out, and what the worker told of itself at the
        last multiple of `load_every_s` is noted."""
        if self._planned:
            self._carry_out_until(now)
        if now >= self._report_due:
            every_s = self.settings.load_every_s
            self._report_due = (now // every_s + 1) * every_s
            if self._model is not None and now >= self._fit_due:
                self._fit_due = now + self.settings.fit_every_s
                self._fit = self._model.fit()
            self.load = self._figures(now)

    def page(self, now: float) -> tuple[int, int]:
        """(waiting requests, free tokens) as the metrics page of vLLM has them: of the last step that has ended.
        Requests that came during a step were not there yet when it was planned. `touch` the worker before."""
        batch = self._batch
        if self._planned or self.due is None or now < self._clock + batch.seconds(1):
            return self._page
        steps = min(self._steps, batch.steps_until(now - self._clock))
        return self._left_waiting, max(0, self.pool.free - batch.growth(steps))

    def release_kept(self, job: WorkerRequest, now: float) -> None:
        """What a prefill job kept for its transfer may go."""
        self.touch(now)
        job.keeps = False
        job.over = True
        self._places.exports.remove(job.request)
        self._tell(release(self.pool, job))
        self.wake(now)

    def held(self, request: Request) -> int:
        """Leading prompt tokens in the pool."""
        return request.leading(self.pool.leading(request.blocks))

    def leading(self, names: Sequence[int]) -> int:
        """How many of the first names are here, in the pool or below."""
        count = self.pool.leading(names)
        for name in names[count:]:
            if not self.pool.holds(name) and not self.tiers.holds(name):
                break
            count += 1
        return count

    # ---- planning ----

    def _plan(self) -> None:
        if self._next_time is not self._time:
            self._time = self._batch.time = self._next_time
        self._drop_cancelled()
        joining, self._joining = self._joining, []
        for job in joining:
            job.told_s = max(job.told_s, job.request.first_s)
            self._batch.start(job, self._clock)
        self._batch.distinct = self.pool.used
        again = True
        while again:
            before = self.preemptions
            self._make_room_to_decode()
            again = self.preemptions > before
            self._plan_prompts(admit=not again)
            # Whoever was preempted may have been the last one to run.
            again = again and not self._planned and not self._batch.count
        batch = self._batch
        if self._planned:
            self.due = self._planned[-1].end_s
        elif batch.count:
            self._steps = self._alike_steps()
            self.due = self._clock + batch.seconds(self._steps)
        else:
            self.due = None
        if self._noise is not None and self.due is not None:
            self.due = self._clock + (self.due - self._clock) * self._noise.factor()
            if self._planned:
                self._planned[0].end_s = self.due
        self._left_waiting = len(self._places.waiting)
        self._let_fall()

    def _alike_steps(self) -> int:
        """Steps until a sequence ends, or memory needs a look."""
        batch, pool = self._batch, self.pool
        steps = min(batch.steps_left(), self._steps_max)
        if pool.free - pool.cached < batch.growth(steps):
            steps = min(steps, batch.steps_within(pool.free), batch.steps_until(self.settings.look_s))
        return max(1, steps)

    @property
    def _steps_max(self) -> int:
        return self.settings.steps_max if self._noise is None else 1

    def _make_room_to_decode(self) -> None:
        """Preempt the least urgent until the next step's blocks fit."""
        while self._batch.count and self.pool.free < self._batch.growth(1):
            self._preempt(self._places.victim())

    def _plan_prompts(self, *, admit: bool) -> None:
        """Prompts of the next steps. In one that had to preempt nobody is admitted."""
        prompts, places, steps_max = self._prompts, self._places, self._steps_max
        places.shortage = None
        if not prompts and not places.waiting:
            return
        if places.waiting and not admit:
            steps_max = 1
        prompts.open(self._time)
        growing = self._batch.growth(1)
        while admit:
            while (admitted := places.admit(prompts.budget_left, len(prompts), growing)) is not None:
                self._enter(*admitted)
            given = places.yield_room(self._clock)
            for job in given:
                self._listener.withdrawn(job, self._clock)
            self._look_again(places.next_look_s(self._clock))
            admit = bool(given)
        self._queued -= prompts.adopted
        prompts.adopted = 0
        self._planned = prompts.steps(self._clock, self._time, len(places.waiting) > 0, steps_max)

    # ---- admission ----

    def _enter(self, job: WorkerRequest, here: int) -> None:
        """It has its room, with `here` blocks of its prompt in it."""
        request, now = job.request, self._clock
        if job.handed_over and not job.resumed:
            self._places.park(job, now)
            self._listener.reserved(job, now)
            return
        before, job.done = job.uncached, job.known(here)
        job.uncached = job.total - job.done
        if not job.resumed:
            request.begun_s = now
            # After a preemption it finds what it has computed itself, too.
            request.reused = max(request.reused, job.done - request.computed - request.fetched)
        coming = self._bringing.begin(job, here, now) if here < job.bring else None
        job.bring = 0
        if coming is None:
            self._prompts.add(job)
        else:
            self._await_blocks(job, *coming)
        self._queued += job.uncached - before
        if not job.parked:
            self._prompts.take_chunk(job)

    def _await_blocks(self, job: WorkerRequest, end: int, at: float) -> None:
        """The blocks up to `end` come `at` some time; what is left is computed then."""
        done = max(job.done, job.known(end))
        job.uncached -= done - job.done
        if not job.resumed:
            job.request.fetched += done - job.done
        self._places.park(job, self._clock)
        self._listener.wake_at(self.index, at, partial(self._brought, job, end))

    def _brought(self, job: WorkerRequest, end: int, now: float) -> None:
        if job.cancelled:
            return
        self.touch(now)
        self._places.unpark(job)
        job.done = max(job.done, job.known(end))
        self._tell(publish(self.pool, job, job.request.leading(end)))
        self._prompts.add(job)
        self.wake(now)

    def _look_again(self, at: float) -> None:
        if at < self._look_s:
            self._look_s = at
            self._listener.wake_at(self.index, at, self._looked)

    def _looked(self, now: float) -> None:
        self._look_s = inf
        self.touch(now)
        self.wake(now)

    # ---- ends of steps ----

    def _carry_out_until(self, now: float) -> None:
        """The planned steps that have ended, but for the last: planning the next is not for onlookers."""
        planned = self._planned
        while self._carried_out < len(planned) - 1 and planned[self._carried_out].end_s < now:
            self._carry_out(planned[self._carried_out])
            self._carried_out += 1

    def _carry_out(self, step: Step) -> None:
        self._end_steps(1, step.end_s, step)
        if self._cancelled:
            self._drop_cancelled()
        self._end_chunks(step.chunks, step.end_s)
        self._page = self._left_waiting, self.pool.free

    def _end_steps(self, steps: int, now: float, planned: Step | None = None) -> None:
        """So many steps are over; `planned` is the only one, if it has prompt tokens."""
        batch, took_s = self._batch, now - self._clock
        tokens = 0 if planned is None else planned.tokens
        if self._model is not None:
            chunks = () if planned is None else planned.chunks
            reach = sum(attended(job.done, count) for job, count in chunks)
            context = batch.context + batch.count * (steps - 1) / 2
            self._model.observe(StepLoad(batch.count, tokens, reach, len(chunks), context), took_s / steps, steps)
        self.work_s += took_s - steps * self._time.base_s
        self._clock = now
        grown = batch.growth(steps)
        batch.run(steps, took_s)
        self.pool.reserve(grown)
        self._rates.observe(steps, batch.count, tokens, took_s)
        self._let_fall()

    def _end_chunks(self, chunks: list[tuple[WorkerRequest, int]], now: float) -> None:
        news: list[int] = []
        known: list[WorkerRequest] = []
        for job, count in chunks:
            job.request.computed += count
            job.request.chunks += 1
            if job.cancelled:
                continue
            job.done += count
            job.uncached -= count
            self._queued -= count
            if (
                job.done - job.published * job.request.block_tokens >= job.request.block_tokens
                or job.done == job.total
            ):
                news += publish(self.pool, job, job.done)
            if job.peer is not None:
                job.peer.touched(now)
            if job.done >= job.total:
                known.append(job)
        self._tell(news)
        if known:
            self._prompts.drop_known()
            for job in known:
                self._emit_first(job, now)

    def _emit_first(self, job: WorkerRequest, now: float) -> None:
        """The first token after the prompt, or after what was computed again."""
        job.left -= 1
        job.request.emitted += 1
        if job.request.emitted > 1:
            job.request.gaps.add(now - job.told_s)
        if not job.resumed:
            self._listener.first_token(job, now)
        job.told_s = now
        if job.left > 0 and not job.prefill_only:
            self._batch.start(job, now)
            return
        job.keeps = job.prefill_only and job.left > 0
        self._over(job, now)

    def _finish(self, job: WorkerRequest, now: float) -> None:
        self._count_emitted(job)
        self._over(job, now)

    def _over(self, job: WorkerRequest, now: float) -> None:
        self._places.leave(job)
        self._listener.finished(job, now)
        if not job.keeps:
            job.over = True
            self._tell(release(self.pool, job))

    def _count_emitted(self, job: WorkerRequest) -> None:
        """It leaves the batch with as many tokens more as it took part in steps."""
        steps = self._batch.stop(job, self._clock)
        job.left -= steps
        job.request.emitted += steps

    def _leave(self, job: WorkerRequest) -> None:
        """Out of the batch, in whatever part of it."""
        if job.running:
            self._count_emitted(job)
        else:
            self._queued -= job.uncached
            if job in self._joining:
                self._joining.remove(job)
            elif not job.parked:
                self._prompts.remove(job)
        self._places.leave(job)

    def _preempt(self, job: WorkerRequest) -> None:
        """Give its room to the others; it will be computed again, with what it has generated."""
        self._leave(job)
        if job.request.emitted and not job.prefill_only:
            job.total = job.request.input_tokens + job.request.emitted
            job.resumed = True
        preempt_request(self.pool, job)
        self.preemptions += 1
        job.request.preempted += 1
        job.uncached = job.total
        self._queued += job.uncached
        self._places.waiting.push(job)

    def _drop_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for job in cancelled:
            if job.over:
                continue
            job.over = True
            if self._places.waiting.remove(job):
                self._queued -= job.uncached
            else:
                self._leave(job)
                self._tell(release(self.pool, job))

    # ---- telling ----

    def _tell(self, names: list[int]) -> None:
        """Blocks that can be used from now on."""
        if names:
            if self.tiers:
                self.tiers.raise_up(names)
            self._listener.blocks(self.index, "hbm", tuple(names), (), self._clock)

    def _let_fall(self) -> None:
        """Blocks that the pool has given up."""
        if self.pool.evicted:
            evicted = self.pool.take_evicted()
            self._listener.blocks(self.index, "hbm", (), tuple(name for name, _ in evicted), self._clock)
            if self.tiers:
                self.tiers.fall(evicted)

    def _told(self, tier: str, stored: tuple[int, ...], removed: tuple[int, ...]) -> None:
        self._listener.blocks(self.index, tier, stored, removed, self._clock)

    def _figures(self, now: float) -> Load:
        """Load figures, the steps counted that a run of them has done so far."""
        pool, batch, rates, free = self.pool, self._batch, self._rates, self.pool.free
        if batch.count and not self._planned and self.due is not None and now > self._clock:
            steps = min(self._steps, batch.steps_until(now - self._clock))
            rates = rates.during(self._time, steps, batch.count, batch.reads)
            free = max(0, free - batch.growth(steps))
        size = self.settings.block_tokens
        return Load(
            running=len(self._places.running),
            waiting=len(self._places.waiting),
            queued_prompt_tokens=self._queued,
            blocks_free=free // size,
            blocks_cached=min(pool.cached, free) // size,
            blocks_exported=self._places.exports.tokens // size,
            step_s=rates.step_s,
            prefill_tokens_per_s=rates.prefill,
            decode_tokens_per_s=rates.decode,
            preemptions=self.preemptions,
            prefill_token_s=self._time.token_s,
            prefill_position_s=self._time.context_s,
            fit=self._fit,
        )

    # ---- invariants ----

    def check(self, kept: Sequence[WorkerRequest] = ()) -> None:
        """Assert that the books fit, with `kept` the jobs whose transfer is under way."""
        self.pool.check()
        self.tiers.check()
        batch, size, resident = self._batch, self._size, (*self._places.running, *kept)
        decoding = [job for job in self._places.running if job.running]
        assert batch.count == len(decoding), f"{batch.count} are said to decode, {len(decoding)} do"
        assert batch.context == sum(job.context(batch.step) for job in decoding), "contexts do not add up"
        grown = sum(-(-job.context(batch.step) // size) - -(-job.total // size) for job in decoding)
        pinned = dict.fromkeys(name for job in resident for name in job.pinned)
        named = sum(self.pool.tokens_of(name) for name in pinned)
        private = size * grown + sum(job.private for job in resident)
        assert self.pool.used == private + named, f"{self.pool.used} used, {private} + {named} accounted for"
        undone = (*self._places.waiting.jobs, *(job for job in self._places.running if not job.running))
        queued = sum(job.uncached for job in undone)
        assert self._queued == queued, f"{self._queued} queued, {queued} counted"
        exported = any(job.prefill_only for job in resident)
        assert (self._places.exports.tokens > 0) == exported, "exports without jobs, or jobs without exports"
        self._places.check()
