"""The sequences of a worker that decode: all advance by one position per step."""

import heapq

from tandem.fleetsim.job import Job
from tandem.fleetsim.step_time import StepTime


class DecodeBatch:
    """`count` sequences, which attend to `context` positions together in the next step."""

    __slots__ = ("_ends", "_order", "context", "count", "step", "time")

    def __init__(self, step_time: StepTime) -> None:
        self.time = step_time
        self.count = 0
        self.context = 0
        self.step = 0
        """Steps done since the beginning."""
        self._ends: list[tuple[int, int, Job]] = []
        self._order = 0

    def start(self, job: Job) -> None:
        """It takes part from the next step on."""
        job.running = True
        job.first_step = self.step
        job.finish_step = self.step + job.left
        self.count += 1
        self.context += job.total
        self._order += 1
        heapq.heappush(self._ends, (job.finish_step, self._order, job))

    def stop(self, job: Job) -> int:
        """It takes part no longer; gives the steps it took part in."""
        steps = self.step - job.first_step
        job.running = False
        self.count -= 1
        self.context -= job.total + steps
        return steps

    def run(self, steps: int) -> None:
        """So many steps are done."""
        if self.count:
            self.step += steps
            self.context += steps * self.count

    def ended(self) -> list[Job]:
        """Those that have emitted their last token."""
        ended, ends = [], self._ends
        while ends and ends[0][0] <= self.step:
            _, _, job = heapq.heappop(ends)
            if job.running and job.finish_step <= self.step:
                ended.append(job)
        return ended

    def steps_left(self) -> int:
        """Until the first of them ends. There must be one."""
        ends = self._ends
        while not ends[0][2].running or ends[0][2].finish_step != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.step

    def seconds(self, steps: int) -> float:
        """Of the next so many steps with nothing else in them."""
        return self.time.decode(self.count, self.context, steps)

    def steps_until(self, seconds: float) -> int:
        """The least number of such steps, at least 1, that takes so long."""
        return self.time.steps_until(self.count, self.context, seconds)
