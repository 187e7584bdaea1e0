"""Scheduler and torch together: concurrent, chunked, preempted, prefix-sharing works give the reference's tokens."""

import asyncio
import time
from pathlib import Path

import pytest

from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import EngineRequest, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings
from tandem.process.system import SystemClock
from tests.worlds.torch_drive import prompt, reference_greedy, save_model


class Collector:
    """Tokens per work, and an event when so many have ended."""

    def __init__(self, works: int) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.preemptions = 0
        self.reused = 0
        self._left = works
        self.done = asyncio.Event()

    def __call__(self, report: StepReport) -> None:
        assert not report.failed
        for emitted in report.emitted:
            self.tokens.setdefault(emitted.work_id, []).append(emitted.token)
        for ended in report.ended:
            self.preemptions += ended.stats.preemptions
            self.reused += ended.stats.tokens_reused
        self._left -= len(report.ended)
        if self._left == 0:
            self.done.set()


def work(work_id: int, tokens: list[int], count: int) -> EngineRequest:
    return EngineRequest(
        work_id=work_id,
        mode="local",
        prompt=pack_tokens(tokens),
        branches=(ChildRequest(sequence=0, seed=work_id),),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=count, ignore_eos=True),
        root=b"root",
        deadline=time.monotonic() + 60,
    )


@pytest.mark.parametrize(
    ("blocks", "settings"),
    [
        (96, SchedulerSettings()),
        (96, SchedulerSettings(max_batched_tokens=24, min_prefill_tokens=8)),
        (26, SchedulerSettings(max_batched_tokens=64, watermark=0.0)),
    ],
    ids=["roomy", "chunked", "preempting"],
)
async def test_concurrent_works(blocks: int, settings: SchedulerSettings, tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    shared = prompt(19, seed=99)
    prompts = [prompt(length, seed=length) for length in (1, 8, 33, 61)]
    prompts += [shared + prompt(5, seed=1), shared + prompt(9, seed=2), shared, shared[:16]]
    chosen = TorchSettings(model=str(tmp_path), mode="thread", blocks=blocks, block_tokens=8, threads=1)
    engine = LocalEngine(build_runner(chosen), settings, SystemClock(), epoch=1)
    await engine.start()
    collector = Collector(len(prompts))
    running = asyncio.create_task(engine.run(collector))
    try:
        for index, tokens in enumerate(prompts):
            engine.submit(work(index, tokens, 30))
        await asyncio.wait_for(collector.done.wait(), 60)
    finally:
        await engine.stop()
        await running
    for index, tokens in enumerate(prompts):
        assert collector.tokens[index] == reference_greedy(model, tokens, 30)
    assert collector.reused > 0
    assert (collector.preemptions > 0) == (blocks == 26)
