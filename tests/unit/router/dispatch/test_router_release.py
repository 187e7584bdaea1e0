"""At the end of a request nobody holds anything for it any more."""

import asyncio
import gc
import weakref

from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Cancel
from tests.worlds.router_world import Client, World


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


def test_a_request_is_freed_as_soon_as_its_workers_have_reported_or_when_it_leaves_the_line() -> None:
    """Those of the last second are thousands, with their prompts."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer="disaggregated")))
        world.worker("p1", "prefill")
        world.worker("d1", "decode")
        await world.start()
        client = world.ask(tokens=200)
        (request,) = map(weakref.ref, world.dispatcher._requests.values())
        await asyncio.wait_for(client.ended.wait(), 100.0)
        await asyncio.sleep(0.1)
        assert request() is None
        world.workers["d1"].die()
        await asyncio.sleep(5.0)
        generation = world.generation()
        running = world.dispatcher.start(generation, Client(world, generation))
        (request,) = map(weakref.ref, world.dispatcher._requests.values())
        running.cancel("its client has left")
        del running
        await asyncio.sleep(0.1)
        assert request() is None
        await world.stop()

    gc.collect()
    gc.disable()
    try:
        run(main, limit_s=1000.0)
    finally:
        gc.enable()
