"""The sequences of a worker that decode: all advance by one position per step."""

import heapq

from benchmarks.fleet.gaps import Gaps, bin_of
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_request import WorkerRequest
from tandem.engine.scheduler.step_rules import blocks_for


class DecodeBatch:
    """`count` sequences, which attend to `context` positions together in the next step."""

    __slots__ = (
        "_ends",
        "_late",
        "_order",
        "_phases",
        "_size",
        "_steps",
        "context",
        "count",
        "distinct",
        "step",
        "time",
    )

    def __init__(self, step_time: StepTime, block_tokens: int = 1) -> None:
        self.time = step_time
        self.count = 0
        self.context = 0
        self.distinct = 0
        """How many of those positions there are when each is counted once, as far as is known; the owner keeps it."""
        self.step = 0
        """Steps done since the beginning."""
        self._ends: list[tuple[int, int, WorkerRequest]] = []
        self._order = 0
        self._size = block_tokens
        self._phases = [0] * block_tokens
        """By place in a block, how many of them stood there at step 0: a new block is begun at the edge."""
        self._steps = Gaps()
        """All steps done."""
        self._late: list[tuple[WorkerRequest, float]] = []
        """Those that take part in the next step for the first time, and for how long they have had no token."""

    def start(self, job: WorkerRequest, now: float) -> None:
        """It takes part from the next step on, which begins now."""
        job.running = True
        if now > job.told_s:
            self._late.append((job, now - job.told_s))
        else:
            job.gaps_before = self._steps.bins.copy()
        job.first_step = self.step
        job.finish_step = self.step + job.left
        self.count += 1
        self.context += job.total
        self._phases[(job.total - self.step) % self._size] += 1
        self._order += 1
        heapq.heappush(self._ends, (job.finish_step, self._order, job))

    def stop(self, job: WorkerRequest, now: float) -> int:
        """It takes part no longer, its last step having ended now; gives the steps it took part in."""
        steps = self.step - job.first_step
        if steps:
            job.request.gaps.add_since(self._steps.bins, job.gaps_before)
            job.told_s = now
        elif self._late:
            self._late = [late for late in self._late if late[0] is not job]
        job.running = False
        self.count -= 1
        self.context -= job.total + steps
        size = self._size
        self._phases[(job.total - job.first_step) % size] -= 1
        job.private += size * (blocks_for(job.total + steps, size) - blocks_for(job.total, size))
        return steps

    def growth_of(self, later: int) -> int:
        """Tokens, in whole blocks, that the step after so many others needs beyond what its sequences have then."""
        size = self._size
        return size * self._phases[-(self.step + later) % size]

    def growth(self, steps: int) -> int:
        """The same of the next so many steps together."""
        size = self._size
        if size == 1:
            return steps * self.count
        if steps == 1:
            return size * self._phases[-self.step % size]
        cycles, rest = divmod(steps, size)
        # From this place on downwards, and around.
        last = -self.step % size + 1
        edges = sum(self._phases[max(0, last - rest) : last])
        if rest > last:
            edges += sum(self._phases[size + last - rest :])
        return size * (cycles * self.count + edges)

    def steps_within(self, tokens: int) -> int:
        """The most steps that need no more than so many tokens. There must be a sequence."""
        size = self._size
        steps = tokens // (size * self.count) * size
        while self.growth(steps + 1) <= tokens:
            steps += 1
        return steps

    def run(self, steps: int, took_s: float) -> None:
        """So many steps are done, which took so long together."""
        if self.count:
            self._note_gaps(steps, took_s)
            self.step += steps
            self.context += steps * self.count
            self.distinct += steps * self.count

    def _note_gaps(self, steps: int, took_s: float) -> None:
        """Times of steps in a row grow evenly."""
        half_s = self.time.read_s * self.count * (steps - 1) / 2
        first_s = took_s / steps - half_s
        if self._late:
            number = bin_of(first_s)
            for job, waited_s in self._late:
                job.request.gaps.add(waited_s + first_s)
                # Their first step is a part of that gap.
                job.gaps_before = before = self._steps.bins.copy()
                before[number] = before.get(number, 0) + 1
            self._late = []
        self._steps.add_steps(first_s, first_s + 2 * half_s, steps)

    def ended(self) -> list[WorkerRequest]:
        """Those that have emitted their last token."""
        ended, ends = [], self._ends
        while ends and ends[0][0] <= self.step:
            _, _, job = heapq.heappop(ends)
            if job.running and job.finish_step <= self.step:
                ended.append(job)
        return ended

    @property
    def reads(self) -> float:
        """Positions to read in the next step, those that several sequences share counted as `reread` says."""
        return self.context - (1.0 - self.time.reread) * max(0, self.context - self.distinct)

    def steps_left(self) -> int:
        """Until the first of them ends. There must be one."""
        ends = self._ends
        while not ends[0][2].running or ends[0][2].finish_step != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.step

    def seconds(self, steps: int) -> float:
        """Of the next so many steps with nothing else in them."""
        return self.time.decode(self.count, self.reads, steps)

    def steps_until(self, seconds: float) -> int:
        """The least number of such steps, at least 1, that takes so long."""
        return self.time.steps_until(self.count, self.reads, seconds)
