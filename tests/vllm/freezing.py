"""Stops a process of one worker's engine while streams run there, and looks at what becomes of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psutil

from tandem.apps.chaos.drill.metrics import router_linked
from tests.vllm.none_left import none_left
from tests.vllm.serving import LOOK_S, Serving

WAIT_S: Final = 60.0
TOKENS: Final = 700
"""More than are generated before a frozen engine is noticed."""


async def freeze(
    place: Serving,
    name: str,
    process: Callable[[int | None], psutil.Process],
    count: int,
    record: Callable[[str, object], None],
) -> None:
    """The worker is left by its router and started again, its streams go on with the same text, and nothing of the
    frozen engine stays. `process` finds the one to stop among those that a worker has started."""
    await place.whole()
    prompts = [[3 + (37 * base + 11 * number) % 1500 for number in range(40)] for base in range(count)]
    right = await asyncio.gather(*(Stream().whole(place, prompt) for prompt in prompts))
    member = place.member(name)
    restarts, linked = member.restarts, await router_linked(place.platform.members)
    streams = [Stream() for _ in prompts]
    running = [asyncio.create_task(each.whole(place, prompt)) for each, prompt in zip(streams, prompts, strict=True)]
    await until(_sure(lambda: all(len(each.pieces) >= 5 for each in streams)))
    frozen = process(member.pid)

    async def left() -> bool:
        return await router_linked(place.platform.members) < linked

    with none_left([frozen]):
        frozen.suspend()
        out_s = await until(left)
        again_s = await until(_sure(lambda: member.restarts > restarts and member.state != "restarting"))
        record("out_of_placement_s", out_s)
        record("started_again_s", again_s)
        assert await asyncio.gather(*running) == right
        assert not frozen.is_running()
    await place.whole()
    await place.at_rest()


class Stream:
    """One streamed answer."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.finish = ""

    async def whole(self, place: Serving, prompt: list[int]) -> str:
        """All its text."""
        async with place.client() as api:
            answer = await api.completions.create(
                model=place.model, prompt=prompt, max_tokens=TOKENS, seed=7, temperature=1.0, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for chunk in answer:
                for choice in chunk.choices:
                    self.pieces.append(choice.text)
                    self.finish = choice.finish_reason or self.finish
        assert self.finish == "length"
        return "".join(self.pieces)


def _sure(holds: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def told() -> bool:
        return holds()

    return told


async def until(holds: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while time.monotonic() - began < WAIT_S:
        if await holds():
            return time.monotonic() - began
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"not within {WAIT_S:g} s")


def engine_process(worker: int | None) -> psutil.Process:
    """The one of a worker's processes that vLLM spawned."""
    titles = ((child, " ".join(child.cmdline())) for child in psutil.Process(worker).children())
    (found,) = [child for child, title in titles if "EngineCore" in title or "spawn_main" in title]
    return found
