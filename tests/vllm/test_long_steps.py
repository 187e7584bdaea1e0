"""What takes longer than anybody expects is answered all the same, at full length and with the bounds of production;
and a worker of several ranks is left at once when one freezes."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tandem.core.deadlines import Deadlines
from tandem.engine.vllm.engine import VllmEngine
from tandem.process.system import SystemClock
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.freezing import engine_process, freeze
from tests.vllm.lending import SCHEDULER, Running, settings
from tests.vllm.none_left import none_left
from tests.vllm.serving import Serving, serving, token_ids
from tests.vllm.slowness import Slowness, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

STEP_S: Final = 15.0
PROMPT: Final = 1600
PROMPT_S: Final = 30.0
ROOT: Final = str(Path(__file__).parents[2])
ROOM: Final = {"TANDEM_VLLM__BLOCKS": "257", "TANDEM_STAGE__BLOCKS": "512"}
STREAMS: Final = 4


@pytest.mark.parametrize("holding", [False, True])
async def test_a_step_of_fifteen_seconds_is_never_ended(
    tmp_path: Path, record_property: Callable[[str, object], None], holding: bool
) -> None:
    """Nor is what it computes, nor what waits behind it; with `holding` it takes Python's lock as its first act."""
    steps = tmp_path / "steps"
    assert SCHEDULER.queue_s == Deadlines().queue_s < STEP_S
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(steps, os.environ.get("PYTHONPATH", ROOT)).items():
            patch.setenv(name, value)
        running = Running(VllmEngine(settings(64), SCHEDULER, SystemClock(), None))
        await running.start()
    driver = Driver(running)
    first, behind = (work(range(5 + n, 40 + n), GREEDY, max_tokens=1) for n in range(2))
    with none_left([psutil.Process(pid) for pid in running.engine.pids]):
        Slowness(per_step_s=STEP_S, holding=holding).write(steps)
        driver.submit(first)
        await asyncio.sleep(1.0)
        assert [len(answer) for answer in await driver.answers([behind])] == [1]
        assert len(driver.tokens(first.work_id)) == 1
        for each in (first, behind):
            ended = driver.ended[each.work_id]
            assert ended.prefilled is not None
            record_property("answered_after_s", ended.prefilled - ended.submitted)
        assert driver.ended[behind.work_id].submitted < driver.ended[first.work_id].submitted + STEP_S
        Slowness().write(steps)
        await running.stop()


async def test_a_prompt_of_thirty_seconds_and_one_behind_it_are_answered_at_the_first_attempt(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    steps = tmp_path / "steps"
    slow = environment(steps, os.environ.get("PYTHONPATH", ROOT))
    prompts = [[5 + (31 * base + 13 * number) % 1500 for number in range(PROMPT)] for base in (1, 2)]

    async def answer(place: Serving, prompt: list[int]) -> Any:
        async with place.client() as api:
            return await api.completions.create(
                model=place.model, prompt=prompt, max_tokens=4, temperature=0.0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip

    async with serving(["--prefill", "1", "--decode", "1"], {**ROOM, **slow}) as place:
        Slowness(per_token_s=PROMPT_S / PROMPT).write(steps)
        try:
            found = await asyncio.gather(*(answer(place, prompt) for prompt in prompts))
        finally:
            Slowness().write(steps)
        for each in found:
            story = await place.story(each.id)
            assert len(story.named("attempt")) == 1
            assert story.computed("prefill-0") == PROMPT
            assert story.computed("decode-0") == 0
            assert not (each.usage.prompt_tokens_details and each.usage.prompt_tokens_details.cached_tokens)
            record_property("answered_after_s", story.end_s - story.begin_s)
        right = [await answer(place, prompt) for prompt in prompts]
        assert [token_ids(each.choices[0]) for each in found] == [token_ids(each.choices[0]) for each in right]


async def test_workers_of_two_ranks_are_left_at_once_when_a_rank_or_the_engine_freezes(
    record_property: Callable[[str, object], None],
) -> None:
    def second_rank(worker: int | None) -> psutil.Process:
        family = psutil.Process(worker).children(recursive=True)
        (rank,) = [process for process in family if "Worker_TP1" in " ".join(process.cmdline())]
        return rank

    async with serving(["--prefill", "0", "--decode", "2", "--tensor", "2"]) as place:
        await freeze(place, "decode-0", second_rank, STREAMS, record_property)
        await freeze(place, "decode-1", engine_process, STREAMS, record_property)
