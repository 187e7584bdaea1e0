"""Drills on a platform whose workers are vLLM: whatever is struck, clients get the right answers in bounded time, no
other worker dies, and no block stays in use or leased."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tandem.apps.chaos.drill.cells import Cell
from tandem.apps.chaos.drill.command import run_drills
from tandem.apps.chaos.drill.options import DrillOptions
from tandem.apps.chaos.drill.session import Bounds
from tests.vllm.freezing import engine_process, freeze
from tests.vllm.serving import Serving, serving, token_ids
from tests.vllm.slowness import Slowness, environment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

BOUNDS: Final = Bounds(streams=4, recover_s=180.0)
"""A killed worker loads vLLM and its model again, on cores that it shares."""
ROOM: Final = {"TANDEM_VLLM__BLOCKS": "513", "TANDEM_STAGE__BLOCKS": "512"}
"""For the longest prompts of a drill beside its load."""
PROMPT: Final = 1600
PROMPT_S: Final = 11.0
"""Longer than `deadlines.queue_s`."""
STREAMS: Final = 6
PAUSE_S: Final = 20.0
"""No client waits for that: the others go on with what it had."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that says how slow steps are."""
    return tmp_path_factory.mktemp("slow") / "steps"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(steps: Path) -> AsyncIterator[Serving]:
    slow = environment(steps, os.environ.get("PYTHONPATH", str(Path(__file__).parents[2])))
    async with serving(["--prefill", "1", "--decode", "2"], {**ROOM, **slow}, drills=True) as running:
        yield running


async def test_prompts_that_compute_for_longer_than_a_place_is_waited_for_are_answered_at_once(
    place: Serving, steps: Path
) -> None:
    """One computes for longer than `deadlines.queue_s`, the other waits behind it for as long."""
    prompts = [[5 + (31 * base + 13 * number) % 1500 for number in range(PROMPT)] for base in (1, 2)]

    async def answer(prompt: list[int]) -> Any:
        async with place.client() as api:
            return await api.completions.create(
                model=place.model, prompt=prompt, max_tokens=4, temperature=0.0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip

    Slowness(per_token_s=PROMPT_S / PROMPT).write(steps)
    began = time.monotonic()
    try:
        slow = await asyncio.gather(*(answer(prompt) for prompt in prompts))
    finally:
        Slowness().write(steps)
    assert time.monotonic() - began > 2 * PROMPT_S
    details = [each.usage.prompt_tokens_details for each in slow]
    assert not any(each.cached_tokens for each in details if each is not None)
    for each in slow:
        story = await place.story(each.id)
        assert len(story.named("attempt")) == 1
        assert all(span.end_s - span.start_s < 2 * PROMPT_S for span in story.named("queue"))
        assert story.computed("prefill-0") == PROMPT
    right = [await answer(prompt) for prompt in prompts]
    assert [token_ids(each.choices[0]) for each in slow] == [token_ids(each.choices[0]) for each in right]


@pytest.mark.parametrize(
    ("cell", "restarted"),
    [
        (Cell("corrupt-kv", "transfer"), ()),
        (Cell("kill-prefill", "transfer"), ("prefill",)),
        (Cell("kill-decode", "decode"), ("decode",)),
    ],
    ids=str,
)
async def test_a_struck_platform_answers_right_and_frees_everything(
    place: Serving, cell: Cell, restarted: tuple[str, ...]
) -> None:
    members = place.platform.members
    before = {member.name: member.restarts for member in members}
    options = DrillOptions((cell,), place.platform.url, "", 1, BOUNDS, None)
    report = await run_drills(options, print, "vllm")
    (result,) = report.rounds
    assert result.passed, result.problems
    assert result.requests > BOUNDS.streams
    assert result.longest_pause_s < PAUSE_S
    ended = [member.name for member in members if member.restarts > before[member.name]]
    assert ended == ([result.victim] if restarted else [])
    assert result.victim.startswith(restarted or "decode")
    await place.at_rest()


async def test_a_frozen_engine_is_left_at_once_and_its_streams_go_on_elsewhere(
    place: Serving, record_property: Callable[[str, object], None]
) -> None:
    """The engine process of a decode worker is stopped, not the worker itself, which has to notice."""
    await freeze(place, "decode-0", engine_process, STREAMS, record_property)
