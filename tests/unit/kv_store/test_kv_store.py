"""The store's own parts: what it brings from workers and in which order, and what it lends from DRAM and NVMe."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kv_store.block_server import BlockServer
from kv_store.replicator import Holder, ReplicationQueue, Replicator
from kv_store.service import NoPool
from kv_store.settings import CollectSettings, StoreSettings
from kv_store.watcher import run_until_first_error
from kv_transfer.export import Exporter
from kv_transfer.tickets import Claims, issue
from kv_transfer.tiers.dram import DramBackend
from kv_transfer.tiers.inbound import InboundBlocks
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.open import TierIdentity, open_tiers
from kv_transfer.tiers.protocol import Pinning
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import Answer, Missing, Offer, PullOpen, reuse_lease
from tandem.apps.cli.launches import LaunchContext, members_of
from tandem.apps.cli.up_options import parse
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.engine.digest import Digester, bind
from tandem.engine.hashing import InlineHashing
from tandem.process.metrics import PrometheusMeter
from tandem.process.settings import load_settings
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, TestSpace, block_layout, content, ready_lease
from tests.worlds.tier_stage import BLOCK, ROOT, settings_for, until
from tests.worlds.transport_stage import DEADLINES

STORE, WORKER, RECEIVER = 31, 41, 51
SETTINGS = CollectSettings(after_s=0.0, batch_blocks=4)
ONE, TWO = Holder("one", 1, ("mem://one",)), Holder("two", 2, ("mem://two",))


def names_of(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{index}".encode().ljust(16, b".") for index in range(count)]


# ---- the line ----


def test_names_are_taken_when_they_are_due_in_order_and_per_worker() -> None:
    line = ReplicationQueue(CollectSettings(after_s=1.0, batch_blocks=3))
    a, b = names_of("a", 5), names_of("b", 2)
    line.add(ONE, a[:2], 0.0)
    line.add(TWO, b, 0.1)
    line.add(ONE, a, 0.2)
    assert line.take(0.9) is None
    assert line.due_in(0.4) == pytest.approx(0.6)
    assert line.take(1.05) == (ONE, tuple(a[:2]))
    assert line.take(1.5) == (TWO, tuple(b))
    assert line.take(1.5) == (ONE, tuple(a[2:]))
    assert line.due_in(2.0) is None


def test_what_a_worker_evicts_or_leaves_with_is_not_asked_for() -> None:
    line = ReplicationQueue(SETTINGS)
    a, b = names_of("a", 3), names_of("b", 1)
    line.add(ONE, a, 0.0)
    line.add(TWO, b, 0.0)
    line.remove(TWO, a[:1])
    line.remove(ONE, a[1:2])
    assert line.take(0.0) == (ONE, (a[0], a[2]))
    line.add(ONE, a, 0.0)
    line.forget(Holder("one", 1, ("elsewhere",)))
    assert line.take(0.0) == (TWO, tuple(b))


def test_a_line_that_is_too_long_gives_up_the_oldest() -> None:
    line = ReplicationQueue(CollectSettings(after_s=0.0, waiting_max=3))
    line.add(ONE, names_of("a", 5), 0.0)
    assert line.take(0.0) == (ONE, tuple(names_of("a", 5)[2:]))


# ---- bringing and lending ----


@dataclass
class Shop:
    """A store's tiers with a worker to bring from; both ends of its transport."""

    tiers: LocalTiers
    filling: InboundBlocks
    lender: BlockServer
    collector: Replicator
    worker: TestSpace
    holder: Holder
    fabric: MemoryNetwork

    async def brought(self, names: list[bytes]) -> None:
        self.collector.told(self.holder, names, ())
        await until(lambda: len(self.tiers.where(names)) == len(names))

    def request(self, names: list[bytes], lease: str = "x", epoch: int = STORE) -> PullOpen:
        lease_id = reuse_lease(lease)
        ticket = issue(KEYRING, Claims("", epoch, lease_id, RECEIVER, SystemClock().wall() + 30))
        return PullOpen(lease_id, ticket, epoch, RECEIVER, block_layout(BLOCK), tuple(names))

    async def ask(self, names: list[bytes], lease: str = "x") -> list[Answer]:
        async with aclosing(self.lender.answers(self.request(names, lease))) as batches:
            return [answer async for batch in batches for answer in batch]

    def good(self, names: list[bytes], answers: list[Answer]) -> bool:
        """Whether every block is offered, with the bytes and digests it should have."""
        digester = Digester(block_layout(BLOCK))
        return all(
            isinstance(answer, Offer)
            and bytes(self.lender.memory.block(answer.handle.slot)) == content(name, BLOCK)
            and answer.handle.digests == bind(digester.content_words(content(name, BLOCK)), STORE, name, 0)
            for name, answer in zip(names, answers, strict=True)
        )


@asynccontextmanager
async def shop(folder: Path, dram: int = 16, nvme: bool = True) -> AsyncGenerator[Shop, None]:
    layout, meter, clock, fabric = block_layout(BLOCK), PrometheusMeter(), SystemClock(), MemoryNetwork()
    settings = settings_for("both" if nvme else "dram", 64, folder, dram_bytes=dram * BLOCK)
    pool = NoPool(layout, STORE)
    tiers = open_tiers(settings, pool, clock, meter, KEYRING, TierIdentity("s", ROOT), SeededEntropy(2))
    upper, *lower = tiers.levels
    assert isinstance(upper.backend, DramBackend)
    filling = InboundBlocks(upper, upper.backend)
    below = lower[0] if lower else None
    lender = BlockServer(filling, below, layout, lambda: STORE, KEYRING, clock, 4 * BLOCK)
    worker, serving, pulling = (
        TestSpace(layout, 64, WORKER),
        MemoryTransport(fabric, "w"),
        MemoryTransport(fabric, "s"),
    )
    address = await serving.serve(Exporter(worker, KEYRING, clock, DEADLINES))

    def here(name: bytes) -> bool:
        return any(level.book.knows(name) for level in tiers.levels)

    parts = (
        layout,
        lambda: STORE,
        (pulling,),
        KEYRING,
        SETTINGS,
        clock,
        SeededEntropy(3),
        meter,
        InlineHashing(layout),
    )
    collector = Replicator(filling, here, *parts)
    running = asyncio.get_running_loop().create_task(collector.run())
    try:
        await until(lambda: tiers.usable)
        yield Shop(tiers, filling, lender, collector, worker, Holder("w", WORKER, (address,)), fabric)
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await pulling.close()
        await serving.close()
        await tiers.close()
    upper.book.check()


async def test_what_a_worker_tells_of_is_brought_verified_and_lent(tmp_path: Path) -> None:
    async with shop(tmp_path) as b:
        names = list(ready_lease(b.worker, 10))
        await b.brought(names)
        assert b.good(names, await b.ask(names))
        assert b.lender.blocks_lent == 10
        b.lender.acknowledge(reuse_lease("x"))
        assert b.lender.blocks_lent == 0


async def test_what_dram_has_no_room_for_is_lent_from_nvme(tmp_path: Path) -> None:
    async with shop(tmp_path, dram=8) as b:
        names = list(ready_lease(b.worker, 24))
        for start in range(0, 24, 4):
            await b.brought(names[start : start + 4])
            await b.tiers.settle()
        assert b.tiers.where(names[:16]) == ("nvme",) * 16
        assert b.good(names[:4], await b.ask(names[:4]))
        b.lender.acknowledge(reuse_lease("x"))
        assert b.tiers.where(names[:4]) == ("dram",) * 4


async def test_two_receivers_of_one_cold_block_both_get_it(tmp_path: Path) -> None:
    async with shop(tmp_path, dram=8) as b:
        names = list(ready_lease(b.worker, 16))
        for start in range(0, 16, 4):
            await b.brought(names[start : start + 4])
            await b.tiers.settle()
        first, second = await asyncio.gather(b.ask(names[:4], "a"), b.ask(names[:4], "b"))
        assert b.good(names[:4], first)
        assert b.good(names[:4], second)


async def test_what_is_not_here_is_said_at_once(tmp_path: Path) -> None:
    async with shop(tmp_path, nvme=False) as b:
        names = list(ready_lease(b.worker, 2))
        await b.brought(names)
        answers = await b.ask([names[0], b"nobody has this.", names[1]])
        assert [isinstance(answer, Offer) for answer in answers] == [True, False, True]
        assert answers[1] == Missing(1, "not here")


async def test_lent_blocks_stay_until_the_receiver_is_done(tmp_path: Path) -> None:
    async with shop(tmp_path, dram=4, nvme=False) as b:
        names = list(ready_lease(b.worker, 12))
        await b.brought(names[:4])
        answers = await b.ask(names[:4])
        b.collector.told(b.holder, names[4:], ())
        await until(lambda: not len(b.collector.line))
        assert b.good(names[:4], answers)
        b.lender.acknowledge(reuse_lease("x"))
        await b.brought(names[8:])


async def test_tickets_epochs_layouts_and_other_leases_are_checked(tmp_path: Path) -> None:
    async with shop(tmp_path, nvme=False) as b:
        names = list(ready_lease(b.worker, 1))
        await b.brought(names)
        good = b.request(names)
        hand_off = issue(KEYRING, Claims("", STORE, "lease", RECEIVER, SystemClock().wall() + 30))
        refused = {
            "ticket_refused": PullOpen(good.lease_id, b"", STORE, RECEIVER, good.layout, good.names),
            "stale_epoch": b.request(names, epoch=7),
            "protocol_mismatch": PullOpen(
                good.lease_id, good.ticket, STORE, RECEIVER, block_layout(BLOCK, dtype="other", block_tokens=16), ()
            ),
            "kv_gone": PullOpen("lease", hand_off, STORE, RECEIVER, good.layout, good.names),
        }
        for code, request in refused.items():
            with pytest.raises(TandemError) as problem:
                await anext(b.lender.answers(request))
            assert problem.value.code == code
        assert b.lender.blocks_lent == 0


async def test_a_block_that_arrives_damaged_is_not_kept_and_the_others_are_asked_for_again(tmp_path: Path) -> None:
    async with shop(tmp_path, nvme=False) as b:
        names = list(ready_lease(b.worker, 3))
        b.worker.overwrite(1)
        b.collector.told(b.holder, names, ())
        await until(lambda: not len(b.collector.line) and not b.filling.coming)
        assert b.tiers.where(names) in ((), ("dram",))
        assert not b.tiers.where(names[1:2])
        b.collector.told(b.holder, [names[0], names[2]], ())
        await until(lambda: len(b.tiers.where([names[0]])) == len(b.tiers.where([names[2]])) == 1)


async def test_a_copy_that_was_damaged_in_the_store_is_forgotten_when_it_is_refused(tmp_path: Path) -> None:
    async with shop(tmp_path, nvme=False) as b:
        names = list(ready_lease(b.worker, 2))
        await b.brought(names)
        first, _ = await b.ask(names)
        assert isinstance(first, Offer)
        b.lender.refused(reuse_lease("x"), names[1])
        assert len(b.tiers.where(names)) == 2
        b.lender.memory.block(first.handle.slot)[7] ^= 1
        b.lender.refused(reuse_lease("x"), names[0])
        assert b.tiers.where(names) == ()
        b.lender.acknowledge(reuse_lease("x"))


async def test_a_worker_that_is_gone_leaves_no_place_behind(tmp_path: Path) -> None:
    async with shop(tmp_path, nvme=False) as b:
        names = list(ready_lease(b.worker, 8))
        gone = Holder("gone", 99, ("mem://gone",))
        b.collector.told(gone, names, ())
        await until(lambda: not len(b.collector.line) and not b.filling.coming)
        assert len(b.filling.level.book) == 0
        await b.brought(names)


async def test_pinned_blocks_outlive_what_is_brought_later(tmp_path: Path) -> None:
    async with shop(tmp_path, dram=8, nvme=False) as b:
        names = list(ready_lease(b.worker, 32))
        assert b.tiers.pin(names[:2], Pinning(0, 60.0)) == 2
        for start in range(0, 32, 4):
            await b.brought(names[start : start + 4])
        assert b.tiers.where(names[:2]) == ("dram",) * 2


# ---- how it is started ----


def test_up_starts_a_store_that_finds_the_workers_by_the_file() -> None:
    service = parse(["--store", "--nvme-gb", "2", "--nvme-dir", "/disk"]).service
    places = LaunchContext(Path("/run/fleet.json"), Path("/run/key"), Path("/run"), 8000, None)
    *_, store = members_of(service, places, 2, {})
    assert (store.name, store.role) == ("kv-store-0", "store")
    settings = load_settings(StoreSettings, store.command.argv[4:])
    assert settings.workers_file == Path("/run/fleet.json")
    assert settings.tiers.dram_bytes == 10**9
    assert settings.tiers.nvme_bytes == 2 * 10**9
    assert parse([]).service.spec.store is None


@pytest.mark.parametrize(
    ("argv", "param"),
    [
        (["--ticket_key_file", "k"], "workers_file"),
        (["--workers_file", "w"], "ticket_key_file"),
        (["--workers_file", "w", "--ticket_key_file", "k", "--tiers.dram_bytes", "0"], "tiers.dram_bytes"),
    ],
)
def test_a_store_that_cannot_work_says_which_setting_is_wrong(argv: list[str], param: str) -> None:
    with pytest.raises(TandemError) as problem:
        load_settings(StoreSettings, argv)
    assert problem.value.param == param


async def test_an_observer_that_is_stopped_while_its_link_breaks_ends() -> None:
    """The failure of the one must not hide the cancellation of the other."""

    async def breaks() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            raise TandemError("link_lost", "the link broke at that moment") from None

    task = asyncio.create_task(run_until_first_error(breaks(), breaks()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
