"""Step 4: prefill and decode apart on one card: the very tokens of one engine, and real processes that `tandem up`
starts, with a long prompt and a decode worker that is killed."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import tandem.models
from benchmarks.gpu.engine import random_model
from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target
from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.request_trace import ROOT, assemble_trace, number
from tandem.apps.cli.router_client import send_request, spans_of
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.up_options import parse
from tools.equality.models import demo
from tools.equality.requests import all_waves, few_waves
from tools.equality.runs import BLOCK_TOKENS, CHUNK_TOKENS, Setting, compare, truth

TITLE = "A pair on one card"
_ONE_B: dict[str, Any] = {
    "vocab_size": 1536,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}
_START_S = 120.0
_ANSWER_S = 120.0
_WORDS = "The keeper of the lighthouse counted the boats and wrote their names into a book. "


def measure(target: Target) -> Iterator[Measurement]:
    """Answers that differ, and what processes on one card need for a hand-over."""
    yield from asyncio.run(_equality(target))
    yield from asyncio.run(_processes(target))


async def _equality(target: Target) -> list[Measurement]:
    subject = demo()
    setting = Setting(subject, device=str(target.device))
    waves = (few_waves if target.tiny else all_waves)(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS)
    waves = waves[:3] if target.tiny else waves
    truths = await truth(setting, waves)
    found = []
    for scheme in ("tcp", "shm"):
        tally = await compare(setting, scheme, waves, truths)
        if tally.failures:
            raise AssertionError(f"{scheme}: {len(tally.failures)} differences, the first: {tally.failures[0]}")
        note = f"{tally.flips} near-ties excused"
        found.append(Measurement(f"prompts over {scheme} with the tokens of one engine", tally.prompts, "", note))
    return found


async def _processes(target: Target) -> list[Measurement]:
    model = "demo" if target.tiny else str(_one_b(target))
    device = [] if not target.on_gpu else ["--device", "cuda"]
    decode = "1" if target.tiny else "2"
    memory = ["--kv-memory", "64Mi" if target.tiny else "8Gi"]
    flags = ["--model", model, "--prefill", "1", "--decode", decode, "--port", "0", *device, *memory]
    began = time.monotonic()
    platform = Platform(
        parse(flags).service, dict(os.environ), ("--core.placement.prefer", "disaggregated"), drills=False
    )

    async def work(supervisor: Supervisor) -> list[Measurement]:
        await platform.ready(supervisor, _START_S)
        found = [Measurement("processes ready after", time.monotonic() - began, "s")]
        found += await _long_prompt(platform, target.sized(20_000, 250))
        if not target.tiny:
            found += await _killed(platform)
        return found

    try:
        return await platform.run(LineDisplay(lambda _: None), work)
    finally:
        platform.directory.remove()


async def _long_prompt(platform: Platform, words: int) -> list[Measurement]:
    prompt = (_WORDS * (1 + words // 15))[: 5 * words]
    began = time.monotonic()
    answer = await _complete(platform, prompt, 4)
    taken = time.monotonic() - began
    await asyncio.sleep(0.3)  # workers report their spans just after the answer
    story = assemble_trace(await spans_of(platform.target, answer["id"]))
    moved = max((number(span, "bytes") for span in story.named(ROOT) + story.spans), default=0)
    tokens = answer["usage"]["prompt_tokens"]
    return [
        Measurement("a long prompt, to its fourth token", taken, "s", f"{tokens} tokens"),
        Measurement("KV bytes of its hand-over", moved / 1e6, "MB"),
    ]


async def _killed(platform: Platform) -> list[Measurement]:
    """Streams of a decode worker that is killed go on at the other one, with the same tokens."""
    prompts = [_WORDS * (2 + index) for index in range(8)]
    before = [(await _complete(platform, prompt, 64))["choices"][0]["text"] for prompt in prompts]
    running = [asyncio.create_task(_complete(platform, prompt, 64)) for prompt in prompts]
    await asyncio.sleep(0.5)
    victim = next(member for member in platform.members if member.name == "decode-0")
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    after = [(await each)["choices"][0]["text"] for each in running]
    same = sum(one == other for one, other in zip(before, after, strict=True))
    return [
        Measurement("answers that went on after a decode worker was killed, the same", same, f"of {len(prompts)}")
    ]


async def _complete(platform: Platform, prompt: str, tokens: int) -> dict[str, Any]:
    body = {
        "model": platform.service.model_name, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    status, answer = await send_request(
        platform.target, "POST", "/v1/completions", msgspec.json.encode(body), _ANSWER_S
    )
    if status != 200:
        raise AssertionError(f"status {status}: {answer[:300].decode(errors='replace')}")
    found: dict[str, Any] = msgspec.json.decode(answer)
    return found


def _one_b(target: Target) -> Path:
    """A random 1B with the demo model's tokenizer."""
    folder = random_model(target, target.folder / "model-1b", _ONE_B)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(tandem.models.__file__).parent / "demo" / name, folder / name)
    return folder
