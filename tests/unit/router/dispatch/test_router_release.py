"""At the end of a request nobody holds anything for it any more."""

import asyncio
import gc
import weakref

from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Cancel
from tests.worlds.router_world import World


def test_prefill_is_told_that_a_finished_request_needs_its_blocks_no_more() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer="disaggregated")))
        world.worker("p1", "prefill")
        world.worker("d1", "decode")
        await world.start()
        client = world.ask(tokens=200)
        await asyncio.wait_for(client.ended.wait(), 100.0)
        client.check_whole()
        await asyncio.sleep(0.1)
        p1 = world.workers["p1"]
        cancelled = [command.handle for command in p1.commands if isinstance(command, Cancel)]
        assert cancelled == [submit.handle for submit in p1.submits]
        await world.stop()

    run(main, limit_s=1000.0)


def test_a_request_that_is_over_is_freed_without_the_garbage_collector() -> None:
    """Routers let the collector look at old objects only now and then: what waits for it is held for minutes."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer="disaggregated")))
        world.worker("p1", "prefill")
        world.worker("d1", "decode")
        await world.start()
        client = world.ask(tokens=200)
        (request,) = map(weakref.ref, world.dispatcher._requests.values())
        await asyncio.wait_for(client.ended.wait(), 100.0)
        await world.stop()
        assert request() is None

    gc.collect()
    gc.disable()
    try:
        run(main, limit_s=1000.0)
    finally:
        gc.enable()
