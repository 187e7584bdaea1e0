"""One worker: continuous batching step by step, many alike steps at once.

Scheduling is that of the engines in the field: sequences that decode go first, one token each; what is left of
`max_batched_tokens`, and of the ITL target where there is one, goes to prompts in order of arrival, in chunks, by
the rules of Tandem's own scheduler (`tandem.engine.step_rules`); a prompt is admitted when its blocks fit beside
what is in use; when running sequences outgrow the pool the one admitted last is preempted and computed again.
Between two changes of the batch every step differs from the one before by one position per sequence, so their time
is summed in closed form.
"""

from collections import deque
from collections.abc import Sequence

from tandem.core.messages import Load
from tandem.engine.step_model import PromptCost
from tandem.engine.step_rules import Allowance, chunk_end, open_allowance
from tandem.fleetsim.bringing import Bringing
from tandem.fleetsim.decode_batch import DecodeBatch
from tandem.fleetsim.job import Job
from tandem.fleetsim.pool import Pool
from tandem.fleetsim.rates import Rates
from tandem.fleetsim.residence import give_way, publish, release, take_room
from tandem.fleetsim.step_noise import StepNoise
from tandem.fleetsim.step_time import StepTime, attended
from tandem.fleetsim.tiers import Tiers
from tandem.fleetsim.worker_settings import Listener, WorkerSettings


class Worker:
    """`due` is when the next step, or run of steps, ends; `advance` carries it out."""

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
        self._report_due = 0.0
        self._listener = listener
        self._time = self._next_time = settings.step_time
        self._cost = PromptCost(0.0, self._time.token_s, self._time.context_s)
        self._noise = StepNoise(settings.step_noise, seed, index) if settings.step_noise else None
        self._batch = DecodeBatch(settings.step_time)
        self._rates = Rates()
        self._bringing = Bringing(index, self.tiers, settings.step_time, listener)
        self._clock = 0.0
        """When the step or run of steps that is under way began."""
        self._steps = 0
        self._chunks: list[tuple[Job, int]] = []
        self._news: list[int] = []
        """Blocks that are whole when the step that is under way ends."""
        self._running: list[Job] = []
        """Everything admitted, in order of admission."""
        self._prefilling: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._cancelled: list[Job] = []
        """To be dropped when the step that is under way ends."""
        self._queued = 0
        """Prompt tokens to compute before a new prompt's."""

    # ---- what comes in ----

    def submit(self, job: Job, now: float) -> None:
        """A job arrives; it is looked at when the running step ends."""
        tokens = job.request.input_tokens + job.request.output_tokens
        assert tokens < self.pool.capacity, f"a request of {tokens} tokens never fits {self.pool.capacity}"
        self.touch(now)
        if not job.handed_over:
            job.uncached -= job.request.leading(self.pool.leading(job.request.blocks))
        self._queued += job.uncached
        self._waiting.append(job)
        self.wake(now)

    def wake(self, now: float) -> None:
        """Something has changed: plan at the next step boundary."""
        if self.due is None:
            self._clock = now
            self._plan()
        elif not self._chunks and self.due > now:
            steps = self._batch.steps_until(now - self._clock)
            if steps < self._steps:
                self._steps = steps
                self.due = self._clock + self._batch.seconds(steps)

    def advance(self) -> None:
        """The step or run of steps that was planned ends, and the next is planned."""
        assert self.due is not None
        now, steps, decoding = self.due, self._steps, self._batch.count
        self.touch(now)
        took_s = now - self._clock
        self.work_s += took_s - steps * self._time.base_s
        self._clock = now
        self._batch.run(steps, took_s)
        self.pool.reserve(steps * decoding)
        self._rates.observe(steps, decoding, sum(count for _, count in self._chunks), took_s)
        self._let_fall()
        self._drop_cancelled()
        if self._chunks:
            self._end_chunks(now)
        for job in self._batch.ended():
            self._finish(job, now)
        self._plan()

    def touch(self, now: float) -> None:
        """Before anything changes: what the worker told of itself at the last multiple of `load_every_s`."""
        if now >= self._report_due:
            every_s = self.settings.load_every_s
            self._report_due = (now // every_s + 1) * every_s
            self.load = self._figures(now)

    def release_kept(self, job: Job, now: float) -> None:
        """What a prefill job kept for its transfer may go."""
        self.touch(now)
        job.keeps = False
        release(self.pool, job)
        self.wake(now)

    def cancel(self, job: Job, now: float) -> None:
        """Nobody wants the rest: everything that the job has here is given back as soon as the step that is under way
        has ended. Of a job that has ended here there must be something left: what it keeps for its transfer."""
        if job.keeps:
            self.release_kept(job, now)
            return
        self.touch(now)
        job.cancelled = True
        self._cancelled.append(job)
        if self.due is None:
            self._drop_cancelled()
        self.wake(now)

    def run_at(self, pace: float, now: float) -> None:
        """From the next step on every step takes `pace` times as long as the settings say."""
        self._next_time = self.settings.step_time.paced(pace)
        self.wake(now)

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
            self._take_time(self._next_time)
        batch, preempted = self._batch, self.preemptions
        self._make_room_to_decode()
        self._chunks = []
        if self._prefilling or self._waiting:
            self._pick_chunks(admit=self.preemptions == preempted)
        if self._chunks:
            tokens = sum(count for _, count in self._chunks)
            reach = sum(attended(job.done, count) for job, count in self._chunks)
            self._steps = 1
            self.due = self._clock + self._time.mixed(batch.count, batch.context, tokens, reach)
        elif batch.count:
            self._steps = self._alike_steps()
            self.due = self._clock + batch.seconds(self._steps)
        else:
            self.due = None
        if self._noise is not None and self.due is not None:
            self.due = self._clock + (self.due - self._clock) * self._noise.factor()
        self._let_fall()

    def _take_time(self, step_time: StepTime) -> None:
        self._time = self._batch.time = step_time
        self._cost = PromptCost(0.0, step_time.token_s, step_time.context_s)

    def _alike_steps(self) -> int:
        """Steps until a sequence ends, or memory needs a look."""
        batch, pool = self._batch, self.pool
        steps = min(batch.steps_left(), self.settings.steps_max if self._noise is None else 1)
        if pool.free - pool.cached < steps * batch.count:
            steps = min(steps, pool.free // batch.count, batch.steps_until(self.settings.look_s))
        return max(1, steps)

    def _make_room_to_decode(self) -> None:
        """Preempt from the last admitted on until the next step's tokens fit."""
        while self._batch.count and self.pool.free < self._batch.count:
            self._preempt(next(job for job in reversed(self._running) if not job.loading))

    def _pick_chunks(self, *, admit: bool) -> None:
        """Prompts of the next step. In one that had to preempt nobody is admitted."""
        rows = self._batch.count
        allowance = open_allowance(self.settings, rows, self._batch.seconds(1) if rows else 0.0, 1.0, self._cost)
        for job in self._prefilling:
            if allowance.spent:
                return
            self._take_chunk(job, allowance)
        waiting = self._waiting
        while admit and waiting and not allowance.spent and len(self._running) < self.settings.max_sequences:
            job = waiting[0]
            if not self._admit(job):
                return
            waiting.popleft()
            if not job.running and not job.loading:
                self._take_chunk(job, allowance)

    def _take_chunk(self, job: Job, allowance: Allowance) -> None:
        """Others may use its blocks from this step on, as in engines that name blocks when they schedule them."""
        start, size = job.done, self.settings.engine_block_tokens
        end = chunk_end(start, job.total, allowance.offer(start).tokens, size)
        if end > start:
            allowance.take(start, end - start)
            self._chunks.append((job, end - start))
            self._news += publish(self.pool, job, end)

    # ---- admission ----

    def _admit(self, job: Job) -> bool:
        """Give the job its room, if there is as much beside the next step of those that decode."""
        here = take_room(self.pool, job, self._batch.count + 1)
        if here is None:
            return False
        self._running.append(job)
        self._queued -= job.uncached
        request = job.request
        if job.handed_over and not job.resumed:
            job.done = job.total
            job.told_s = request.first_s
            self._tell(publish(self.pool, job, job.total))
            self._batch.start(job, self._clock)
            return True
        if not job.resumed:
            request.begun_s = self._clock
            request.reused += min(request.leading(here), job.total - 1)
        job.done = job.known(here)
        job.uncached = job.total - job.done
        self._queued += job.uncached
        coming = self._bringing.begin(job, here, self._clock) if self.tiers or request.sources else None
        if coming is None:
            self._prefilling.append(job)
        else:
            self._await_blocks(job, here, *coming)
        return True

    def _await_blocks(self, job: Job, here: int, end: int, at: float) -> None:
        """The blocks from `here` to `end` come `at` some time; what is left is computed then."""
        request, done = job.request, job.known(end)
        job.loading = True
        self._queued -= done - job.done
        job.uncached -= done - job.done
        if not job.resumed:
            request.fetched += min(request.leading(end), job.total - 1) - min(request.leading(here), job.total - 1)

        def loaded(now: float) -> None:
            if job.cancelled:
                return
            self.touch(now)
            job.loading = False
            job.done = done
            self._tell(publish(self.pool, job, request.leading(end)))
            self._prefilling.append(job)
            self.wake(now)

        self._listener.wake_at(self.index, at, loaded)

    # ---- ends of steps ----

    def _end_chunks(self, now: float) -> None:
        chunks, self._chunks = self._chunks, []
        news, self._news = self._news, []
        for job, count in chunks:
            job.request.computed += count
            if job.cancelled:
                continue
            job.done += count
            job.uncached -= count
            self._queued -= count
        # In the order they had: with an ITL target a prompt may have got nothing while a later one got something.
        self._prefilling = [job for job in self._prefilling if job.done < job.total]
        self._tell(news)
        for job, _ in chunks:
            if job.done >= job.total and not job.cancelled:
                self._emit_first(job, now)

    def _emit_first(self, job: Job, now: float) -> None:
        """The first token after the prompt, or after what was computed again."""
        job.left -= 1
        job.request.emitted += 1
        if job.resumed:
            job.request.gaps.add(now - job.told_s)
        else:
            self._listener.first_token(job, now)
        job.told_s = now
        if job.left > 0 and not job.prefill_only:
            self._batch.start(job, now)
            return
        self._running.remove(job)
        job.keeps = job.prefill_only
        self._listener.finished(job, now)
        if not job.keeps:
            self._tell(release(self.pool, job))

    def _finish(self, job: Job, now: float) -> None:
        self._count_emitted(job)
        self._running.remove(job)
        self._listener.finished(job, now)
        self._tell(release(self.pool, job))

    def _count_emitted(self, job: Job) -> None:
        """It leaves the batch with as many tokens more as it took part in steps."""
        steps = self._batch.stop(job, self._clock)
        job.left -= steps
        job.private += steps
        job.request.emitted += steps

    def _preempt(self, job: Job) -> None:
        """Give its room to the others; it will be computed again, with what it has generated."""
        if job.running:
            self._count_emitted(job)
            job.total = job.request.input_tokens + job.request.emitted
            job.resumed = True
        else:
            self._prefilling.remove(job)
            self._queued -= job.uncached
        self._running.remove(job)
        give_way(self.pool, job)
        self.preemptions += 1
        job.request.preempted += 1
        job.uncached = job.total
        self._queued += job.uncached
        self._waiting.appendleft(job)

    def _drop_cancelled(self) -> None:
        for job in self._cancelled:
            self._drop(job)
        self._cancelled = []

    def _drop(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            self._queued -= job.uncached
            return
        if job.running:
            self._count_emitted(job)
        else:
            self._queued -= job.uncached
            if not job.loading:
                self._prefilling.remove(job)
        self._running.remove(job)
        release(self.pool, job)

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
        if batch.count and not self._chunks and self.due is not None and now > self._clock:
            steps = min(self._steps, batch.steps_until(now - self._clock))
            rates = rates.during(self._time, steps, batch.count, batch.context)
            free = max(0, free - steps * batch.count)
        size = self.settings.block_tokens
        return Load(
            running=batch.count + len(self._prefilling),
            waiting=len(self._waiting),
            queued_prompt_tokens=self._queued,
            blocks_free=free // size,
            blocks_cached=min(pool.cached, free) // size,
            blocks_exported=0,
            step_s=rates.step_s,
            prefill_tokens_per_s=rates.prefill,
            decode_tokens_per_s=rates.decode,
            preemptions=self.preemptions,
        )

    # ---- invariants ----

    def check(self, kept: Sequence[Job] = ()) -> None:
        """Assert that the books fit, with `kept` the jobs whose transfer is under way."""
        self.pool.check()
        self.tiers.check()
        batch, resident = self._batch, (*self._running, *kept)
        decoding = [job for job in self._running if job.running]
        assert batch.count == len(decoding), f"{batch.count} are said to decode, {len(decoding)} do"
        assert batch.context == sum(job.context(batch.step) for job in decoding), "contexts do not add up"
        grown = sum(batch.step - job.first_step for job in decoding)
        pinned = dict.fromkeys(name for job in resident for name in job.pinned)
        named = sum(self.pool.tokens_of(name) for name in pinned)
        private = grown + sum(job.private for job in resident)
        assert self.pool.used == private + named, f"{self.pool.used} used, {private} + {named} accounted for"
        undone = (*self._waiting, *(job for job in self._running if not job.running))
        queued = sum(job.uncached for job in undone)
        assert self._queued == queued, f"{self._queued} queued, {queued} counted"
