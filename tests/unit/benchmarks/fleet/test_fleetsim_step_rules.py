"""A worker of the fleet simulator gives prompts the chunks that Tandem's scheduler gives them, step by step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker import Worker
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request
from tandem.core.kv import RootIdentity, pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.engine.scheduler.step_model import PromptCost, StepLoad, StepTimeModel
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner

MODEL = SimulatedModel(
    blocks=8192, context_tokens=40_000, base_s=0.004, sequence_s=2e-4, token_s=4e-5, context_s=3e-9, read_s=1e-7
)
ROOT = RootIdentity("simulated", "u64", MODEL.block_tokens).name()
STEPS = 60

Asked = tuple[int, int, int]
"""(step before which it comes, prompt tokens, answer's tokens)."""
Chunks = list[tuple[int, int]]
"""Of one step: (tokens known before, tokens computed)."""


class KnownTimes(StepTimeModel):
    """The machine's own times, which a scheduler else has to learn."""

    def observe(self, load: StepLoad, seconds: float) -> None: ...

    def predict(self, load: StepLoad) -> float:
        return MODEL.step_s(load)

    def prompt_cost(self) -> PromptCost:
        return PromptCost(0.0, MODEL.token_s, MODEL.context_s)


def planned(bounds: SchedulerSettings, asked: Sequence[Asked]) -> list[Chunks]:
    """The chunks of the scheduler's steps."""
    scheduler, runner, told = Scheduler(MODEL.info(), bounds), SimulatedRunner(MODEL), list[Chunks]()
    scheduler._budget._model = KnownTimes(1.0)
    for at in range(STEPS):
        for number, (step_number, prompt, output) in enumerate(asked):
            if step_number == at:
                tokens = pack_tokens([300 + number] * prompt)
                branches, stopping = (ChildRequest(0, 1),), Stopping(output, ignore_eos=True)
                scheduler.submit(
                    EngineRequest(
                        work_id=number,
                        mode="local",
                        prompt=tokens,
                        branches=branches,
                        sampling=Sampling(),
                        stopping=stopping,
                        root=ROOT,
                        deadline=1e9,
                    ),
                    float(at),
                )
        step, _ = scheduler.plan(float(at))
        assert step is not None
        told.append([(row.start, row.count) for row in step.rows])
        scheduler.apply(runner.compute(step), float(at))
    return told


class Nobody:
    """Hears what a worker tells."""

    def first_token(self, job: WorkerRequest, now: float) -> None: ...

    def finished(self, job: WorkerRequest, now: float) -> None: ...

    def reserved(self, job: WorkerRequest, now: float) -> None: ...

    def withdrawn(self, job: WorkerRequest, now: float) -> None: ...

    def blocks(
        self, worker: int, tier: str, stored: tuple[int, ...], removed: tuple[int, ...], now: float
    ) -> None: ...

    def wake_at(self, worker: int, at: float, action: Callable[[float], None]) -> None:
        raise AssertionError("nothing is fetched")

    def offer(self, worker: int, request: Request, blocks: int, now: float) -> tuple[int, float]:
        return blocks, now

    def fetch(self, worker: int, request: Request, blocks: int, now: float) -> None:
        raise AssertionError("nothing is fetched")


def simulated(of_worker: WorkerSettings, asked: Sequence[Asked]) -> list[Chunks]:
    """The chunks of the fleet worker's steps."""
    worker, told = Worker(0, "unified", of_worker, Nobody()), list[Chunks]()
    for at in range(STEPS):
        now = worker.due or 0.0
        for number, (step_number, prompt, output) in enumerate(asked):
            if step_number == at:
                size = of_worker.block_tokens
                blocks = tuple(number << 20 | place for place in range(-(-prompt // size)))
                request = Request(number, now, blocks, size, prompt, output, output)
                worker.submit(WorkerRequest(request, prefill_only=False, handed_over=False), now)
        if at:
            worker.advance()
        chunks = worker._planned[0].chunks if worker._planned else []
        chunks = worker._planned[0].chunks if worker._planned else []
        told.append([(job.done, count) for job, count in chunks])
    return told


@example(
    target_s=0.006, max_batched_tokens=481, min_prefill_tokens=1, first=997,
    asked=[(1, 1, 29), (8, 1000, 1), (9, 151, 1), (9, 6, 1), (9, 2, 1)],
)  # fmt: skip
@given(
    target_s=st.floats(0.006, 0.08),
    max_batched_tokens=st.integers(64, 2048),
    min_prefill_tokens=st.integers(1, 64),
    first=st.integers(1, 6000),
    asked=st.lists(
        st.tuples(
            st.integers(1, STEPS - 1), st.one_of(st.integers(1, 300), st.integers(1, 9000)), st.integers(1, 80)
        ),
        max_size=14,
    ),
)
@settings(max_examples=40, deadline=None)
def test_planner_and_fleet_give_the_same_chunks(
    target_s: float, max_batched_tokens: int, min_prefill_tokens: int, first: int, asked: list[Asked]
) -> None:
    # The first decodes to the end: neither side is ever idle.
    everybody = [(0, first, 10 * STEPS), *asked]
    bounds = SchedulerSettings(
        max_batched_tokens=max_batched_tokens,
        min_prefill_tokens=min_prefill_tokens,
        itl_target_s=target_s,
        prefix_cache=False,
        queue_s=1e6,
    )
    of_worker = WorkerSettings(
        MODEL.blocks * MODEL.block_tokens,
        MODEL.block_tokens,
        StepTime.of(MODEL),
        max_batched_tokens,
        min_prefill_tokens=min_prefill_tokens,
        itl_target_s=target_s,
        engine_block_tokens=MODEL.block_tokens,
        steps_max=1,
    )
    assert simulated(of_worker, everybody) == planned(bounds, everybody)


def test_by_default_a_fleet_worker_has_no_target() -> None:
    plain = WorkerSettings(100_000, 16, StepTime.of(MODEL), steps_max=1)
    assert plain.itl_target_s is None
    asked = [(0, 10, 600), (1, 10_000, 1), (1, 9_000, 1)]
    chunks = partial(simulated, asked=asked)
    assert chunks(plain)[1:4] == [[(0, 8191)], [(8191, 1809), (0, 6382)], [(6382, 2618)]]
    held = chunks(replace(plain, itl_target_s=0.05))
    assert held[1][0][1] < 1200, "50 ms are some 1,000 tokens"
