"""Fetches from several origins on virtual time: own tiers, other holders, the hand-off; each bounded, each told."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher, KvLoadSpec
from kv_transfer.fetch_progress import FetchReport
from kv_transfer.tiers.protocol import Lost, Restored
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import reuse_lease
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.messages import Source
from tandem.core.metrics import NullMeter
from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory, FetchJob, FetchTarget
from tests.contract.block_space import (
    KEYRING,
    TestSpace,
    block_layout,
    content,
    fetch_job,
    name_of,
    ready_lease,
    remote_kv,
    ticket,
)
from tests.unit.kv_transfer.test_kv_fetch import Path

LAYOUT = block_layout(2048)
DEADLINES = Deadlines()
BEGIN_S = 100_000.0


@dataclass
class FakeTiers:
    """Holds blocks by name in two tiers; may lose some, or stop in the middle and take its time to be closed."""

    tiers: dict[bytes, str] = field(default_factory=dict)
    damaged: dict[bytes, None] = field(default_factory=dict)
    stuck_after: int | None = None
    close_s: float = 0.0
    closed: int = 0

    def where(self, names: Sequence[bytes]) -> tuple[str, ...]:
        found = []
        for name in names:
            if name not in self.tiers:
                break
            found.append(self.tiers[name])
        return tuple(found)

    async def restore(
        self, targets: Sequence[FetchTarget], memory: BlockMemory, deadline: float
    ) -> AsyncGenerator[tuple[Restored | Lost, ...], None]:
        digester = Digester(LAYOUT)
        try:
            for number, target in enumerate(targets):
                await asyncio.sleep(0.001)
                if number == self.stuck_after:
                    await asyncio.sleep(1e6)
                if target.name in self.damaged:
                    yield (Lost(target.index, "digest"),)
                    continue
                block = content(target.name, LAYOUT.block_bytes)
                memory.block(target.slot)[:] = block
                yield (Restored(target.index, digester.content_words(block), self.tiers[target.name]),)
        finally:
            await asyncio.sleep(self.close_s)
            self.closed += 1


@dataclass
class World:
    """A receiver with tiers, prefill, and two other holders."""

    loop: VirtualLoop
    tiers: FakeTiers = field(default_factory=FakeTiers)
    receiver: TestSpace = field(default_factory=lambda: TestSpace(LAYOUT, 64, 22, shared=False))

    async def start(self) -> "World":
        self.path = Path()
        self.fabric = MemoryNetwork(self.path)
        self.clock = LoopClock(self.loop)
        self.spaces: dict[str, TestSpace] = {}
        self.ends: dict[str, MemoryTransport] = {}
        for epoch, name in enumerate(("p0", "u0", "u1"), start=31):
            self.spaces[name] = TestSpace(LAYOUT, 64, epoch, shared=False)
            self.ends[name] = MemoryTransport(self.fabric, name)
            await self.ends[name].serve(Exporter(self.spaces[name], KEYRING, self.clock, DEADLINES))
        pulling = MemoryTransport(self.fabric, "d0")
        tiers: Any = self.tiers
        self.fetcher = Fetcher(self.receiver, [pulling], self.clock, DEADLINES, NullMeter(), tiers=tiers)
        return self

    def source(self, name: str, blocks: int, kind: str = "peer") -> Source:
        space, lease = self.spaces[name], reuse_lease(name)
        return Source(name, space.epoch, (f"mem://{name}",), lease, ticket(space.epoch, lease, 22, 4e9), blocks, kind)

    def has(self, name: str, names: tuple[bytes, ...]) -> None:
        """The holder has these blocks, complete."""
        self.spaces[name].lease("own", names)
        for index in range(len(names)):
            self.spaces[name].complete("own", index)

    def right(self, names: tuple[bytes, ...], indices: Sequence[int]) -> None:
        """Exactly these blocks have landed, each with its own bytes."""
        assert sorted(self.receiver.landed_words) == list(indices)
        for index in indices:
            assert bytes(self.receiver.memory.block(2 * index + 1)) == content(names[index], 2048)


def on_virtual_time(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def body(loop: VirtualLoop) -> None:
        # Clocks do not begin at zero: there a time of the clock would pass for a time that is left.
        await asyncio.sleep(BEGIN_S)
        await main(await World(loop).start())

    run(body, limit_s=BEGIN_S + 300.0)


def names_of(count: int) -> tuple[bytes, ...]:
    return tuple(f"block {number:2}".encode().ljust(16, b".") for number in range(count))


def reuse_job(names: tuple[bytes, ...]) -> FetchJob:
    return replace(fetch_job(names, LAYOUT), hand_off=False)


def test_each_origin_brings_what_the_one_before_does_not_have() -> None:
    async def main(world: World) -> None:
        names = names_of(10)
        world.tiers.tiers = {names[0]: "dram", names[1]: "nvme", names[2]: "nvme"}
        world.has("u0", (*names[:2], *names[4:6]))
        world.has("u1", names[:9])
        bringing = KvLoadSpec(9, (world.source("u0", 6), world.source("u1", 9, "store")))
        report = await world.fetcher.fetch(reuse_job(names), None, bringing)
        world.right(names, range(9))
        assert {each.origin: each.blocks for each in report.brought} == {"dram": 1, "nvme": 2, "peer": 2, "store": 4}
        assert {each.origin: each.tokens for each in report.brought}["store"] == 4 * LAYOUT.block_tokens
        assert report.brought[2].reason == "block 3: the name is not under this lease"
        assert report.brought[3].reason is None
        assert report.brought[3].holder == "u1"
        assert all(each.seconds > 0 for each in report.brought)
        assert not report.handed_over
        assert report.reason == "kv_gone: 1 blocks were found nowhere"
        assert world.receiver.ended == [(7, report.reason, ())]
        await asyncio.sleep(0.1)
        assert not any(lease.startswith("reuse") for space in world.spaces.values() for lease in space.leases)

    on_virtual_time(main)


def test_a_hand_off_brings_what_nobody_had_and_the_first_tokens() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.spaces["p0"], 6)
        world.tiers.tiers = dict.fromkeys(names[:4], "dram")
        world.tiers.damaged = {names[2]: None}
        remote = remote_kv(world.spaces["p0"], world.receiver, ("mem://p0",))
        report = await world.fetcher.fetch(fetch_job(names, LAYOUT), remote, KvLoadSpec(4))
        world.right(names, range(6))
        assert report.reason is None
        assert report.first is not None
        assert (report.blocks, report.brought[0].blocks, report.brought[0].reason) == (3, 3, "block 2: digest")
        assert world.receiver.ended == [(7, None, ())]

    on_virtual_time(main)


@pytest.mark.parametrize("found", ["dram", "peer"])
def test_what_was_brought_is_told_where_nothing_is_left_for_the_hand_off(found: str) -> None:
    """An answer that is over before the holder has let go keeps its figures."""

    async def main(world: World) -> None:
        names = tuple(name_of(index) for index in range(6))
        world.spaces["p0"].lease("lease", names)
        bringing = KvLoadSpec(6)
        if found == "dram":
            world.tiers.tiers = dict.fromkeys(names, "dram")
        else:
            world.has("u0", names)
            bringing = KvLoadSpec(6, (world.source("u0", 6),))
        told: list[FetchReport] = []

        def whole(report: FetchReport) -> None:
            told.append(report)
            world.loop.call_later(1.0, fetching.cancel)

        remote = remote_kv(world.spaces["p0"], world.receiver, ("mem://p0",))
        fetch = world.fetcher.fetch(fetch_job(names, LAYOUT), remote, bringing, whole)
        fetching = asyncio.ensure_future(fetch)
        done, _ = await asyncio.wait((fetching,), timeout=60.0)
        assert done
        assert fetching.cancelled(), "the holder has no first token yet"
        world.right(names, range(6))
        (report,) = told
        assert (report.blocks, report.acknowledged, report.handed_over) == (0, False, True)
        assert [(each.origin, each.blocks) for each in report.brought] == [(found, 6)]

    on_virtual_time(main)


def test_a_hand_off_takes_nothing_else_that_was_not_found_worth_it() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.spaces["p0"], 3)
        world.tiers.tiers = dict.fromkeys(names, "nvme")
        remote = remote_kv(world.spaces["p0"], world.receiver, ("mem://p0",))
        report = await world.fetcher.fetch(fetch_job(names, LAYOUT), remote)
        assert (report.blocks, report.brought) == (3, ())

    on_virtual_time(main)


def test_a_source_that_dies_in_the_middle_costs_its_rest_only() -> None:
    async def main(world: World) -> None:
        names = names_of(8)
        world.has("u0", names)
        world.has("u1", names[:6])
        world.loop.call_later(0.0075, world.ends["u0"].kill)
        bringing = KvLoadSpec(8, (world.source("u0", 8), world.source("u1", 6)))
        report = await world.fetcher.fetch(reuse_job(names), None, bringing)
        world.right(names, range(6))
        first, second = report.brought
        assert first.reason is not None
        assert first.reason.startswith("transfer_failed")
        assert 0 < first.blocks < 6
        assert first.blocks + second.blocks == 6

    on_virtual_time(main)


def test_damaged_bytes_of_a_source_are_not_used() -> None:
    async def main(world: World) -> None:
        names = names_of(4)
        world.has("u0", names)
        world.spaces["u0"].overwrite(1)
        report = await world.fetcher.fetch(reuse_job(names), None, KvLoadSpec(4, (world.source("u0", 4),)))
        world.right(names, [0])
        assert (report.brought[0].reason or "").startswith("kv_corrupt")

    on_virtual_time(main)


@pytest.mark.parametrize("patience_s", [0.0, 0.5])
def test_bringing_is_given_up_when_computing_would_have_been_done(patience_s: float) -> None:
    async def main(world: World) -> None:
        names = names_of(30)
        world.path.bytes_per_s = 2048 / 1.5  # Every block makes progress, all of them would take 45 s.
        world.has("u0", names)
        bringing = KvLoadSpec(30, (world.source("u0", 30), world.source("u1", 30)), patience_s)
        await world.fetcher.fetch(reuse_job(names), None, bringing)
        assert world.loop.time() - BEGIN_S == pytest.approx(2.0 + patience_s, abs=0.1)
        assert len(world.receiver.ended) == 1

    on_virtual_time(main)


def test_tiers_that_cannot_be_stopped_keep_their_slots_until_they_are() -> None:
    async def main(world: World) -> None:
        names = names_of(6)
        world.tiers.tiers = dict.fromkeys(names[:4], "nvme")
        world.tiers.stuck_after, world.tiers.close_s = 2, 20.0
        world.has("u0", names)
        bringing = KvLoadSpec(6, (world.source("u0", 6),))
        fetching = asyncio.ensure_future(world.fetcher.fetch(reuse_job(names), None, bringing))
        await asyncio.sleep(2.5)
        world.right(names, [0, 1])
        ((_, reason, late),) = world.receiver.ended
        assert reason is not None
        assert late == (5, 7), "what it may still write to; nobody else has been asked meanwhile"
        report = await fetching
        assert (report.brought[0].reason or "").startswith("transfer_failed")
        assert world.receiver.freed == [(5, 7)]
        assert world.tiers.closed == 1
        assert world.loop.time() - BEGIN_S > 20.0

    on_virtual_time(main)


def test_tiers_that_stall_cost_a_hand_off_no_more_than_the_bound() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.spaces["p0"], 4)
        world.tiers.tiers = dict.fromkeys(names, "nvme")
        world.tiers.stuck_after = 1
        remote = remote_kv(world.spaces["p0"], world.receiver, ("mem://p0",))
        report = await world.fetcher.fetch(fetch_job(names, LAYOUT), remote, KvLoadSpec(4))
        world.right(names, range(4))
        assert report.reason is None
        assert world.loop.time() - BEGIN_S == pytest.approx(2.0, abs=0.1)

    on_virtual_time(main)


@pytest.mark.parametrize("turns", range(0, 60, 2))
def test_cancelling_at_any_moment_frees_the_slots_and_the_holders(turns: int) -> None:
    async def main(world: World) -> None:
        names = names_of(5)
        world.tiers.tiers = dict.fromkeys(names[:2], "dram")
        world.has("u0", names)
        bringing = KvLoadSpec(5, (world.source("u0", 5),))
        fetching = asyncio.ensure_future(world.fetcher.fetch(reuse_job(names), None, bringing))
        for _ in range(turns):
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait((fetching,))
        await world.fetcher.close()
        await asyncio.sleep(0.1)
        assert len(world.receiver.ended) == (turns > 0)
        late = world.receiver.ended[0][2] if world.receiver.ended else ()
        assert world.receiver.freed == ([late] if late else [])
        assert not any(lease.startswith("reuse") for lease in world.spaces["u0"].leases)

    on_virtual_time(main)


def test_when_the_time_is_over_no_further_holder_is_asked_or_blamed() -> None:
    """The prompt is being computed by then. A holder that had no time would look like one that fails."""

    async def main(world: World) -> None:
        names = names_of(4)
        world.tiers.tiers = dict.fromkeys(names[:2], "nvme")
        world.tiers.stuck_after, world.tiers.close_s = 0, 0.02
        world.has("u0", names)
        bringing = KvLoadSpec(4, (world.source("u0", 4),), patience_s=0.0)
        report = await world.fetcher.fetch(reuse_job(names), None, bringing)
        assert [each.origin for each in report.brought] == ["nvme"]
        assert reuse_lease("u0") not in {**world.spaces["u0"].leases, **world.spaces["u0"].tombstoned}
        world.tiers.tiers.clear()
        again = replace(reuse_job(names), work_id=8)
        report = await world.fetcher.fetch(again, None, KvLoadSpec(4, (world.source("u0", 4),)))
        assert [(each.origin, each.blocks) for each in report.brought] == [("peer", 4)]

    on_virtual_time(main)


@pytest.mark.parametrize("after_ms", range(1, 14))
def test_a_cancelled_fetch_lets_go_of_a_holder_that_is_sending(after_ms: int) -> None:
    """The blocks it shares stay pinned there until it hears of it."""

    async def main(world: World) -> None:
        names = names_of(8)
        world.has("u0", names)
        fetching = asyncio.ensure_future(
            world.fetcher.fetch(reuse_job(names), None, KvLoadSpec(8, (world.source("u0", 8),)))
        )
        await asyncio.sleep(after_ms / 1e3)
        assert not fetching.done()
        fetching.cancel()
        await asyncio.wait((fetching,))
        await world.fetcher.close()
        await asyncio.sleep(0.1)
        assert not any(lease.startswith("reuse") for lease in world.spaces["u0"].leases)

    on_virtual_time(main)


def test_while_tiers_may_still_write_no_hand_off_begins() -> None:
    """Both would write to the same slots."""

    async def main(world: World) -> None:
        names = ready_lease(world.spaces["p0"], 4)
        world.tiers.tiers = dict.fromkeys(names, "nvme")
        world.tiers.stuck_after, world.tiers.close_s = 1, 20.0
        remote = remote_kv(world.spaces["p0"], world.receiver, ("mem://p0",))
        report = await world.fetcher.fetch(fetch_job(names, LAYOUT), remote, KvLoadSpec(4))
        assert report.reason == "transfer_failed: what was to bring other blocks could not be stopped"
        world.right(names, [0])
        assert world.receiver.freed == [(3, 5, 7)]

    on_virtual_time(main)
