"""What a router tells of its workers: `GET /v1/workers`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from control_plane.reports.http_get import BYTES_MAX
from router.fleet.breaker import Outcome
from router.fleet.listing import PAIRS_MAX, listing
from router.fleet.pairs import PairRegistry, Partner
from router.fleet.peer import Peer
from router.fleet.services import ServiceRegistry
from router.placement.view import WorkerView
from router.settings import PairSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Hello, Load
from tests.worlds.router_world import LAYOUT, World


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


def peer(worker_id: str, role: str) -> Peer:
    address = f"tcp://10.0.0.1:{7400 + int(worker_id[1:])}"
    hello = Hello(1, worker_id, 1, role, "demo", "hash", "e916fd21ba", LAYOUT, b"", 9, 4096, (0,), (address,))
    return Peer(address, cast(Any, None), hello, WorkerView.of(hello, 0), 0.0)


def large() -> tuple[list[Peer], PairRegistry]:
    """256 workers for prompts and 256 for answers, all of which know each other; one pair is in trouble."""
    prefills = [peer(f"p{number:03}", "prefill") for number in range(256)]
    decodes = [peer(f"d{number:03}", "decode") for number in range(256)]
    pairs = PairRegistry(PairSettings())
    for each in (*prefills, *decodes):
        pairs.add(Partner(each.worker_id, each.hello.role == "prefill", "g", ("tcp",)), 0.0)
    keys = [(one.worker_id, other.worker_id) for one in prefills for other in decodes]
    pairs.want(keys, 0.0)
    for key in keys:
        if key != ("p200", "d200"):
            pairs.breakers[key].begin()
            pairs.breakers[key].probed(Outcome("tcp"), 0.0)
    return [*prefills, *decodes], pairs


def test_a_listing_of_512_workers_is_bounded_and_tells_of_trouble_first() -> None:
    """Every pair of a service of this size, twice, were more than the control plane takes of a router."""
    peers, pairs = large()
    assert len(pairs.breakers) == 256 * 256
    listed = listing(peers, (), pairs, ServiceRegistry(), 1.0)
    assert len(msgspec.json.encode(listed)) < BYTES_MAX / 4
    by_id = {each.id: each for each in listed}
    assert {(len(each.pairs), each.pair_count) for each in listed} == {(PAIRS_MAX, 256)}
    states = [(pair.worker, pair.state) for pair in by_id["d200"].pairs]
    assert states == sorted(states)
    assert ("p200", "unproven") in states
    assert [pair.worker for pair in by_id["d001"].pairs] == [f"p{number:03}" for number in range(PAIRS_MAX)]
    bare = listing(peers, (), pairs, ServiceRegistry(), 1.0, pairs=False)
    assert {(each.pairs, each.pair_count) for each in bare} == {((), 256)}
    assert len(msgspec.json.encode(bare)) < BYTES_MAX / 32
