"""A fleet that is told to stop in the very moment in which it loses its links."""

import asyncio

from tandem.apps.simulation.loop import VirtualLoop, run
from tests.worlds.router_world import World


def test_a_fleet_that_is_cancelled_while_its_links_break_ends() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, None)
        world.worker("p1", "prefill")
        world.worker("d1", "decode")
        await world.start()
        assert world.task is not None
        for worker in world.workers.values():
            worker.link.close("the worker is gone")
        await asyncio.sleep(0.0)
        world.task.cancel()
        done, _ = await asyncio.wait([world.task], timeout=5.0)
        assert done, "the fleet goes on dialing"

    run(main, limit_s=1000.0)
