"""What a router tells of its workers: `GET /v1/workers`."""

import asyncio
from collections.abc import Awaitable, Callable

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Load
from tests.worlds.router_world import World


async def with_world(loop: VirtualLoop, body: Callable[[World], Awaitable[None]]) -> None:
    world = World(loop)
    for name in ("d1", "d2"):
        world.worker(name, "decode")
    await world.start()
    await body(world)
    await world.stop()


def test_a_listing_tells_what_workers_are_busy_with_and_since_when_they_are_ready() -> None:
    async def body(world: World) -> None:
        world.workers["d1"].load = Load(2, 1, 300, 600, 50, 100, 0.02, 1500.0, 90.0, 4, 0.001, 0.00001)
        world.workers["d1"].die()
        await world.workers["d1"].revive()
        await asyncio.sleep(4.0)
        found = {each.id: each for each in world.fleet.listing()}
        load = found["d1"].load
        assert load is not None
        assert (load.running, load.waiting, load.queued_prompt_tokens, load.blocks, load.blocks_free) == (
            2, 1, 300, 1000, 600,
        )  # fmt: skip
        assert (load.kv_used, load.kv_exported) == (0.4, 0.1)
        assert (load.step_s, load.prefill_tokens_per_s, load.decode_tokens_per_s) == (0.02, 1500.0, 90.0)
        assert found["d2"].load is None
        assert 1.0 < (found["d1"].ready_for_s or 0.0) < 4.1 < (found["d2"].ready_for_s or 0.0)

    run(lambda loop: with_world(loop, body))
