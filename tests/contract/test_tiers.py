"""What every implementation of `Tiers` does, the simulated one included."""

import asyncio
from pathlib import Path

import pytest

from kv_transfer.tiers.protocol import Lost, Pinning, Restored
from tandem.process.system import SystemClock
from tests.worlds.tier_stage import BLOCK, KINDS, ON_DISK, MemoryDisk, named, stage, until


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_offered_comes_back_byte_for_byte_in_order(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        names = [named(i) for i in range(20)]
        await b.keep(names)
        assert len(b.tiers.where(names)) == 20
        outcomes = await b.restore(names)
        assert b.good(names, outcomes)
        fastest = b.tiers.shapes[0].name
        assert {outcome.tier for outcome in outcomes if isinstance(outcome, Restored)} == {fastest}


@pytest.mark.parametrize("kind", ["memory-both", "both"])
async def test_a_prompt_longer_than_one_stretch_comes_whole_and_promotes_without_losing_its_own_tail(
    kind: str, tmp_path: Path
) -> None:
    async with stage(kind, tmp_path, blocks=704, pool_blocks=704, dram_bytes=320 * BLOCK) as b:
        names = [named(i) for i in range(640)]
        for start in range(0, 640, 64):
            b.tiers.offer(b.pool.compute(names[start : start + 64]))
            await b.tiers.settle()
        assert len(b.tiers.where(names)) == 640
        assert b.good(names, await b.restore(names))
        assert b.good(names, await b.restore(names))


@pytest.mark.parametrize("kind", KINDS)
async def test_where_ends_at_the_first_block_that_is_nowhere(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(0), named(1), named(3)])
        assert b.tiers.where([named(i) for i in range(4)]) == (b.tiers.shapes[0].name,) * 2
        assert b.tiers.where([named(9)]) == ()
        assert b.tiers.where([]) == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_that_is_not_there_is_lost_and_the_others_come(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(0), named(2)])
        zero, one, two = await b.restore([named(0), named(1), named(2)])
        assert isinstance(zero, Restored)
        assert one == Lost(1, "absent")
        assert isinstance(two, Restored)
        assert two.index == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_that_left_the_pool_before_its_turn_is_not_copied(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        offers = b.pool.compute([named(0), named(1)])
        b.pool.evict(named(0))
        b.tiers.offer(offers)
        await b.tiers.settle()
        assert b.tiers.where([named(1)])
        assert not b.tiers.where([named(0)])
        assert b.figure("tandem_tier_dropped_total", b.tiers.shapes[0].name, "gone") == 1
        assert not b.pool.held


@pytest.mark.parametrize("kind", KINDS)
async def test_offers_that_come_too_fast_are_dropped_and_counted(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, offers_max=4) as b:
        b.tiers.offer(b.pool.compute([named(i) for i in range(10)]))
        await b.tiers.settle()
        assert len(b.tiers.where([named(i) for i in range(10)])) == 4
        assert b.figure("tandem_tier_dropped_total", b.tiers.shapes[0].name, "line_full") == 6


@pytest.mark.parametrize("kind", KINDS)
async def test_watchers_hear_of_every_change_and_capacity_is_kept(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32) as b:
        for start in range(0, 96, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
            snapshot = b.tiers.snapshot()
            assert {tier: sorted(view) for tier, view in b.views.items()} == {
                tier: sorted(names) for tier, names in snapshot.items()
            }
            for shape in b.tiers.shapes:
                assert len(snapshot[shape.name]) <= shape.blocks
        assert b.tiers.where([named(95)])
        assert not b.tiers.where([named(0)])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pinned_prefix_outlives_everything_that_passes_through(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32) as b:
        kept = [named(i, "kept") for i in range(6)]
        await b.keep(kept[:3])
        assert b.tiers.pin(kept, Pinning(1, 60.0)) == 6
        await b.keep(kept[3:])
        await b.keep([named(i) for i in range(128)])
        assert len(b.tiers.where(kept)) == 6
        assert b.good(kept, await b.restore(kept))
        b.tiers.unpin(kept)
        await b.keep([named(i, "q") for i in range(128)])
        await b.keep([named(i, "r") for i in range(128)])
        assert b.tiers.where(kept) == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_pins_end_at_the_quota(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32, pin_share=0.25) as b:
        many = min(shape.blocks for shape in b.tiers.shapes) // 4
        assert b.tiers.pin([named(i) for i in range(60)], Pinning(1, 60.0, "t")) == many
        assert b.tiers.pin([named(99)], Pinning(1, 60.0, "t")) == 0
        assert b.tiers.pin([named(99)], Pinning(2, 60.0, "t")) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tenant_keeps_within_its_share_and_takes_nobody_elses(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32, tenant_share=0.5) as b:
        mine, theirs = [named(i, "mine") for i in range(6)], [named(i, "their") for i in range(60)]
        await b.keep(mine, "me")
        await b.keep(theirs, "them")
        snapshot = b.tiers.snapshot()
        for shape in b.tiers.shapes:
            held = [name for name in snapshot[shape.name] if name.startswith(b"their")]
            assert len(held) <= shape.blocks // 2
        assert len(b.tiers.where(mine)) == 6


@pytest.mark.parametrize("kind", KINDS)
async def test_a_quota_that_shrinks_is_enforced_at_once(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(i) for i in range(10)], "t")
        await b.keep([named(i, "other") for i in range(4)], "o")
        b.tiers.limit("t", 3 * BLOCK)
        for names in b.tiers.snapshot().values():
            assert sorted(name for name in names if name.startswith(b"p/")) == [named(7), named(8), named(9)]
            assert len(names) == 7
        await b.keep([named(20)], "t")
        assert not b.tiers.where([named(7)])
        b.tiers.limit("t", 0)
        await b.keep([named(21)], "t")
        assert not b.tiers.where([named(21)])
        b.tiers.limit("t", None)
        await b.keep([named(22), named(23)], "t")
        assert len(b.tiers.where([named(22), named(23)])) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_forgotten_blocks_are_gone_and_may_come_again(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(0), named(1)])
        b.tiers.forget([named(0), named(7)], "damaged")
        assert b.tiers.where([named(0)]) == ()
        assert all(named(0) not in view for view in b.views.values())
        await b.keep([named(0)])
        assert b.good([named(0), named(1)], await b.restore([named(0), named(1)]))


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_lands_after_a_restore_was_stopped(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=64, batch_bytes=BLOCK) as b:
        names = [named(i) for i in range(48)]
        await b.keep(names)
        targets = b.pool.targets(names)
        restoring = b.tiers.restore(targets, b.pool.memory, SystemClock().now() + 5)
        await anext(restoring)
        await restoring.aclose()
        for target in targets:
            b.pool.memory.block(target.slot)[:] = bytes(BLOCK)
        await asyncio.sleep(0.05)
        assert not any(any(b.landed(index)) for index in range(len(targets)))
        assert b.good(names, await b.restore(names))


@pytest.mark.parametrize("kind", KINDS)
async def test_what_has_not_come_at_the_deadline_is_lost_to_this_restore_only(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(0)])
        assert await b.restore([named(0)], within_s=-1.0) == [Lost(0, "deadline")]
        assert b.good([named(0)], await b.restore([named(0)]))


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_being_read_is_not_evicted(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32, batch_bytes=BLOCK) as b:
        names = [named(i) for i in range(8)]
        await b.keep(names)
        restoring = b.tiers.restore(b.pool.targets(names), b.pool.memory, SystemClock().now() + 5)
        outcomes = list(await anext(restoring))
        await b.keep([named(i, "q") for i in range(64)])
        outcomes += [outcome async for batch in restoring for outcome in batch]
        assert b.good(names, outcomes)


@pytest.mark.parametrize("kind", ON_DISK)
async def test_what_is_on_nvme_is_found_again(kind: str, tmp_path: Path) -> None:
    disk, names = MemoryDisk(), [named(i) for i in range(12)]
    async with stage(kind, tmp_path, disk=disk) as b:
        await b.keep(names, "t")
    async with stage(kind, tmp_path, disk=disk) as b:
        await until(lambda: len(b.views.get("nvme", {})) == 12)
        assert b.good(names, await b.restore(names))
        b.tiers.limit("t", 0)
        assert b.tiers.snapshot() == {"nvme": ()}


@pytest.mark.parametrize("kind", ["memory-both", "both"])
async def test_what_only_nvme_has_comes_from_there_and_goes_up(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path, blocks=32, dram_bytes=8 * BLOCK) as b:
        names = [named(i) for i in range(16)]
        await b.keep(names)
        assert b.tiers.where(names) == ("nvme",) * 8 + ("dram",) * 8
        outcomes = await b.restore(names)
        assert b.good(names, outcomes)
        assert [outcome.tier for outcome in outcomes if isinstance(outcome, Restored)] == ["nvme"] * 8 + ["dram"] * 8
        assert b.good(names[:4], await b.restore(names[:4]))
        assert b.tiers.where(names[:4]) == ("dram",) * 4


@pytest.mark.parametrize("kind", KINDS)
async def test_costs_are_learned_and_grow_with_what_is_asked(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        names = [named(i) for i in range(16)]
        await b.keep(names)
        for _ in range(8):
            await b.restore(names)
        tiers = b.tiers.where(names)
        assert 0 < b.tiers.expected_s(tiers[:1], BLOCK) <= b.tiers.expected_s(tiers, BLOCK) < 1.0
        assert b.tiers.expected_s((), BLOCK) == 0.0
        assert all(shape.bytes_per_s > 0 and shape.latency_s >= 0 for shape in b.tiers.shapes)


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_twice_is_as_good_as_once(kind: str, tmp_path: Path) -> None:
    async with stage(kind, tmp_path) as b:
        await b.keep([named(0)])
        await b.tiers.close()
        await b.tiers.close()
