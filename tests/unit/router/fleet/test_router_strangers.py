"""A holder of a prompt's blocks that only the shared index knows becomes a source, and never a place to compute."""

import asyncio
from collections.abc import Mapping, Sequence

from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_wire import RedisHolder
from kv_transfer.tickets import check
from kv_transfer.transport.protocol import is_reuse
from router.fleet.services import ServiceFacts
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Load
from tests.worlds.router_world import KEYRING, LAYOUT, Client, ScriptedWorker, World

IDLE = Load(0, 0, 0, 1000, 0, 0, 0.01, 1_000.0, 1_000.0, 0)
TOKENS = 1600
BLOCKS = TOKENS // LAYOUT.block_tokens


class Shared:
    """Knows one holder of whatever it is asked for."""

    told: RedisHolder | None = None
    asked: tuple[str, ...] = ()

    def holders(self, service: str = "") -> frozenset[str]:
        return frozenset() if self.told is None else frozenset((self.told.hello.worker_id,))

    async def longest(self, names: Sequence[bytes], service: str = "") -> Mapping[str, RedisHolder]:
        self.asked += (service,)
        return {} if self.told is None else {self.told.hello.worker_id: self.told}


def test_a_stranger_that_has_the_prompt_is_a_source() -> None:
    async def main(loop: VirtualLoop) -> None:
        shared = Shared()
        world = World(loop, shared=shared)
        world.worker("u1", "unified").load = IDLE
        await world.start()
        far = ScriptedWorker(world, "far", "unified")
        shared.told = RedisHolder(far.hello(), Held(BLOCKS, BLOCKS, known_by="redis"))
        client = world.ask(tokens=TOKENS)
        await client.ended.wait()
        assert not world.workers["u1"].submits[-1].sources, "nobody has asked the shared index"
        generation = world.generation(tokens=TOKENS)
        await world.dispatcher.seek(generation)
        second = Client(world, generation)
        world.dispatcher.start(generation, second)
        await second.ended.wait()
        second.check_whole()
        assert shared.asked == ("",)
        (source,) = world.workers["u1"].submits[-1].sources
        assert (source.holder, source.kind, source.epoch) == ("far", "store", far.epoch)
        assert (source.addresses, source.blocks) == (("mem://far",), BLOCKS)
        assert is_reuse(source.lease_id)
        claims = check(
            KEYRING,
            source.ticket,
            holder_epoch=far.epoch,
            lease_id=source.lease_id,
            receiver_epoch=world.workers["u1"].epoch,
            wall=world.clock.wall(),
        )
        assert claims.tenant == "t"
        await asyncio.sleep(5.0)
        reasons = [str(span.attributes.get("reasons")) for span in world.recorder.spans(generation.request_id)]
        assert any("what far holds is known from Redis" in each for each in reasons)
        await world.stop()

    run(main, limit_s=3000.0)


def test_the_index_is_asked_for_the_service_that_a_request_goes_to() -> None:
    async def main(loop: VirtualLoop) -> None:
        shared = Shared()
        world = World(loop, shared=shared)
        world.worker("u1", "unified").load = IDLE
        await world.start()
        shared.told = RedisHolder(
            ScriptedWorker(world, "far", "unified").hello(), Held(BLOCKS, BLOCKS, known_by="redis")
        )
        generation = world.generation(tokens=TOKENS)
        world.fleet.set_services([ServiceFacts("llm/llama", generation.model, index="llm.llama")], ())
        await world.dispatcher.seek(generation)
        assert shared.asked == ("llm.llama",)

    run(main)
