"""Decoding speed of the embedded engine beside the reference implementation's `generate`, in one process tree.

Both load the same model with the same dtype and number of torch threads and generate greedily from the same
prompts. Contenders alternate within rounds; a rate is tokens per second while the whole batch is decoding (prompts
are excluded on both sides, the prefix cache is off). Exits non-zero when a ratio is not met; the last line says so.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.streamers import BaseStreamer

from benchmarks.rounds import ROUNDS, Check, alternate, median_ratio, verdict
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import EngineRequest, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings
from tandem.model.directory import open_model
from tandem.process.system import SystemClock

Prompts = Sequence[Sequence[int]]
BATCH = 16


class Timeline:
    """When each token of each sequence came."""

    def __init__(self, sequences: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(sequences)]

    def rate(self) -> float:
        """Tokens per second between the last sequence's first token and the first sequence's last."""
        start = max(times[0] for times in self.times)
        end = min(times[-1] for times in self.times)
        count = sum(start < moment <= end for times in self.times for moment in times)
        return count / (end - start)


class Steps(BaseStreamer):
    """Notes the time of every step of `generate`; its first call is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to finish."""


class TransformersReference:
    """`transformers` on the same directory. `compiled` keeps KV in a static cache and compiles the decode step, its
    own fastest way: with CUDA graphs on a GPU; on a CPU traced alone, which needs no compiler and is no faster."""

    def __init__(self, model: str, dtype: str, threads: int, device: str = "cpu", *, compiled: bool = False) -> None:
        torch.set_num_threads(threads)
        self._device = device
        self._how: dict[str, Any] = {}
        if compiled:
            on_gpu = torch.device(device).type != "cpu"
            options: Any = {} if on_gpu else {"backend": "eager", "mode": None}
            how: Any = CompileConfig(**options)
            how._compile_all_devices = True
            self._how = {"cache_implementation": "static", "compile_config": how}
        path = open_model(model).path
        automatic: Any = transformers.AutoModelForCausalLM
        self._model = automatic.from_pretrained(path, dtype=getattr(torch, dtype)).eval().to(device)

    def rate(self, prompts: Prompts, count: int) -> float:
        """Tokens per second of one `generate` call, from its first token on."""
        steps = Steps()
        tokens = torch.tensor(prompts, device=self._device)
        self._model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            streamer=steps,
            **self._how,
        )
        return len(prompts) * (count - 1) / (steps.times[-1] - steps.times[1])


class Ours:
    """The engine as a worker runs it: scheduler here, torch in its own process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._next = 0
        self._timeline = Timeline(0)
        self._left = 0
        self._done = asyncio.Event()

    def report(self, report: StepReport) -> None:
        """The engine's listener."""
        now = time.perf_counter()
        for emitted in report.emitted:
            self._timeline.times[emitted.work_id - self._next].append(now)
        self._left -= len(report.ended)
        if self._left == 0:
            self._done.set()

    async def rate(self, prompts: Prompts, count: int) -> float:
        """Tokens per second of works submitted together."""
        self._timeline, self._left = Timeline(len(prompts)), len(prompts)
        self._done.clear()
        for index, prompt in enumerate(prompts):
            self._engine.submit(_work(self._next + index, prompt, count))
        await asyncio.wait_for(self._done.wait(), 120)
        self._next += len(prompts)
        return self._timeline.rate()


def _work(work_id: int, prompt: Sequence[int], count: int) -> EngineRequest:
    return EngineRequest(
        work_id=work_id,
        mode="local",
        prompt=pack_tokens(prompt),
        branches=(ChildRequest(sequence=0, seed=1),),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=count, ignore_eos=True),
        root=b"benchmark-engine",
        deadline=time.monotonic() + 600,
    )


async def measure(arguments: argparse.Namespace, dtype: str) -> dict[str, list[float]]:
    """Tokens per second of each contender in each round, all on the same prompts."""
    reference = TransformersReference(arguments.model, dtype, arguments.threads, arguments.device)
    settings = TorchSettings(model=arguments.model, dtype=dtype, threads=arguments.threads, device=arguments.device)
    engine = LocalEngine(build_runner(settings), SchedulerSettings(prefix_cache=False), SystemClock(), epoch=1)
    info = await engine.start()
    ours = Ours(engine)
    running = asyncio.create_task(engine.run(ours.report))
    generator = torch.Generator().manual_seed(1)
    many: Prompts = torch.randint(3, info.vocab_size, (BATCH, arguments.prompt), generator=generator).tolist()

    async def theirs(prompts: Prompts) -> float:
        return reference.rate(prompts, arguments.tokens)

    try:
        return await alternate(
            {
                "engine 1": lambda: ours.rate(many[:1], arguments.tokens),
                "transformers 1": lambda: theirs(many[:1]),
                "engine 16": lambda: ours.rate(many, arguments.tokens),
                "transformers 16": lambda: theirs(many),
            },
            arguments.rounds,
        )
    finally:
        await engine.stop()
        await running


def judge(dtype: str, rates: dict[str, list[float]]) -> list[Check]:
    """Print the medians; the ratios against their limits."""
    for name, figures in rates.items():
        print(f"{dtype} {name} at a time: {statistics.median(figures):.0f} tokens/s")
    pairs = (
        ("batch 1 against transformers", "engine 1", "transformers 1", 1.0),
        ("batch 16 against own batch 1", "engine 16", "engine 1", 4.0),
        ("batch 16 against transformers", "engine 16", "transformers 16", 1.0),
    )
    return [
        Check(f"{dtype} {name}", median_ratio(rates[one], rates[other]), limit, at_least=True)
        for name, one, other, limit in pairs
    ]


def main() -> int:
    """Measure each dtype and give the verdict."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--prompt", type=int, default=192)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=max(1, cores - 1))
    parser.add_argument("--device", default="cpu", help="where both compute: cpu, cuda or cuda:N")
    arguments = parser.parse_args()
    logs: Any = transformers.utils.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    where = f"{arguments.device}, {arguments.threads} torch threads of {cores} cores"
    print(f"model {arguments.model} on {where}, {arguments.rounds} rounds")
    checks: list[Check] = []
    for dtype in arguments.dtype or ("float32", "bfloat16"):
        checks += judge(dtype, asyncio.run(measure(arguments, dtype)))
    return verdict(checks, "the embedded engine's decoding speed")


if __name__ == "__main__":
    sys.exit(main())
