"""Drills on a platform whose workers are vLLM: whatever is struck, clients get the right answers in bounded time, no
other worker dies, and no block stays in use or leased."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tandem.cli.drill.cells import Cell
from tandem.cli.drill.command import run_drills
from tandem.cli.drill.options import DrillOptions
from tandem.cli.drill.session import Bounds
from tests.vllm.serving import Serving, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

BOUNDS: Final = Bounds(streams=4, recover_s=180.0)
"""A killed worker loads vLLM and its model again, on cores that it shares."""
ROOM: Final = {"TANDEM_VLLM__BLOCKS": "513", "TANDEM_STAGE__BLOCKS": "512"}
"""For the longest prompts of a drill beside its load."""
PAUSE_S: Final = 20.0
"""No client waits for that: the others go on with what it had."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Serving]:
    async with serving(["--prefill", "1", "--decode", "2"], ROOM, drills=True) as running:
        yield running


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
