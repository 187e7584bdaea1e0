"""What every KV transport does, the in-memory one included."""

import asyncio
import gc
import importlib.util
import os
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.transport.protocol import Alive, BlockReceived, Missing, reuse_lease
from tandem.core.errors import TandemError
from tandem.engine.digest import Digester, bind
from tandem.engine.protocol import FirstTokens
from tests.contract.block_space import FIRST, content, name_of, ready_lease, ticket
from tests.worlds import transport_stage
from tests.worlds.certificates import HAS_OPENSSL
from tests.worlds.transport_stage import PATIENT, collect, eventually, one_by_one, past_alive

stage = partial(transport_stage.stage, limits=PATIENT)
"""None of these tests is about a bound on waiting."""
HAS_NIXL = importlib.util.find_spec("nixl_cu12") is not None
KINDS = (
    "mem",
    "tcp",
    pytest.param("tls", marks=pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl")),
    "shm",
    pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="the extra `nixl` is not installed")),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "block_bytes"), [(1, 2048), (40, 2048), (5, 1 << 20), (0, 2048)])
async def test_a_pull_brings_every_block_in_order_and_the_first_tokens_last(
    kind: str, count: int, block_bytes: int
) -> None:
    async with stage(kind, block_bytes, 2 * max(count, 1) + 1) as b:
        names = ready_lease(b.holder, count)
        *landed, first = await b.events(b.request(names))
        assert first == FIRST
        assert [event.index for event in landed if isinstance(event, BlockReceived)] == list(range(count))
        assert len(landed) == count
        digester = Digester(b.holder.layout)
        for event in landed:
            assert isinstance(event, BlockReceived)
            assert b.got(event.index) == content(names[event.index], block_bytes)
            handle = event.handle
            words = digester.content_words(b.got(event.index))
            assert handle.digests == bind(words, b.holder.epoch, names[event.index], handle.generation)


@pytest.mark.parametrize("kind", KINDS)
async def test_blocks_travel_while_later_ones_are_still_computed(kind: str) -> None:
    async with stage(kind) as b:
        names = tuple(name_of(i) for i in range(3))
        pull = await b.open(b.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert await anext(events) == Alive()  # The lease is not known yet.
            b.holder.lease("lease", names)
            for index in range(3):
                b.holder.complete("lease", index)
                event = await past_alive(events)
                assert isinstance(event, BlockReceived)
                assert event.index == index
            b.holder.sample("lease")
            rest = [event async for event in events if not isinstance(event, Alive)]
        assert rest == [FIRST]
        await pull.close()
        assert b.holder.leases["lease"].renewed >= 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_that_is_gone_is_reported_and_the_rest_still_comes(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 3)
        b.holder.lose("lease", 1, "evicted")
        one, gone, two, first = await b.events(b.request(names))
        assert isinstance(one, BlockReceived)
        assert gone == Missing(1, "evicted")
        assert isinstance(two, BlockReceived)
        assert two.index == 2
        assert isinstance(first, FirstTokens)


@pytest.mark.parametrize("kind", KINDS)
async def test_under_a_reuse_lease_every_name_is_answered_at_once_and_the_pull_ends(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 3)
        unfinished = name_of(7)
        b.holder.lease("other", (unfinished,))
        lease = reuse_lease("1")
        pull = await b.open(b.request((names[0], unfinished, names[2]), lease))
        one, gone, two = await collect(pull)
        assert [event.index for event in (one, two) if isinstance(event, BlockReceived)] == [0, 2]
        assert isinstance(gone, Missing)
        assert gone.index == 1
        assert b.got(0) == content(names[0], 2048)
        assert b.got(2) == content(names[2], 2048)
        assert lease in b.holder.leases, "what was sent is kept until the receiver has it"
        await pull.acknowledge()
        await pull.close()
        await eventually(lambda: lease not in b.holder.leases)
        # The connection carries the next pull.
        assert (await b.events(b.request(names)))[-1] == FIRST


@pytest.mark.parametrize("kind", KINDS)
async def test_a_holder_that_shares_nothing_now_says_so(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 1)
        b.holder.busy = True
        with pytest.raises(TandemError) as caught:
            await b.events(b.request(names, reuse_lease("1")))
        assert caught.value.code == "kv_gone"


@pytest.mark.parametrize("kind", KINDS)
async def test_acknowledging_ends_the_lease(kind: str) -> None:
    async with stage(kind) as b:
        pull = await b.open(b.request(ready_lease(b.holder, 2)))
        await collect(pull)
        assert "lease" in b.holder.leases
        await pull.acknowledge()
        await pull.close()
        await eventually(lambda: "lease" not in b.holder.leases)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pull_that_is_given_up_half_way_can_end_the_lease(kind: str) -> None:
    async with stage(kind) as b:
        names = tuple(name_of(i) for i in range(3))
        b.holder.lease("lease", names)
        b.holder.complete("lease", 0)
        pull = await b.open(b.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await past_alive(events), BlockReceived)
            await pull.acknowledge()
        await pull.close()
        await eventually(lambda: "lease" not in b.holder.leases)
        await eventually(lambda: b.exporter.pulls == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_block_is_looked_at_and_goes_only_if_the_holder_finds_it_damaged(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 3)
        for index in (0, 2):
            pull = await b.open(b.request(names))
            async with aclosing(one_by_one(pull)) as events:
                assert isinstance(await past_alive(events), BlockReceived)
                if index == 2:
                    b.holder.overwrite(2)
                await pull.refuse(index)
                await pull.acknowledge() if index == 2 else None
            await pull.close()
            await eventually(lambda: b.holder.rechecked == [names[0]])
        await eventually(lambda: "lease" not in b.holder.leases)
        assert b.holder.rechecked == [names[0]]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_damaged_block_is_not_handed_out_again(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 2)
        b.holder.overwrite(1)
        pull = await b.open(b.request(names))
        await collect(pull)
        await pull.refuse(1)
        await eventually(lambda: bool(b.holder.leases["lease"].gone))
        await pull.close()
        _, gone, _ = await b.events(b.request(names))
        assert gone == Missing(1, "damaged")


@pytest.mark.parametrize("kind", KINDS)
async def test_refusals_are_typed_and_leave_the_transport_usable(kind: str) -> None:
    async with stage(kind) as b:
        names = ready_lease(b.holder, 2)
        good = b.request(names)
        foreign = Keyring(TicketKey("k1", b"another key of enough bytes"))
        refused = {
            "ticket_refused": replace(
                good, ticket=ticket(b.holder.epoch, "lease", b.receiver.epoch, 4e9, keyring=foreign)
            ),
            "stale_epoch": replace(good, holder_epoch=5, ticket=ticket(5, "lease", b.receiver.epoch, 4e9)),
            "protocol_mismatch": replace(good, layout=replace(good.layout, packing="interleaved")),
            "kv_gone": b.request(names, "another lease"),
        }
        for code, request in refused.items():
            with pytest.raises(TandemError) as caught:
                await b.events(request)
            assert caught.value.code == code
            if code == "protocol_mismatch":
                assert "packing" in caught.value.message
        assert len(await b.events(good)) == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lease_that_ends_during_a_pull_ends_the_pull(kind: str) -> None:
    async with stage(kind) as b:
        names = tuple(name_of(i) for i in range(2))
        b.holder.lease("lease", names)
        b.holder.complete("lease", 0)
        pull = await b.open(b.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            b.holder.release("lease")
            with pytest.raises(TandemError) as caught:
                await past_alive(events)
        assert caught.value.code == "kv_gone"
        await pull.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_many_pulls_at_once_do_not_mix(kind: str) -> None:
    async with stage(kind, blocks=1024) as b:
        leases = [f"lease-{number:02}" for number in range(32)]
        names = {lease: ready_lease(b.holder, 8, lease) for lease in leases}
        offsets = {lease: 16 * number for number, lease in enumerate(leases)}

        async def pull(lease: str) -> None:
            events = await b.events(b.request(names[lease], lease), offsets[lease])
            assert len(events) == 9

        async with asyncio.TaskGroup() as group:
            for lease in leases:
                group.create_task(pull(lease))
        for lease in leases:
            for index in range(8):
                assert b.got(index, offsets[lease]) == content(names[lease][index], 2048)
        await eventually(lambda: b.exporter.pulls == 0 and not b.holder.watchers)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_holder_that_stops_serving_ends_pulls_in_bounded_time(kind: str) -> None:
    async with stage(kind) as b:
        names = tuple(name_of(i) for i in range(2))
        b.holder.lease("lease", names)
        b.holder.complete("lease", 0)
        pull = await b.open(b.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            await b.serving.close()
            with pytest.raises(TandemError) as caught:
                await past_alive(events)
        assert caught.value.code == "transfer_failed"
        await pull.close()
        with pytest.raises(TandemError) as refused:
            await b.events(b.request(names))
        assert refused.value.code == "transfer_failed"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_byte_arrives_after_close_and_the_holder_lets_go(kind: str) -> None:
    async with stage(kind, 1 << 20, 70) as b:
        names = ready_lease(b.holder, 32)
        pull = await b.open(b.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
        await pull.close()
        before = bytes(b.receiver.memory.buffer)
        await eventually(lambda: b.exporter.pulls == 0 and not b.holder.watchers)
        assert bytes(b.receiver.memory.buffer) == before
        assert len(await b.events(b.request(names))) == 33


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_pull_gives_no_more_events(kind: str) -> None:
    async with stage(kind) as b:
        pull = await b.open(b.request((name_of(0),)))
        await pull.close()
        await pull.close()
        with pytest.raises(TandemError):
            await collect(pull)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_at_any_moment_leaves_nothing_behind(kind: str) -> None:
    async with stage(kind, 65536, 40) as b:
        names = ready_lease(b.holder, 16)
        await b.events(b.request(names))
        finished = 0
        for turns in range(60):
            task = asyncio.create_task(b.events(b.request(names)))
            for _ in range(turns):
                await asyncio.sleep(0)
            finished += task.done()
            task.cancel()
            await asyncio.wait((task,))
        await eventually(lambda: b.exporter.pulls == 0 and not b.holder.watchers)
        assert len(await b.events(b.request(names))) == 17
        assert kind == "mem" or finished < 60


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_gives_back_every_descriptor_and_task(kind: str) -> None:
    async def life() -> None:
        async with stage(kind) as b:
            names = ready_lease(b.holder, 2)
            await asyncio.gather(*(b.events(b.request(names)) for _ in range(3)))
            await b.open(b.request(names))
        b.holder.memory.close()
        b.receiver.memory.close()

    await life()
    gc.collect()
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    await life()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(asyncio.all_tasks()) == tasks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("address", ["{kind}://nowhere.invalid:1", "{kind}:///no/such/socket", "nonsense"])
async def test_an_address_that_leads_nowhere_fails_at_once(kind: str, address: str) -> None:
    async with stage(kind) as b:
        b.address = address.format(kind=kind)
        with pytest.raises(TandemError) as caught:
            await b.events(b.request((name_of(0),)))
        assert caught.value.code == "transfer_failed"
