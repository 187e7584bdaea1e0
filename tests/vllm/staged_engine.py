"""A stage and the vLLM engine it belongs to, driven directly: what tests of the connector ask of both."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tandem.core.errors import TandemError
from tandem.core.kv import Handle, pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.digest import Digester, unbind
from tandem.engine.protocol import EngineRequest, FetchJob, FirstTokens, StepReport
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.process.system import SystemClock

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

ROOT = bytes(range(16))
LIMIT_S = 60.0
START_S = 240.0
DEMO = Path(__file__).parents[2] / "tandem" / "models" / "demo"

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
)


class StagedEngine:
    """One vLLM engine with its stage; works are numbered from 1."""

    def __init__(self, engine: "AsyncLLM", stage: Stage) -> None:
        self.engine = engine
        self.stage = stage
        self.fetches: dict[int, FetchJob] = {}
        self.params: dict[int, dict[str, object] | None] = {}
        self.refused: dict[int, TandemError] = {}
        self.lost: list[str] = []
        self.names: dict[bytes, None] = {}
        self.usage = 0.0
        self.preempted = 0
        self._heard = asyncio.Event()
        self._next = 0
        self._roots: dict[int, bytes] = {}
        self._requests = 0
        stage.on_admitted = self._admitted
        stage.on_refused = self._refused
        stage.on_report = self._report
        stage.on_lost = self._lost

    # -- what the stage says --

    def _admitted(self, work_id: int, params: dict[str, object] | None) -> None:
        self.params[work_id] = params
        self._heard.set()

    def _refused(self, work_id: int, error: TandemError) -> None:
        self.refused[work_id] = error
        self._heard.set()

    def _lost(self, sentence: str) -> None:
        self.lost.append(sentence)
        self._heard.set()

    def _report(self, report: StepReport) -> None:
        self.fetches.update({job.work_id: job for job in report.fetches})
        self.names.update(dict.fromkeys(report.kv.stored))
        for name in report.kv.removed:
            self.names.pop(name)
        self._heard.set()

    async def until(self, holds: Any) -> None:
        """Wait until something holds; looks again whenever the stage says something, and often."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._heard.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self._heard.wait()
                except TimeoutError:
                    continue

    # -- works --

    def open(
        self,
        prompt: Sequence[int],
        mode: str,
        *,
        within_s: float = LIMIT_S,
        save: bool = False,
        root: bytes = ROOT,
    ) -> int:
        self._next += 1
        self._roots[self._next] = root
        work = EngineRequest(
            work_id=self._next,
            mode=mode,
            prompt=pack_tokens(prompt),
            branches=(ChildRequest(0, 1),),
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(64, ignore_eos=True),
            root=root,
            deadline=SystemClock().now() + within_s,
            lease_id=f"lease-{self._next}" if mode == "prefill" else "",
            lease_s=30.0,
        )
        self.stage.open(work, save)
        return self._next

    async def generate(
        self, prompt: Sequence[int], max_tokens: int, work: int | None = None, *, salt: str | None = None
    ) -> tuple[int, ...]:
        """Greedy tokens; of a work of the stage with its parameters, once it has been admitted."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        extra: dict[str, Any] | None = None
        if work is not None:
            await self.until(lambda: work in self.params)
            params = self.params[work]
            extra = {"kv_transfer_params": params} if params is not None else None
            salt = salt or self._roots[work].hex()
        sampling = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, extra_args=extra
        )
        self._requests += 1
        tokens: tuple[int, ...] = ()
        given = TokensPrompt(prompt_token_ids=list(prompt), cache_salt=salt or f"own-{self._requests}")
        async for output in self.engine.generate(given, sampling, f"r{self._requests}"):
            tokens = tuple(output.outputs[0].token_ids)
        return tokens

    async def prefill(self, prompt: Sequence[int], *, root: bytes = ROOT) -> tuple[int, int]:
        """Compute a prompt for export; gives the work and its first token."""
        work = self.open(prompt, "prefill", root=root)
        (token,) = await self.generate(prompt, 1, work)
        self.stage.first_sampled(work, FirstTokens(((0, token, None),)))
        self.stage.close(work)
        return work, token

    async def settled(self) -> None:
        """Until nothing is held for any work: no slot, no lease, no block of the engine."""
        for lease in tuple(self.stage.books.leases._leases):
            self.stage.release(lease)
        await self.until(lambda: not self.stage.books.pool.used and not self.stage.books._works)
        self.stage.books.check()
        for _ in range(3):
            # The figures come with steps, the last of which are those of this request.
            await self.generate((5, 6, 7), 2)
        assert self.usage == 0.0, f"{self.usage} of the engine's blocks are still held"

    def ranks_cpu_s(self) -> float:
        """CPU time that the engine's ranks have used."""
        return sum(sum(psutil.Process(hello.pid).cpu_times()[:2]) for hello in self.stage._hellos.values())


class _Figures:
    """vLLM's own figures of every step."""

    def __init__(self) -> None:
        self.owner: StagedEngine | None = None

    def __call__(self, config: Any, index: int) -> "_Figures":
        return self

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: object, **__: object) -> None:
        if self.owner is not None and scheduler_stats is not None:
            self.owner.usage = scheduler_stats.kv_cache_usage
        if self.owner is not None and iteration_stats is not None:
            self.owner.preempted += iteration_stats.num_preempted_reqs

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def hand_over(
    source: StagedEngine, work: int, target: StagedEngine, received: int, indices: Sequence[int] | None = None
) -> None:
    """Copy the blocks of a prefill to where a decode wants them, checking digests; without those not in `indices`."""
    await target.until(lambda: received in target.fetches)
    digester, layout = Digester(target.stage.layout), target.stage.layout
    assert layout.incompatibility(source.stage.layout) is None
    lease = source.stage.books.leases._leases[f"lease-{work}"]
    names = list(lease.exports)
    job = target.fetches[received]
    for each in job.targets:
        if indices is not None and each.index not in indices:
            continue
        name = names[each.index]
        await source.until(lambda name=name: isinstance(source.stage.look(f"lease-{work}", name), Handle))
        handle = source.stage.look(f"lease-{work}", name)
        assert isinstance(handle, Handle)
        block = source.stage.memory.block(handle.slot)
        words = digester.content_words(block)
        assert unbind(handle.digests, source.stage.epoch, name, handle.generation) == words
        target.stage.memory.block(each.slot)[:] = block
        target.stage.landed(received, each.index, words)
    target.stage.fetch_ended(received, None if indices is None else "the rest is lost")


@asynccontextmanager
async def staged_engine(
    *, epoch: int = 3, blocks: int = 256, tensor: int = 1, pipeline: int = 1, model: Path = DEMO, **arguments: Any
) -> AsyncIterator[StagedEngine]:
    """A running engine in float32, eager, with 32-token blocks."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if tensor * pipeline == 1 else "1"
    stage = Stage(StageSettings(blocks=blocks), SystemClock(), epoch)
    await stage.start()
    figures = _Figures()
    options: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 2048,
        "max_num_batched_tokens": 256,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "kv_transfer_config": KVTransferConfig(**stage.transfer_config()),
        **arguments,
    }
    engine: AsyncLLM | None = None
    try:
        async with asyncio.timeout(START_S):
            engine = await asyncio.to_thread(_build, AsyncEngineArgs(**options), figures)
        await stage.ready(START_S, engine.model_config.max_model_len)
        figures.owner = StagedEngine(engine, stage)
        yield figures.owner
    finally:
        if engine is not None:
            engine.shutdown()
        await stage.stop()


def _build(arguments: Any, figures: _Figures) -> "AsyncLLM":
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(arguments, stat_loggers=[figures])
