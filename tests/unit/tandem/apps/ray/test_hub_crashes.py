"""The hub dies before or after any of its writes, to its store or to Serve, and the next one goes on: whatever the
moment, requests find whole revisions, no worker is replaced for it, and nothing is left in the end."""

import asyncio
from contextlib import suppress

import pytest

from tandem.apps.simulation.loop import run
from tandem.core.entropy import SeededEntropy, below
from tests.worlds.ray_world import NAME, RayWorld, in_world, scaled, service

pytestmark = pytest.mark.slow
OTHER = {"type": "simulated", "kvMemory": "64Mi"}
PARTS = 8
"""Every write is tried; each test has an eighth of them."""
WORKERS = 3 + 1 + 4
"""Workers that the story needs: at first, for one more, and for another revision."""


async def whole_life(world: RayWorld) -> None:
    """Up, one worker more, another revision, and gone."""
    first: str = await world.ask(lambda hub: hub.want(service()))
    await world.settled(first, prefill=1, decode=2)
    watching = asyncio.create_task(_watch(world))
    await world.ask(lambda hub: hub.scale(NAME, {"decode": 3}))
    await world.settled(first, prefill=1, decode=3)
    second: str = await world.ask(lambda hub: hub.want(service(engine=OTHER, pools=scaled(decode=3))))
    await world.settled(second, prefill=1, decode=3)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await world.ask(lambda hub: hub.leave(NAME, 30.0))
    assert await world.serving.running() == {}
    assert await world.discovered() == []
    assert world.serving.deployed == [f"{NAME}-{first}", f"{NAME}-{second}"], "nothing is deployed twice"
    assert world.serving.born == WORKERS, "no worker is replaced because a hub died"


async def _watch(world: RayWorld) -> None:
    """A request finds a revision with ready workers in every pool, at any time."""
    while True:
        ready = {(told.revision, told.pool) for told in world.serving.workers() if told.ready and not told.leaving_s}
        revisions = {revision for revision, _ in ready}
        assert any({(each, "prefill"), (each, "decode")} <= ready for each in revisions), ready
        await asyncio.sleep(0.1)


def live(before: frozenset[int] = frozenset(), after: frozenset[int] = frozenset()) -> RayWorld:
    return run(lambda _loop: in_world(whole_life, dies_before=before, dies_after=after))


@pytest.fixture(scope="module")
def writes() -> int:
    """How many writes a life without a crash takes."""
    return live().writes


@pytest.mark.parametrize("part", range(PARTS))
def test_a_hub_dies_right_after_a_write(part: int, writes: int) -> None:
    for number in range(1 + part, writes + 1, PARTS):
        assert live(after=frozenset({number})).lives == 2, f"write {number} of {writes}"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_hub_dies_right_before_a_write(part: int, writes: int) -> None:
    """What is kept is as after the write before; what ran in between is not."""
    for number in range(1 + part, writes + 1, 3 * PARTS):
        assert live(before=frozenset({number})).lives == 2, f"write {number} of {writes}"


@pytest.mark.parametrize("seed", range(12))
def test_hubs_die_again_and_again(seed: int, writes: int) -> None:
    entropy = SeededEntropy(seed)
    at, before, after = 0, set[int](), set[int]()
    while at < writes:
        at += 1 + below(entropy, 25)
        (before if below(entropy, 2) else after).add(at)
    world = live(frozenset(before), frozenset(after))
    assert world.lives >= 3
