"""What dispatch makes of reuse: tiers in the usage, pins where the prompt is computed, why a prompt missed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from typing import Any

import msgspec

from kv_transfer.index.protocol import Held
from router.dispatch.pinned_prefixes import FleetPinnedPrefixes
from router.dispatch.reuse_watch import ReuseWatch
from router.dispatch.why_missed import Evidence
from router.generation import PrefixReplica
from router.placement import Breakdown, Candidate, Placement
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import chain_names, pack_tokens, tenant_root
from tandem.core.messages import KvDelta, Pin, Unpin
from tandem.core.spans import Span
from tests.unit.router.dispatch.test_router_dispatch import ended
from tests.worlds.router_world import ROOT, Client, World

BLOCK = 16
NOTHING = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0)
PAIRED = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))


def scenario(body: Callable[[World], Awaitable[None]], workers: str = "p1 d1") -> None:
    roles = {"p": "prefill", "d": "decode"}

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, PAIRED)
        for worker_id in workers.split():
            world.worker(worker_id, roles[worker_id[0]])
        await world.start()
        await body(world)
        await world.stop()

    run(main, limit_s=3000.0)


def prompt(*parts: range) -> bytes:
    return pack_tokens([token for part in parts for token in part])


async def asked(world: World, packed: bytes, **changes: Any) -> Client:
    """A request with this prompt, answered."""
    generation = msgspec.structs.replace(world.generation(max_tokens=4), prompt=packed, **changes)
    client = Client(world, generation)
    world.dispatcher.start(generation, client)
    return await ended(client)


def dispatch(world: World, client: Client) -> Span:
    (span,) = [each for each in world.recorder.spans(client.generation.request_id) if each.name == "dispatch"]
    return span


async def holds(world: World, worker_id: str, packed: bytes, salt: str = "", count: int = 2) -> None:
    """The worker tells that it has all whole blocks of a prompt, in the `count`th event of its life."""
    link = world.workers[worker_id].link
    assert link is not None
    names = chain_names(tenant_root(ROOT.name(), salt), packed, BLOCK)
    link.state.send(KvDelta(1, count, b"".join(names), b""))
    await asyncio.sleep(0.1)


def test_cached_tokens_are_told_by_tier_and_of_the_worker_that_computed_the_prompt() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].by_tier = {"hbm": 16, "dram": 32}
        world.workers["d1"].by_tier = {"hbm": 99}
        client = await asked(world, prompt(range(100)))
        assert client.usage is not None
        assert (client.usage.cached_tokens, client.usage.by_tier) == (48, {"hbm": 16, "dram": 32})

    scenario(body)


def test_a_worker_that_knows_no_tiers_has_found_it_in_its_pool() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].reused = 16
        client = await asked(world, prompt(range(100)))
        assert client.usage is not None
        assert client.usage.by_tier == {"hbm": 16}

    scenario(body)


def test_a_prefix_is_pinned_where_it_is_computed_and_let_go_there() -> None:
    async def body(world: World) -> None:
        pin = Pin(3, 60.0)
        client = await asked(world, prompt(range(96)), pin=pin, kv_bytes_max=5000)
        p1, d1 = world.workers["p1"].submits[0], world.workers["d1"].submits[0]
        assert (p1.pin, d1.pin) == (pin, None)
        assert p1.kv_bytes_max == d1.kv_bytes_max == 5000
        assert client.usage is not None
        (kept,) = client.usage.kept
        assert kept == PrefixReplica("p1", 1, 6)
        keeper = FleetPinnedPrefixes(world.fleet)
        names = keeper.names(kept, client.generation)
        assert len(names) == 6 * 16
        await holds(world, "p1", client.generation.prompt)
        assert keeper.still([kept], names) == (kept,)
        assert keeper.still([PrefixReplica("p1", 2, 6)], names) == (), "another incarnation keeps nothing for us"
        keeper.unpin(kept, names, "")
        keeper.unpin(PrefixReplica("p1", 2, 6), names, "")
        await asyncio.sleep(0.1)
        assert [each for each in world.workers["p1"].commands if isinstance(each, Unpin)] == [Unpin(names, "")]

    scenario(body)


def test_who_keeps_a_prefix_already_is_avoided() -> None:
    async def body(world: World) -> None:
        for name, avoid in (("p2", ("p1", 1)), ("p1", ("p2", 1))):
            before = len(world.workers[name].submits)
            await asked(world, prompt(range(96)), pin=Pin(0, 60.0), avoid=(avoid,))
            assert len(world.workers[name].submits) == before + 1

    scenario(body, "p1 p2 d1")


def test_a_request_says_why_its_prompt_missed() -> None:
    async def body(world: World) -> None:
        first = await asked(world, prompt(range(64)))
        assert dispatch(world, first).attributes["missed"] == "never_seen"
        await holds(world, "p1", first.generation.prompt)
        world.workers["p1"].reused = 48
        parted = await asked(world, prompt(range(50), range(200, 230)))
        seen = dispatch(world, parted).attributes
        assert (seen["missed"], seen["missed_token"]) == ("diverged", 50)
        world.workers["p1"].reused = 64
        longer = await asked(world, prompt(range(64), range(300, 340)))
        seen = dispatch(world, longer).attributes
        assert (seen["missed"], seen["missed_token"]) == ("new", 64)

    scenario(body)


def test_what_a_worker_evicted_or_took_with_it_is_told() -> None:
    async def body(world: World) -> None:
        packed = prompt(range(64))
        first = await asked(world, packed)
        await asyncio.sleep(10.0)
        again = await asked(world, packed)
        seen = dispatch(world, again).attributes
        assert (seen["missed"], seen["missed_token"]) == ("evicted", 0)
        assert f"{first.generation.request_id} used them there" in str(seen["missed_because"])
        world.workers["p1"].die()
        await asyncio.sleep(1.0)
        await world.workers["p1"].revive()
        await asyncio.sleep(5.0)
        lost = await asked(world, packed)
        assert dispatch(world, lost).attributes["missed"] == "worker_lost"

    scenario(body)


def test_the_worker_with_the_most_is_named_of_those_whose_blocks_could_be_used() -> None:
    """In whatever order they are found. `p3` computes other KV, and one that this router does not know has the most
    of all."""

    async def body(world: World) -> None:
        told: list[Evidence] = []
        peer = world.fleet.peer("p3")
        assert peer is not None
        peer.hello = msgspec.structs.replace(peer.hello, root=b"other")
        blocks = {"p1": 2, "p2": 4, "p3": 5, "gone": 6}
        placement = Placement("disaggregated", "d1", "p1", 100, 32, ((Candidate("d1", "p1"), NOTHING),), ())
        watch, orders = ReuseWatch(world.fleet, world.loop, world.clock, 1 << 20), list(permutations(blocks))
        for order in orders:
            held = {name: Held(blocks[name], blocks[name]) for name in order}
            watch.placed(world.generation(tokens=100), held, placement, told.append)
        await asyncio.sleep(0.1)
        assert [(each.holder, each.best) for each in told] == [("p2", 64)] * len(orders)

    scenario(body, "p1 p2 p3 d1")


def test_the_cost_of_a_prompt_is_learned_from_those_that_were_computed_alone() -> None:
    """What two took together would pass for what one takes, and prompts go elsewhere for it."""

    async def body(world: World) -> None:
        seen: list[tuple[str, bool]] = []
        observe = world.tools.costs.observe_spans

        def noted(worker_id: str, spans: Sequence[Span], *, alone: bool = False) -> None:
            seen.append((worker_id, alone))
            observe(worker_id, spans, alone=alone)

        world.tools.costs.observe_spans = noted  # type: ignore[method-assign]
        await ended(world.ask(tokens=100))
        await asyncio.sleep(0.1)
        assert ("p1", True) in seen
        seen.clear()
        clients = [world.ask(tokens=100) for _ in range(2)]
        for client in clients:
            await ended(client)
        await asyncio.sleep(0.1)
        assert [alone for worker_id, alone in seen if worker_id == "p1"] == [False, False]

    scenario(body)


def test_another_tenants_prompt_is_told_to_operators_alone() -> None:
    async def body(world: World) -> None:
        packed = prompt(range(64))
        await asked(world, packed, tenant="a", tenant_salt="salt-a")
        await holds(world, "p1", packed, "salt-a")
        other = await asked(world, packed, tenant="b", tenant_salt="salt-b")
        seen = dispatch(world, other).attributes
        assert seen["missed"] == "never_seen"
        assert "another tenant" in str(seen["operator.missed_because"])
        assert "salt-a" not in str(seen)
        salted = await asked(world, packed, tenant="a", tenant_salt="salt-a/x")
        assert dispatch(world, salted).attributes["missed"] == "other_salt"

    scenario(body)


def test_what_was_counted_on_and_was_gone_by_then_is_told() -> None:
    async def body(world: World) -> None:
        packed = prompt(range(64))
        await holds(world, "p1", packed)
        client = await asked(world, packed)
        seen = dispatch(world, client).attributes
        assert (seen["missed"], seen["missed_token"]) == ("gone_meanwhile", 0)

    scenario(body)


def test_where_no_worker_tells_the_cached_tokens_are_those_that_placement_counted_on() -> None:
    """A report that is lost does not make cached tokens cost what others cost."""

    async def body(world: World) -> None:
        packed = prompt(range(96))
        await holds(world, "p1", packed[: 4 * 64])
        world.workers["p1"].report = False
        client = await asked(world, packed)
        assert client.usage is not None
        assert client.usage.cached_tokens == 64

    scenario(body)


def test_the_list_of_workers_says_what_carries_their_kv() -> None:
    async def body(world: World) -> None:
        peer = world.fleet.peer("d1")
        assert peer is not None
        for addresses, path in (
            (("nixl://h:1/ucx-rdma", "tcp://h:2"), "nixl/ucx-rdma"),
            (("nixl://h:1",), "nixl"),
            (("shm:///run/x/pull", "tcp://h:2"), "shm"),
            ((), ""),
        ):
            peer.hello = msgspec.structs.replace(peer.hello, addresses=addresses)
            (listed,) = [each for each in world.fleet.listing() if each.id == "d1"]
            assert listed.kv_path == path

    scenario(body)
