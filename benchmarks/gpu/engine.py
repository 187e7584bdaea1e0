"""Step 3: the embedded engine on a card beside `transformers`, and what one of its steps is made of.

The model is random: it is made and written on the machine itself.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.engine import Ours, TransformersReference
from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling
from tandem.core.shape_reading import shape_of
from tandem.engine.local import LocalEngine
from tandem.engine.scheduler.plan import Draw, Row, Step
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.prepare import prepare
from tandem.engine.torch.sampling import sample
from tandem.engine.torch.settings import TorchSettings
from tandem.process.system import SystemClock

TITLE = "The embedded engine"
_LARGE: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 16384,
}
_TINY: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def measure(target: Target) -> Iterator[Measurement]:
    """Tokens per second while a whole batch decodes, against `transformers` and the bytes that must be read."""
    folder = random_model(target, target.folder / "model-8b", _TINY if target.tiny else _LARGE)
    dtype = "float32" if target.tiny else "bfloat16"
    batches = (1, 2) if target.tiny else (1, 16, 64)
    contexts = (24,) if target.tiny else (128, 2048, 8192)
    count = target.sized(48, 6)
    sizes = [(batch, context) for batch in batches for context in contexts if batch * context <= 131_072]
    rates = asyncio.run(_ours(target, folder, dtype, sizes, count))
    yield from (Measurement(f"Tandem, batch {batch}, context {context}", rates[batch, context], "tokens/s")
                for batch, context in sizes)  # fmt: skip
    reference = TransformersReference(str(folder), dtype, 1, str(target.device))
    for batch, context in sizes:
        if batch * context <= target.sized(32_768, 64):
            rate = reference.rate(_prompts(batch, context, target), count)
            yield Measurement(
                f"transformers, batch {batch}, context {context}", rate, "tokens/s", "SDPA, dynamic cache"
            )
    del reference
    if target.on_gpu:
        torch.cuda.empty_cache()
    yield from _compiled(target, folder, dtype, count)
    yield from _step(target, folder, dtype)
    yield _sampling(target)


def _compiled(target: Target, folder: Path, dtype: str, count: int) -> Iterator[Measurement]:
    """`transformers` at its fastest, at two sizes: each is compiled anew."""
    reference = TransformersReference(str(folder), dtype, 1, str(target.device), compiled=True)
    for batch, context in ((1, 24),) if target.tiny else ((1, 128), (16, 128)):
        prompts = _prompts(batch, context, target)
        reference.rate(prompts, count)
        name = f"transformers compiled, batch {batch}, context {context}"
        yield Measurement(name, reference.rate(prompts, count), "tokens/s", "SDPA, static cache, torch.compile")
    del reference
    if target.on_gpu:
        torch.cuda.empty_cache()


def random_model(target: Target, folder: Path, sizes: dict[str, Any]) -> Path:
    """A Llama nobody has trained, made on the device and written as safetensors."""
    if not folder.exists():
        torch.manual_seed(1)
        config = transformers.LlamaConfig(**sizes, initializer_range=0.02 if not target.tiny else 0.3)
        with torch.device(target.device):
            automatic: Any = transformers.AutoModelForCausalLM
            dtype = torch.float32 if target.tiny else torch.bfloat16
            model = automatic.from_config(config, dtype=dtype)
        model.save_pretrained(folder)
        del model
        if target.on_gpu:
            torch.cuda.empty_cache()
    return folder


def _prompts(batch: int, context: int, target: Target) -> list[list[int]]:
    generator = torch.Generator().manual_seed(batch * context)
    high = 150 if target.tiny else 120_000
    found: list[list[int]] = torch.randint(3, high, (batch, context), generator=generator).tolist()
    return found


async def _ours(
    target: Target, folder: Path, dtype: str, sizes: Sequence[tuple[int, int]], count: int
) -> dict[tuple[int, int], float]:
    memory = target.sized(20 << 30, 8 << 20)
    settings = TorchSettings(
        model=str(folder), dtype=dtype, device=str(target.device), kv_memory_bytes=memory, threads=1,
        mode="thread" if target.tiny else "process",
    )  # fmt: skip
    scheduler = SchedulerSettings(prefix_cache=False, max_batched_tokens=target.sized(8192, 2048))
    engine = LocalEngine(build_runner(settings), scheduler, SystemClock(), epoch=1)
    await engine.start()
    ours = Ours(engine)
    running = asyncio.create_task(engine.run(ours.report))
    try:
        return {
            (batch, context): await ours.rate(_prompts(batch, context, target), count) for batch, context in sizes
        }
    finally:
        await engine.stop()
        await running


def _step(target: Target, folder: Path, dtype: str) -> Iterator[Measurement]:
    """One decode step at a time, by hand: operations launched, and how much of it the GPU is busy."""
    settings = TorchSettings(
        str(folder), dtype=dtype, device=str(target.device), blocks=64, block_tokens=16, threads=1
    )
    ready = prepare(settings)
    try:
        computer = ModelExecutor(ready.spec, ready.memory)
        rows = tuple(_row(1 + 2 * index) for index in range(target.sized(16, 2)))
        computer.execute(Step(0, rows))
        steps = target.sized(20, 3)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if target.on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            began = time.perf_counter()
            for number in range(steps):
                computer.execute(Step(1 + number, rows))
            target.wait()
            taken = (time.perf_counter() - began) / steps
        events = profile.key_averages()
        dispatched = sum(each.count for each in events if each.key.startswith("aten::"))
        yield Measurement(f"a step of {len(rows)} sequences", taken * 1e3, "ms", "under the profiler")
        yield Measurement("operators dispatched in a step", dispatched / steps, "")
        if target.on_gpu:
            kernels = [each for each in events if each.device_type.name == "CUDA"]
            yield Measurement(
                "kernels and copies on the GPU in a step", sum(each.count for each in kernels) / steps, ""
            )
            busy = sum(each.self_device_time_total for each in kernels) / steps / 1e6
            yield Measurement("GPU busy", 100 * busy / taken, "%")
        read = shape_of(_config(folder)).weight_bytes(dtype)
        yield Measurement("weights read in a step", read / 1e9, "GB", "with bandwidth: the floor of a step")
    finally:
        ready.memory.close()


def _row(slot: int) -> Row:
    draw = Draw(slot, 0, 7, 0, Sampling(temperature=0.0))
    return Row(pack_tokens([5]), 16, pack_tokens((slot, slot + 1)), draws=(draw,))


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def _sampling(target: Target) -> Measurement:
    rows, words = target.sized(256, 8), target.sized(128_256, 160)
    draws = [Draw(row, 0, row, 0, Sampling(temperature=1.0, top_p=0.9)) for row in range(rows)]
    logits = torch.randn(rows, words, device=target.device)
    taken = target.seconds(lambda: sample(logits.clone(), draws))
    return Measurement(f"sampling {rows} rows of {words}", taken * 1e3, "ms", "temperature 1, top-p 0.9")
