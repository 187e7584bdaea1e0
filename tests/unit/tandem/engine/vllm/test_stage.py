"""The stage with ranks that compute nothing: leases, fetches, waiting, quarantine, and what ranks are told."""

import asyncio
import socket

import pytest

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import Handle, chain_names, pack_tokens
from tandem.core.messages import RemoteKv
from tandem.core.metrics import NullMeter
from tandem.core.request import ChildRequest
from tandem.engine.digest import Digester, unbind
from tandem.engine.protocol import FetchJob, FirstTokens, Gone, Pending
from tandem.engine.vllm.conduit_messages import First
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, ticket
from tests.worlds.stage_ranks import BLOCK_TOKENS, ROOT, FakeRank, StageWorld, page_format, stage_world

FIRST = FirstTokens(((0, 7, None),))
PROMPT = tuple(range(300, 320))
"""Two full blocks and a tail of four."""


def names(prompt: tuple[int, ...] = PROMPT) -> tuple[bytes, ...]:
    return chain_names(ROOT, pack_tokens(prompt), BLOCK_TOKENS)


def fill(world: StageWorld, seed: int = 1):  # type: ignore[no-untyped-def]
    """Bytes of block `index`, the same for every rank."""
    size = world.stage.layout.block_bytes
    return lambda index: bytes((seed * 31 + index * 7 + at) % 251 for at in range(size))


async def prefilled(world: StageWorld, prompt: tuple[int, ...] = PROMPT, seed: int = 1) -> int:
    """A prefill whose blocks all ranks have saved, and that has ended."""
    work = world.open(prompt, "prefill")
    params = await world.admitted(work)
    for rank in world.ranks:
        rank.save(params, range(len(params.slots)), fill(world, seed))
    world.stage.first_sampled(work, FIRST)
    world.stage.close(work)
    for rank in world.ranks:
        rank.end(work)
    await world.until(lambda: work not in world.stage.books._works)
    return work


def hand_over(source: StageWorld, target: StageWorld, lease: str, job: FetchJob) -> None:
    digester = Digester(target.stage.layout)
    for each in job.targets:
        handle = source.stage.look(lease, each.name)
        assert isinstance(handle, Handle)
        block = source.stage.memory.block(handle.slot)
        words = digester.content_words(block)
        assert unbind(handle.digests, source.stage.epoch, each.name, handle.generation) == words
        target.stage.memory.block(each.slot)[:] = block
        target.stage.landed(job.work_id, each.index, words)
    target.stage.fetch_ended(job.work_id, None)


# -- holder --


@pytest.mark.parametrize("tensor", [1, 2, 4])
async def test_a_block_can_be_pulled_once_every_rank_that_owns_a_part_has_saved_it(tensor: int) -> None:
    async with stage_world(tensor=tensor) as world:
        work = world.open(PROMPT, "prefill")
        params = await world.admitted(work)
        assert (len(params.slots), params.save, params.load, params.held) == (3, 0, 0, ())
        writers = [rank for rank in world.ranks if rank.part.writes]
        assert len(writers) == min(2, tensor), "with more ranks than heads some only read"
        lease = f"lease-{work}"
        heard = asyncio.Event()
        unwatch = world.stage.watch(lease, heard.set)
        for rank in world.ranks:
            assert isinstance(world.stage.look(lease, names()[0]), Pending)
            rank.save(params, (0,), fill(world))
        await world.until(lambda: isinstance(world.stage.look(lease, names()[0]), Handle))
        async with asyncio.timeout(60.0):
            await heard.wait()
        unwatch()
        handle = world.stage.look(lease, names()[0])
        assert isinstance(handle, Handle)
        assert bytes(world.stage.memory.block(handle.slot)) == fill(world)(0)
        words = Digester(world.stage.layout).content_words(fill(world)(0))
        assert unbind(handle.digests, world.stage.epoch, names()[0], handle.generation) == words
        assert isinstance(world.stage.look(lease, names()[1]), Pending)
        await world.until(lambda: list(world.names) == [names()[0]])
        world.stage.close(work)
        for rank in world.ranks:
            rank.end(work)
        await world.until(lambda: world.stage.books.pool.used == 0)


async def test_the_tail_is_under_the_lease_and_nowhere_else() -> None:
    async with stage_world() as world:
        work = await prefilled(world)
        assert world.stage.snapshot() == names()
        await world.until(lambda: sorted(world.names) == sorted(names()))
        lease = world.stage.books.leases._leases[f"lease-{work}"]
        (tail,) = set(lease.exports) - set(names())
        assert isinstance(world.stage.look(f"lease-{work}", tail), Handle)
        assert world.stage.first_tokens(f"lease-{work}") == FIRST
        assert world.stage.hold(tail) is None
        assert not world.stage.share("reuse-1", (tail,), 1.0) or isinstance(world.stage.look("reuse-1", tail), Gone)
        assert world.stage.renew(f"lease-{work}")
        world.stage.release(f"lease-{work}")
        assert world.stage.lease_ended(f"lease-{work}")
        await world.until(lambda: not world.stage.books.pool.used)
        assert world.stage.books.pool.cached == 2


async def test_a_lease_ends_by_itself() -> None:
    async with stage_world() as world:
        world.stage.share("reuse-0", (), 0.05)
        work = await prefilled(world)
        await world.until(lambda: not world.stage.lease_exists("reuse-0"))
        assert world.stage.lease_exists(f"lease-{work}")
        world.stage.begin_epoch(99)
        assert world.stage.epoch == 99
        assert not world.stage.lease_exists(f"lease-{work}")
        await world.until(lambda: not world.stage.books.pool.used)


async def test_a_cancelled_prefill_frees_everything_once_no_rank_writes_any_more() -> None:
    async with stage_world(tensor=2) as world:
        work = world.open(PROMPT, "prefill")
        params = await world.admitted(work)
        world.ranks[0].save(params, (0, 1), fill(world))
        world.ranks[1].save(params, (0,), fill(world))
        await asyncio.sleep(0.01)
        world.stage.close(work)
        assert not world.stage.lease_exists(f"lease-{work}")
        await asyncio.sleep(0.02)
        assert world.stage.books.pool.used >= 2, "the other rank may be in the middle of a step"
        world.ranks[1].save(params, (0, 1), fill(world))
        for rank in world.ranks:
            rank.end(work)
        await world.until(lambda: world.stage.books.pool.used == 0)
        assert world.stage.snapshot() == names()[:1], "what all ranks have saved is good"


async def test_slots_of_a_work_that_never_reached_the_engine_come_back_by_themselves() -> None:
    async with stage_world(settings=StageSettings(blocks=8, late_s=0.05)) as world:
        work = world.open(PROMPT, "prefill")
        await world.admitted(work)
        world.stage.close(work)
        world.stage.close(work)
        await world.until(lambda: world.stage.books.pool.used == 0)


async def test_a_lease_that_was_released_before_its_work_came_refuses_it() -> None:
    async with stage_world() as world:
        world.stage.release("lease-1")
        with pytest.raises(TandemError) as late:
            world.open(PROMPT, "prefill")
        assert late.value.code == "cancelled"


async def test_a_damaged_block_is_gone_and_who_loads_it_does_without() -> None:
    async with stage_world() as world:
        work = await prefilled(world)
        handle = world.stage.look(f"lease-{work}", names()[1])
        assert isinstance(handle, Handle)
        assert not world.stage.recheck(f"lease-{work}", names()[1])
        again = world.open(PROMPT, "local")
        params = await world.admitted(again)
        world.ranks[0].begin(params)
        world.stage.memory.block(handle.slot)[9] ^= 4
        assert world.stage.recheck(f"lease-{work}", names()[1])
        assert isinstance(world.stage.look(f"lease-{work}", names()[1]), Gone)
        await asyncio.sleep(0.02)
        (ended,) = world.ranks[0].step()
        assert (ended.copied, ended.failed) == (1, (101,))
        await world.until(lambda: list(world.names) == [names()[0]])
        world.stage.close(again)


async def test_held_blocks_are_given_to_nobody_else() -> None:
    async with stage_world(blocks=8) as world:
        work = await prefilled(world)
        world.stage.release(f"lease-{work}")
        handle = world.stage.hold(names()[0])
        assert handle is not None
        await prefilled(world, tuple(range(400, 452)), 2)
        assert bytes(world.stage.memory.block(handle.slot)) == fill(world)(0)
        world.stage.unhold(handle.slot)


async def test_blocks_are_shared_under_a_lease_of_nobodys_work() -> None:
    async with stage_world() as world:
        await prefilled(world)
        assert world.stage.share("reuse-1", (*names(), bytes(16)), 30.0)
        assert isinstance(world.stage.look("reuse-1", names()[0]), Handle)
        assert isinstance(world.stage.look("reuse-1", bytes(16)), Gone)
        world.stage.release("reuse-1")
        assert not world.stage.share("reuse-1", names(), 30.0), "it has ended"


# -- receiver --


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 20])
@pytest.mark.parametrize("tensors", [(1, 1), (2, 1), (1, 2), (4, 2)])
async def test_a_hand_off_is_the_same_bytes_however_the_ends_are_sharded(
    length: int, tensors: tuple[int, int]
) -> None:
    prompt = tuple(range(300, 300 + length))
    async with stage_world(tensor=tensors[0]) as source, stage_world(tensor=tensors[1], epoch=4) as target:
        first = await prefilled(source, prompt)
        work = target.open(prompt, "decode")
        params = await target.admitted(work)
        assert (params.load, params.first, params.save) == (length, True, len(params.slots))
        await target.until(lambda: work in target.fetches)
        assert target.fetches[work].hand_off
        for rank in target.ranks:
            rank.begin(params)
            assert rank.step() == []
        hand_over(source, target, f"lease-{first}", target.fetches[work])
        await asyncio.sleep(0.01)
        assert [rank.step() for rank in target.ranks] == [[]] * tensors[1], "the next position is not known"
        target.stage.provide_first(work, 0, 7)
        await asyncio.sleep(0.01)
        for rank in target.ranks:
            (ended,) = rank.step()
            assert (ended.first, ended.failed, ended.copied) == (7, (), len(params.slots))
        for index, slot in enumerate(params.slots):
            assert bytes(target.stage.memory.block(slot)) == fill(source)(index)
        await target.until(lambda: target.stage.books.pool.used == 0)
        assert sorted(target.stage.snapshot()) == sorted(names(prompt)), "the tail is not kept"
        assert target.stage.sources(work).fetched == length
        target.stage.close(work)


async def test_what_is_here_is_not_fetched_again() -> None:
    async with stage_world() as world:
        await prefilled(world)
        longer = (*PROMPT[:16], *range(500, 520))
        work = world.open(longer, "decode")
        params = await world.admitted(work)
        await world.until(lambda: work in world.fetches)
        assert [target.index for target in world.fetches[work].targets] == [2, 3, 4]
        assert params.held == (0, 1)
        world.ranks[0].begin(params)
        world.stage.sample_first(work)
        world.stage.fetch_ended(work, "nobody has them")
        await asyncio.sleep(0.01)
        (ended,) = world.ranks[0].step()
        assert (ended.copied, ended.failed, ended.first) == (2, (102, 103, 104), None)
        assert world.stage.sources(work).staged == 16
        world.stage.close(work)


async def test_positions_known_before_there_is_room_are_not_lost() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "decode", branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
        world.stage.provide_first(work, 0, 7)
        world.stage.provide_first(work, 1, 8)
        params = await world.admitted(work)
        world.ranks[0].begin(params)
        await world.until(lambda: work in world.fetches)
        world.stage.fetch_ended(work, "all are lost")
        await asyncio.sleep(0.01)
        (ended,) = world.ranks[0].step()
        assert (ended.first, len(ended.failed)) == (7, 3)
        world.stage.close(work)


async def test_prefill_that_is_lost_before_there_is_room_is_not_pulled_from() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "decode")
        world.stage.sample_first(work)
        params = await world.admitted(work)
        assert work not in world.fetches
        world.ranks[0].begin(params)
        (ended,) = world.ranks[0].step()
        assert (ended.first, len(ended.failed)) == (None, 3)
        world.stage.close(work)


@pytest.mark.parametrize("mode", ["local", "prefill"])
@pytest.mark.parametrize("landing", [(), (0,), (0, 1), (1,)])
async def test_leading_blocks_are_brought_and_the_rest_is_computed(mode: str, landing: tuple[int, ...]) -> None:
    async with stage_world() as source, stage_world(epoch=4) as world:
        await prefilled(source)
        work = world.open(PROMPT, mode)
        prefix = world.stage.prefix(work)
        assert prefix is not None
        assert (prefix.names, prefix.here) == (names(), 0)
        world.stage.bring(work, 2)
        params = await world.admitted(work)
        assert world.stage.prefix(work) is None
        assert params.load == 16
        await world.until(lambda: work in world.fetches)
        job = world.fetches[work]
        assert not job.hand_off
        assert source.stage.share("reuse-1", names(), 5.0)
        rank = world.ranks[0]
        rank.begin(params)
        hand_over(source, world, "reuse-1", FetchJob(work, tuple(t for t in job.targets if t.index in landing)))
        await asyncio.sleep(0.01)
        (ended,) = rank.step()
        assert ended.failed == tuple(100 + index for index in range(2) if index not in landing)
        if mode == "prefill":
            rank.save(params, range(3), fill(source))
            await world.until(
                lambda: all(isinstance(world.stage.look(f"lease-{work}", name), Handle) for name in names())
            )
            handle = world.stage.look(f"lease-{work}", names()[1])
            assert isinstance(handle, Handle)
            assert bytes(world.stage.memory.block(handle.slot)) == fill(source)(1)
        world.stage.close(work)
        rank.end(work)
        await world.until(lambda: not world.stage.books._works)


async def test_a_local_work_of_which_nothing_is_here_is_none_of_the_stages_business() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "local")
        await world.until(lambda: work in world.params)
        assert world.params[work] is None
        world.stage.close(work)
        kept = world.open(PROMPT, "local", save=True)
        params = await world.admitted(kept)
        assert (len(params.slots), params.save, params.load) == (2, 0, 0)
        world.ranks[0].save(params, range(2), fill(world))
        world.stage.close(kept)
        world.ranks[0].end(kept)
        await world.until(lambda: len(world.names) == 2 and not world.stage.books.pool.used)


async def test_a_private_work_has_no_names() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "prefill", private=True)
        assert world.stage.prefix(work) is None
        params = await world.admitted(work)
        world.ranks[0].save(params, range(3), fill(world))
        await world.until(lambda: isinstance(world.stage.look(f"lease-{work}", names()[0]), Handle))
        assert world.stage.snapshot() == ()
        assert not world.names
        world.stage.close(work)
        world.ranks[0].end(work)
        await world.until(lambda: world.stage.books.pool.used == 0)


async def test_late_slots_are_nobodys_until_nothing_can_come_any_more() -> None:
    async with stage_world(blocks=6) as world:
        work = world.open(PROMPT, "decode")
        await world.admitted(work)
        await world.until(lambda: work in world.fetches)
        slots = tuple(target.slot for target in world.fetches[work].targets)
        world.stage.fetch_ended(work, "abandoned", slots[1:])
        assert world.stage.books.pool.quarantined == 2
        world.stage.close(work)
        await world.until(lambda: not world.stage.books._works)
        assert (world.stage.books.pool.quarantined, world.stage.books.pool.available) == (2, 4)
        world.stage.quarantine_over(slots[1:])
        assert world.stage.books.pool.available == 6


async def test_a_work_that_ends_while_it_is_fetched_for_leaves_its_slots_in_quarantine() -> None:
    async with stage_world(blocks=6) as world:
        work = world.open(PROMPT, "decode")
        await world.admitted(work)
        await world.until(lambda: work in world.fetches)
        slots = tuple(target.slot for target in world.fetches[work].targets)
        world.stage.close(work)
        assert world.stage.books.pool.quarantined == 3
        world.stage.landed(work, 0, bytes(16))
        world.stage.fetch_ended(work, "cancelled", slots[:1])
        assert world.stage.books.pool.quarantined == 1
        world.stage.quarantine_over(slots[:1])
        assert world.stage.books.pool.available == 6


async def test_a_block_whose_slot_is_withheld_is_not_saved_and_not_exported() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "prefill")
        world.stage.bring(work, 2)
        params = await world.admitted(work)
        await world.until(lambda: work in world.fetches)
        late = (params.slots[1],)
        rank = world.ranks[0]
        rank.begin(params)
        world.stage.fetch_ended(work, "too slow", late)
        await asyncio.sleep(0.01)
        (ended,) = rank.step()
        assert ended.failed == (100, 101)
        rank.save(params, range(3), fill(world))
        assert isinstance(world.stage.look(f"lease-{work}", names()[1]), Gone)
        await world.until(lambda: isinstance(world.stage.look(f"lease-{work}", names()[0]), Handle))
        assert bytes(world.stage.memory.block(late[0])) == bytes(world.stage.layout.block_bytes)
        world.stage.quarantine_over(late)
        world.stage.close(work)
        rank.end(work)


# -- room --


async def test_prefills_wait_while_exports_hold_their_share_and_decodes_do_not_wait_for_them() -> None:
    async with stage_world(blocks=8) as world:
        first = world.open(tuple(range(300, 330)), "prefill")
        second = world.open(tuple(range(400, 430)), "prefill")
        decode = world.open(tuple(range(500, 530)), "decode")
        await world.admitted(first)
        await world.admitted(decode)
        other = world.open(tuple(range(600, 610)), "decode")
        await asyncio.sleep(0.05)
        assert second not in world.params
        assert other not in world.params, "hand-offs have the other half"
        world.stage.fetch_ended(decode, "given up")
        world.stage.close(decode)
        await world.admitted(other)
        world.stage.close(first)
        world.ranks[0].end(first)
        await world.admitted(second)
        for work in (second, other):
            world.stage.close(work)
            world.ranks[0].end(work)


async def test_who_waits_too_long_is_refused() -> None:
    async with stage_world(settings=StageSettings(blocks=4, queue_s=0.1)) as world:
        first = world.open(PROMPT, "prefill")
        await world.admitted(first)
        second = world.open(tuple(range(400, 420)), "prefill")
        await world.until(lambda: second in world.refused)
        assert world.refused[second].code == "deadline_exceeded"
        assert world.stage.lease_ended(f"lease-{second}")
        world.stage.close(second)
        world.stage.close(first)
        world.ranks[0].end(first)
        await world.until(lambda: world.stage.books.pool.used == 0)


async def test_impossible_works_and_full_queues_are_refused_at_once() -> None:
    async with stage_world(settings=StageSettings(blocks=4, max_waiting=1)) as world:
        with pytest.raises(TandemError) as large:
            world.open(tuple(range(100)), "decode")
        assert large.value.code == "out_of_blocks"
        world.open(PROMPT, "prefill")
        with pytest.raises(TandemError) as full:
            world.open(PROMPT, "prefill")
        assert full.value.code == "queue_full"


# -- ranks --


async def test_a_lost_rank_is_told_of_at_once_in_one_sentence() -> None:
    async with stage_world(tensor=2) as world:
        world.ranks[1].client.close()
        await world.until(lambda: world.lost)
        (sentence,) = world.lost
        assert sentence.startswith("rank 1 of 2 of the engine (process ")


async def test_ranks_that_do_not_come_are_named() -> None:
    async with stage_world() as world:
        with pytest.raises(TandemError) as error:
            async with stage_world(tensor=0, ready_s=0.05) as _:
                raise AssertionError("unreachable")
        assert error.value.code == "engine_failed"
    assert world.lost == []


async def test_a_second_rank_of_the_same_number_and_noise_are_hung_up_on() -> None:
    async with stage_world() as world:
        path = world.stage._conduit.path
        twin = FakeRank(path, 0, 1, page_format())
        await world.until(lambda: twin.client.receive() == [] and twin.client.lost)
        assert not world.lost
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(path)
            stranger.send(b"nothing that can be understood")
            stranger.settimeout(5)
            assert await asyncio.to_thread(stranger.recv, 10) == b""
        assert not world.lost
        world.ranks[0].client._socket.send(b"noise")
        await world.until(lambda: world.lost)
        assert "said something that cannot be understood" in world.lost[0]


async def test_a_rank_that_reads_late_gets_everything_in_order() -> None:
    async with stage_world(blocks=4) as world:
        for number in range(2000):
            world.stage._conduit.tell(First(number, 0, number))
        await asyncio.sleep(0.01)
        heard: list[int] = []
        while len(heard) < 2000:
            heard += [message.token for message in world.ranks[0].client.receive() if isinstance(message, First)]
            await asyncio.sleep(0)
        assert heard == list(range(2000))


async def test_a_rank_sees_the_end_of_the_stage() -> None:
    async with stage_world() as world:
        work = world.open(PROMPT, "decode")
        params = await world.admitted(work)
        rank = world.ranks[0]
        rank.begin(params)
        await world.stage.stop()
        (ended,) = rank.step()
        assert len(ended.failed) == 3
        world.stage.close(work)


# -- with the real fetch and export --


async def test_the_ordinary_fetch_brings_blocks_from_stage_to_stage_while_they_are_saved() -> None:
    clock, deadlines, fabric = SystemClock(), Deadlines(), MemoryNetwork()
    async with stage_world() as source, stage_world(epoch=4) as target:
        transport = MemoryTransport(fabric, "p")
        address = await transport.serve(Exporter(source.stage, KEYRING, clock, deadlines))
        fetcher = Fetcher(target.stage, (MemoryTransport(fabric, "d"),), clock, deadlines, NullMeter())
        first, work = source.open(PROMPT, "prefill"), target.open(PROMPT, "decode")
        saving, params = await source.admitted(first), await target.admitted(work)
        await target.until(lambda: work in target.fetches)
        remote = RemoteKv("p", 3, (address,), f"lease-{first}", ticket(3, f"lease-{first}", 4, clock.wall() + 60))
        fetch = asyncio.create_task(fetcher.fetch(target.fetches[work], remote))
        rank = target.ranks[0]
        rank.begin(params)
        for index in range(3):
            source.ranks[0].save(saving, (index,), fill(source))
            await target.until(lambda index=index: target.stage.books._works[work].fetched >= 8 * index + 4)  # type: ignore[misc]
        source.stage.first_sampled(first, FIRST)
        source.stage.close(first)
        source.ranks[0].end(first)
        report = await fetch
        assert (report.blocks, report.acknowledged) == (3, True)
        await source.until(lambda: not source.stage.lease_exists(f"lease-{first}"))
        target.stage.provide_first(work, 0, 7)
        await asyncio.sleep(0.01)
        (ended,) = rank.step()
        assert (ended.copied, ended.failed) == (3, ())
        target.stage.close(work)
        await source.until(lambda: source.stage.books.pool.used == 0)
        await transport.close()
