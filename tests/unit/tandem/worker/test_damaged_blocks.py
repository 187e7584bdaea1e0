"""A block that was damaged in its holder's memory is found out by whoever pulls it, and used by nobody afterwards."""

import asyncio
from collections.abc import Awaitable, Callable

from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.kv import Handle
from tandem.core.messages import Cancel, Hello, ProvideFirst
from tandem.engine.local import LocalEngine
from tandem.link.memory_link import MemoryLinks
from tests.unit.tandem.engine.scheduler.test_idle_fetches import harness
from tests.worlds.scheduler_harness import Harness
from tests.worlds.worker_stage import (
    Router,
    build_decode,
    build_prefill,
    dial,
    hand_off,
    memory_transport,
    parts,
    prompt,
    running,
)


class Stage:
    """A prefill and a decode worker, and a router's links to them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = LoopClock(loop)
        self.links = MemoryLinks()
        fabric = MemoryNetwork()
        self.parts = {name: parts(self.clock, name) for name in ("p", "d")}
        self.workers = (
            build_prefill(self.parts["p"], self.links.server("p"), [memory_transport(fabric, "p")]),
            build_decode(self.parts["d"], self.links.server("d"), [memory_transport(fabric, "d")]),
        )

    def engine(self, name: str) -> LocalEngine:
        engine = self.parts[name].engine
        assert isinstance(engine, LocalEngine)
        return engine

    async def linked(self) -> tuple[Router, Router]:
        dialer = self.links.dialer("router")
        return await dial(dialer, "p"), await dial(dialer, "d")

    def exported(self) -> list[Handle]:
        """Handles of the blocks under the only lease, in prompt order."""
        engine = self.engine("p")
        (lease,) = engine.scheduler.leases._leases.values()
        found = [engine.look(lease.lease_id, name) for name in lease.exports]
        return [handle for handle in found if isinstance(handle, Handle)]


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop)
        async with running(*stage.workers):
            await test(stage)

    run(main, limit_s=600.0)


def _known(router: Router) -> Hello:
    assert router.hello is not None
    return router.hello


def test_a_damaged_block_is_forgotten_by_its_holder_once_it_was_pulled() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.linked()
        to_p, to_d = hand_off(1, _known(p), _known(d), prompt(100), stage.clock.wall())
        p.link.tokens.send(to_p)
        await p.ended(1)
        handles = stage.exported()
        assert len(handles) == 7
        damaged = handles[3]
        stage.engine("p").memory.block(damaged.slot)[9] ^= 4
        d.link.tokens.send(to_d)
        (first,) = p.outputs[0].tokens
        d.link.tokens.send(ProvideFirst(1, 0, first))
        await asyncio.sleep(0.1)
        known = stage.engine("p").snapshot()
        assert damaged.name not in known
        assert {handle.name for handle in handles[:6] if handle is not damaged} <= set(known)
        assert stage.engine("p").scheduler.leases.exported == 0, "nothing more is wanted of the lease"
        await d.ended(1)
        p.link.tokens.send(Cancel(1))

    on_stage(test)


def test_a_good_block_stays_whatever_is_said_of_it() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.linked()
        to_p, _ = hand_off(1, _known(p), _known(d), prompt(100), stage.clock.wall())
        p.link.tokens.send(to_p)
        await p.ended(1)
        engine = stage.engine("p")
        before = engine.snapshot()
        for handle in stage.exported():
            assert not engine.recheck("lease-1", handle.name)
            assert not engine.recheck("another lease", handle.name)
        assert engine.snapshot() == before
        assert len(stage.exported()) == 7

    on_stage(test)


def _shared(h: Harness) -> tuple[int, int, int]:
    """A finished prefill, a work that attends to its blocks, and a slot that both use."""
    prompt_ids = tuple(range(20))
    holder = h.submit(prompt_ids, "prefill")
    h.run()
    slot = h.exports(holder)[1].slot
    user = h.submit((*prompt_ids, 400, 401), "local", max_tokens=30)
    for _ in range(3):
        h.step()
    assert h.scheduler.kv_cache.pool.refs(slot) == 2
    return holder, user, slot


def test_works_that_attend_to_a_damaged_block_fail_and_the_slot_comes_back() -> None:
    h = harness(blocks=24)
    holder, user, slot = _shared(h)
    name = h.exports(holder)[1].name
    h.scheduler.invalidate(slot, h.now)
    h.flush()
    assert h.stories[user].failed == "kv_corrupt"
    assert name not in h.scheduler.snapshot()
    assert len(h.exports(holder)) == 4, "the lease keeps the others"
    h.drain()


def test_a_condemned_block_is_computed_again_for_whoever_comes_next() -> None:
    h = harness(blocks=24)
    holder, _, slot = _shared(h)
    h.scheduler.invalidate(slot, h.now)
    h.runner.memory.block(slot)[:4] = b"\xee" * 4
    again = h.submit(tuple(range(20)), "prefill")
    h.run()
    assert slot not in [handle.slot for handle in h.exports(again)]
    assert len(h.exports(again)) == 5
    assert h.exports(holder)[0].slot == h.exports(again)[0].slot
    h.drain()
