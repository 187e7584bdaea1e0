"""The prompt tokens of a worker's steps: one step by the scheduler's rules, and those like it that follow.

With an ITL target a long prompt takes dozens of steps in which nobody comes and nobody goes. They are planned in one
go; whoever looks at the worker in between, or changes it, first has those carried out that have ended.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fleet.block_tables import adopt
from benchmarks.fleet.decode_batch import DecodeBatch
from benchmarks.fleet.pool import Pool
from benchmarks.fleet.step_time import StepTime, attended
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import WorkerSettings
from tandem.engine.scheduler.step_model import PromptCost
from tandem.engine.scheduler.step_rules import Allowance, Order, chunk_end, open_allowance

_STEPS_MAX: Final = 16
"""As many are planned at once: what comes before they have ended is likely to change the later ones."""


@dataclass(slots=True)
class Step:
    """Chunks (job, tokens) of a step that ends at `end_s`, and how many tokens they have together."""

    end_s: float
    chunks: list[tuple[WorkerRequest, int]]
    tokens: int


class Prompts:
    """Admitted jobs with prompt tokens to compute, the most urgent first."""

    def __init__(self, settings: WorkerSettings, pool: Pool, batch: DecodeBatch) -> None:
        self._settings = settings
        self._pool = pool
        self._batch = batch
        self._jobs: list[WorkerRequest] = []
        self._cost = PromptCost(0.0, 0.0, 0.0)
        self._allowance = open_allowance(settings, 0, 0.0, 1.0, self._cost)
        self._chunks: list[tuple[WorkerRequest, int]] = []
        self._claims: set[int] = set()
        """Blocks that chunks of the step belong to."""
        self._shared = False
        """Somebody waits a step for one of them."""
        self.adopted = 0
        """Tokens found since they were looked for last, until somebody takes them off what is queued."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[WorkerRequest]:
        return iter(self._jobs)

    @property
    def budget_left(self) -> bool:
        """Whether the step that is planned has tokens left."""
        return not self._allowance.spent

    def add(self, job: WorkerRequest) -> None:
        insort(self._jobs, job, key=_order)

    def remove(self, job: WorkerRequest) -> None:
        self._jobs.remove(job)

    def drop_known(self) -> None:
        """Those of which nothing is left to compute are no longer among them."""
        self._jobs = [job for job in self._jobs if job.done < job.total]

    def tune(self, itl_target_s: float | None) -> None:
        """Steps that are planned from now on are held to that; None: only by `max_batched_tokens`."""
        self._settings = replace(self._settings, itl_target_s=itl_target_s)

    def open(self, step_time: StepTime) -> None:
        """Plan a step: the prompts that are here get their chunks."""
        batch = self._batch
        rows = batch.count
        self._cost = PromptCost(0.0, step_time.token_s, step_time.context_s)
        running_s = batch.seconds(1) if rows else 0.0
        self._allowance = open_allowance(self._settings, rows, running_s, self._settings.margin, self._cost)
        self._chunks, self._claims, self._shared = [], set(), False
        for job in self._jobs:
            if self._allowance.exhausted:
                return
            self.take_chunk(job)

    def take_chunk(self, job: WorkerRequest) -> None:
        """Of the step that is planned, for one that has just been admitted too."""
        if found := adopt(self._pool, job):
            self.adopted += found
            job.uncached -= found
            if not job.resumed:
                job.request.reused += found
        request, start, allowance = job.request, job.done, self._allowance
        size, blocks = request.block_tokens, request.blocks
        if job.at_edge and job.published < len(blocks) and blocks[job.published] in self._claims:
            self._shared = True
            return
        end = chunk_end(start, job.total, allowance.tokens_for(start), self._settings.engine_block_tokens)
        if end > start:
            allowance.take(start, end - start)
            self._chunks.append((job, end - start))
            self._claims.update(blocks[start // size : -(-end // size)])

    def steps(self, begin_s: float, step_time: StepTime, waiting: bool, steps_max: int) -> list[Step]:
        """The step that was planned, which begins now, and at most so many in all that are like it: nobody can be
        admitted, is preempted, or is over before the last. Nothing when it has no chunks. `waiting`: there are jobs
        without a place, none of which may enter for want of room or, if the budget is spent, of budget."""
        if not self._chunks:
            return []
        batch = self._batch
        chunks, rows, context = self._chunks, batch.count, batch.reads
        tokens, reach = 0, 0.0
        for job, count in chunks:
            tokens += count
            reach += attended(job.done, count)
        end_s = begin_s + step_time.mixed(rows, context, tokens, reach)
        steps = [Step(end_s, chunks, tokens)]
        if self._shared or (waiting and self._allowance.spent):
            return steps
        steps_max = min(steps_max, _STEPS_MAX, batch.steps_left() if rows else _STEPS_MAX)
        done = {job: job.done + count for job, count in chunks}
        over = any(known == job.total for job, known in done.items())
        free = self._pool.free - batch.growth_of(0)
        while not over and len(steps) < steps_max:
            free -= batch.growth_of(len(steps))
            if free < 0:
                break
            context += rows
            running_s = step_time.decode(rows, context, 1) if rows else 0.0
            allowance = open_allowance(self._settings, rows, running_s, self._settings.margin, self._cost)
            found = self._alike(done, allowance)
            if not found or (waiting and allowance.spent):
                break
            tokens, reach = 0, 0.0
            for job, count in found:
                start = done.get(job, job.done)
                tokens += count
                reach += attended(start, count)
                done[job] = start + count
                over = over or start + count == job.total
            end_s += step_time.mixed(rows, context, tokens, reach)
            steps.append(Step(end_s, found, tokens))
        return steps

    def _alike(self, done: dict[WorkerRequest, int], allowance: Allowance) -> list[tuple[WorkerRequest, int]]:
        """Chunks of a later step; nothing where one of the prompts comes upon a block of another's."""
        chunks: list[tuple[WorkerRequest, int]] = []
        engine_block, claims = self._settings.engine_block_tokens, self._claims
        several = len(self._jobs) > 1
        for job in self._jobs:
            start, request = done.get(job, job.done), job.request
            size, blocks = request.block_tokens, request.blocks
            # Where the own block of another begins: the next block, or the one that an engine's block is left of.
            edge = -(-start // size)
            if edge * size - start < engine_block and edge < len(blocks):
                name = blocks[edge]
                if name in claims or self._pool.holds(name):
                    return []
            tokens = allowance.tokens_for(start)
            if tokens <= 0:
                if allowance.exhausted:
                    break
                continue
            end = chunk_end(start, job.total, tokens, engine_block)
            allowance.take(start, end - start)
            chunks.append((job, end - start))
            if several:
                claims.update(blocks[edge : -(-end // size)])
        return chunks


def _order(job: WorkerRequest) -> Order:
    return job.order
