"""vLLM alone, in a process of its own per model: what Tandem's answers are compared with.

`python -m tools.models.reference` imports vLLM once and forks for every line it reads, so a model starts in seconds
and one that dies or hangs takes nobody with it.
"""

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.models.prompts import ANSWER_TOKENS, BLOCK_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS, edges, further, twins

BLOCKS: Final = 129
SEQUENCES: Final = 16
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class ReferenceRequest(msgspec.Struct, frozen=True):
    """A model to answer for, within `limit_s`; `arguments` are `Entry.arguments`."""

    model: str
    dtype: str
    limit_s: float
    arguments: dict[str, object]


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """One answer: tokens, the logarithm of each one's probability, and how much that of the next best is below."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]


class Answers(msgspec.Struct, frozen=True):
    """What vLLM says. `groups` are its kinds of KV cache; `problem` is why it says nothing."""

    block: int = 0
    groups: tuple[str, ...] = ()
    prefix_cache: bool = False
    vllm: str = ""
    edges: tuple[ReferenceAnswer, ...] = ()
    further: tuple[ReferenceAnswer, ...] = ()
    twins: tuple[ReferenceAnswer, ...] = ()
    model: str = ""
    problem: str = ""


class Reference:
    """The process, seen from outside. One model at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def answers(self, model: Path, dtype: str, limit_s: float, arguments: dict[str, object]) -> Answers:
        """Raises RuntimeError when the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(
                msgspec.json.encode(ReferenceRequest(str(model), dtype, limit_s, arguments)) + b"\n"
            )
            async with asyncio.timeout(limit_s + 120.0):
                # What was asked before, and given up, is answered first.
                while line := await self._process.stdout.readline():
                    found = msgspec.json.decode(line, type=Answers)
                    if found.model == str(model):
                        return found
        raise RuntimeError("the process of reference answers is gone")


@asynccontextmanager
async def reference(log: Path) -> AsyncIterator[Reference]:
    """The process runs meanwhile; what it and vLLM write goes to `log`."""
    with log.open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tools.models.reference",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=words, limit=1 << 24,
            env={**os.environ, **_ENVIRONMENT},
        )  # fmt: skip
        try:
            yield Reference(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    # Imported here, once for all models that are forked.
    import vllm

    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=ReferenceRequest)
        found = _forked(job)
        found = msgspec.structs.replace(found, model=job.model, vllm=vllm.__version__)
        answers.write(msgspec.json.encode(found) + b"\n")


def _forked(job: ReferenceRequest) -> Answers:
    """The answers of a child that is killed when it takes longer than it may."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            found = _answers(job)
        # vLLM raises whatever went wrong with a model: that is its row of the table.
        except BaseException as error:  # noqa: BLE001
            found = Answers(problem=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        with os.fdopen(writing, "wb") as out:
            out.write(msgspec.json.encode(found))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        ready, _, _ = select.select([told], [], [], job.limit_s)
        if not ready:
            os.kill(child, signal.SIGKILL)
        data = told.read()
    os.waitpid(child, 0)
    if not data:
        why = "died" if ready else f"said nothing within {job.limit_s:g} s"
        return Answers(problem=f"vLLM alone {why}")
    return msgspec.json.decode(data, type=Answers)


def _answers(job: ReferenceRequest) -> Answers:
    import vllm

    arguments: dict[str, Any] = job.arguments
    model = vllm.LLM(
        model=job.model, dtype=job.dtype, block_size=BLOCK_TOKENS, enforce_eager=True, max_model_len=CONTEXT_TOKENS,
        num_gpu_blocks_override=BLOCKS, max_num_batched_tokens=CHUNK_TOKENS, max_num_seqs=SEQUENCES,
        generation_config="vllm", disable_log_stats=True, **arguments,
    )  # fmt: skip
    engine: Any = model.llm_engine
    cache = engine.vllm_config.cache_config
    scheduler = engine.engine_core.engine_core.scheduler
    kinds = [type(group.kv_cache_spec).__name__ for group in scheduler.kv_cache_config.kv_cache_groups]
    block = int(cache.block_size)
    asked = (edges(block), further(block), [each.prompt for each in twins(block)])
    said = [tuple(_said(model, each) for each in prompts) for prompts in asked]
    return Answers(
        block,
        tuple(dict.fromkeys(kinds)),
        bool(cache.enable_prefix_caching),
        edges=said[0],
        further=said[1],
        twins=said[2],
    )


def _said(model: Any, prompt: tuple[int, ...]) -> ReferenceAnswer:
    import vllm

    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True, logprobs=2)
    (output,) = model.generate([{"prompt_token_ids": list(prompt)}], sampling, use_tqdm=False)
    tokens = tuple(output.outputs[0].token_ids)
    best = [sorted((each.logprob for each in row.values()), reverse=True) for row in output.outputs[0].logprobs]
    chosen = [row[token].logprob for row, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
    return ReferenceAnswer(tokens, tuple(chosen), tuple(row[0] - row[1] for row in best))


if __name__ == "__main__":
    _main()
