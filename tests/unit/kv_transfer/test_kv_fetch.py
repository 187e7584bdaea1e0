"""Fetches on virtual time: what arrives is verified, what fails is given up in bounded time, slots stay safe."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.fetch_progress import FetchProgress, FetchReport, PrefillStatus, routes
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport, PerfectPath
from kv_transfer.transport.protocol import Alive, BlockReceived, BlockSink, ExportSource, Missing, PullEvent, PullOpen
from kv_transfer.verify import Refusal, judge
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import Handle
from tandem.core.metrics import NullMeter
from tandem.engine.digest import Digester
from tests.contract.block_space import (
    FIRST,
    KEYRING,
    TestSpace,
    block_layout,
    content,
    fetch_job,
    name_of,
    ready_lease,
    remote_kv,
)

LAYOUT = block_layout(2048)
DEADLINES = Deadlines()
BEGIN_S = 100_000.0


class Path(PerfectPath):
    """A path with a latency and a bandwidth; may flip a byte of a block, or go silent."""

    def __init__(self, latency_s: float = 0.001, bytes_per_s: float = 1e6) -> None:
        self.delay_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.silent = False
        self.corrupt_in = -1

    def carries(self, holder: str, receiver: str) -> bool:
        return not self.silent

    def latency_s(self, holder: str, receiver: str) -> float:
        return self.delay_s

    def busy_s(self, holder: str, receiver: str, size: int) -> float:
        return size / self.bytes_per_s

    def arrived(self, holder: str, receiver: str, data: bytes) -> bytes:
        self.corrupt_in -= 1
        return bytes([data[0] ^ 1]) + data[1:] if self.corrupt_in == -1 else data


class CountingMeter(NullMeter):
    def __init__(self) -> None:
        self.added: dict[tuple[str, ...], float] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        super().add(name, value, *labels)
        self.added[name, *labels] = self.added.get((name, *labels), 0.0) + value


@dataclass
class World:
    """A holder and a receiver on one fabric, on virtual time."""

    loop: VirtualLoop
    path: Path = field(default_factory=Path)
    holder: TestSpace = field(default_factory=lambda: TestSpace(LAYOUT, 64, 11, shared=False))
    receiver: TestSpace = field(default_factory=lambda: TestSpace(LAYOUT, 64, 22, shared=False))
    meter: CountingMeter = field(default_factory=CountingMeter)
    address: str = ""

    async def start(self) -> "World":
        fabric = MemoryNetwork(self.path)
        self.serving = MemoryTransport(fabric, "p0")
        self.address = await self.serving.serve(Exporter(self.holder, KEYRING, LoopClock(self.loop), DEADLINES))
        self.pulling = MemoryTransport(fabric, "d0")
        self.fetcher = Fetcher(self.receiver, [self.pulling], LoopClock(self.loop), DEADLINES, self.meter)
        return self

    def fetch(self, names: tuple[bytes, ...]) -> Coroutine[Any, Any, FetchReport]:
        return self.fetcher.fetch(fetch_job(names, LAYOUT), remote_kv(self.holder, self.receiver, (self.address,)))

    def settled(self) -> None:
        """Whatever was held back for late bytes is free again, and the holder has forgotten the pull."""
        (_, _, late) = self.receiver.ended[-1]
        assert len(self.receiver.ended) == 1
        assert self.receiver.freed == ([late] if late else [])
        assert not self.holder.watchers


def on_virtual_time(main: Callable[[World], Coroutine[Any, Any, None]], limit_s: float = 300.0) -> None:
    async def body(loop: VirtualLoop) -> None:
        # Clocks do not begin at zero: there a time of the clock would pass for a time that is left.
        await asyncio.sleep(BEGIN_S)
        await main(await World(loop).start())

    run(body, limit_s=BEGIN_S + limit_s)


def test_a_whole_fetch_lands_verified_blocks_and_reports_what_it_cost() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 10)
        report = await world.fetch(names)
        assert report.reason is None
        assert (report.blocks, report.bytes, report.path, report.first) == (10, 20480, "mem", FIRST)
        assert report.acknowledged
        assert "lease" not in world.holder.leases
        digester = Digester(LAYOUT)
        for index, name in enumerate(names):
            block = world.receiver.memory.block(2 * index + 1)
            assert bytes(block) == content(name, 2048)
            assert world.receiver.landed_words[index] == digester.content_words(block)
        assert report.seconds == pytest.approx(0.02248, rel=0.05)
        assert report.gb_per_s == pytest.approx(1e-3, rel=0.1)
        assert world.receiver.ended == [(7, None, ())]
        assert world.meter.added["tandem_kv_transfer_bytes_total", "mem"] == 20480
        world.settled()

    on_virtual_time(main)


def test_what_a_hand_off_has_brought_is_told_with_its_last_block_though_the_fetch_is_cancelled_then() -> None:
    """A short answer may be over before the holder has heard that it may let go."""

    async def main(world: World) -> None:
        names = ready_lease(world.holder, 10)
        told: list[tuple[FetchReport, int]] = []

        def whole(report: FetchReport) -> None:
            told.append((report, len(world.receiver.landed_words)))
            task.cancel()

        job, remote = fetch_job(names, LAYOUT), remote_kv(world.holder, world.receiver, (world.address,))
        task = asyncio.ensure_future(world.fetcher.fetch(job, remote, whole=whole))
        with pytest.raises(asyncio.CancelledError):
            await task
        ((report, before),) = told
        assert (report.blocks, report.bytes, report.path, report.handed_over) == (10, 20480, "mem", True)
        assert (report.acknowledged, before) == (False, 9)
        assert len(world.receiver.landed_words) == 10

    on_virtual_time(main)


def test_only_what_comes_after_the_last_wait_for_prefill_is_exposed() -> None:
    async def main(world: World) -> None:
        names = tuple(name_of(i) for i in range(8))
        world.holder.lease("lease", names)
        for index in range(8):
            world.loop.call_later(1.0 + index // 2, world.holder.complete, "lease", index)
        world.loop.call_later(4.0, world.holder.sample, "lease")
        report = await world.fetch(names)
        assert report.reason is None
        assert report.seconds == pytest.approx(4.005, abs=0.003)
        assert report.exposed_s == pytest.approx(0.002, abs=0.001)

    on_virtual_time(main)


def test_a_flipped_byte_is_refused_and_what_landed_before_stays() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 6)
        world.path.corrupt_in = 3
        report = await world.fetch(names)
        assert report.reason is not None
        assert report.reason.startswith("kv_corrupt")
        assert sorted(world.receiver.landed_words) == [0, 1, 2]
        assert world.receiver.ended == [(7, report.reason, ())]
        assert world.meter.added["tandem_kv_blocks_refused_total", "digest"] == 1
        await asyncio.sleep(0.1)
        assert world.holder.rechecked == [names[3]], "the holder looks at its own copy, which is good"
        assert "lease" not in world.holder.leases, "nothing more is wanted"
        world.settled()

    on_virtual_time(main)


def test_a_slot_overwritten_on_the_holder_is_refused() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 2)
        world.holder.overwrite(1)
        report = await world.fetch(names)
        assert report.reason is not None
        assert report.reason.startswith("kv_corrupt")
        assert sorted(world.receiver.landed_words) == [0]

    on_virtual_time(main)


def test_a_silent_holder_is_given_up_after_two_seconds() -> None:
    async def main(world: World) -> None:
        names = tuple(name_of(i) for i in range(3))
        world.holder.lease("lease", names)
        world.holder.complete("lease", 0)
        world.loop.call_later(5.0, setattr, world.path, "silent", True)
        report = await world.fetch(names)
        assert report.reason is not None
        assert report.reason.startswith("transfer_failed")
        assert 6.4 < world.loop.time() - BEGIN_S < 7.1
        assert report.blocks == 1
        world.settled()

    on_virtual_time(main)


def test_a_holder_that_only_says_it_is_alive_gives_up_when_prefill_should_have_moved() -> None:
    async def main(world: World) -> None:
        world.holder.lease("lease", (name_of(0),))
        report = await world.fetch((name_of(0),))
        assert report.reason is not None
        assert DEADLINES.unjudged_s - 0.5 < world.loop.time() - BEGIN_S < DEADLINES.unjudged_s + 0.6
        world.settled()

    on_virtual_time(main)


def test_a_holder_that_cannot_be_reached_costs_no_more_than_the_transfer_bound() -> None:
    async def main(world: World) -> None:
        world.path.silent = True
        report = await world.fetch((name_of(0),))
        assert report.reason is not None
        assert world.loop.time() - BEGIN_S == pytest.approx(2.0, abs=0.1)
        assert world.receiver.ended == [(7, report.reason, ())]

    on_virtual_time(main)


def test_no_transport_in_common_is_said_at_once() -> None:
    async def main(world: World) -> None:
        world.address = "ucx://elsewhere"
        report = await world.fetch((name_of(0),))
        assert report.reason == "transfer_failed: no transport in common: ucx://elsewhere"
        assert world.loop.time() == BEGIN_S

    on_virtual_time(main)


def test_a_new_incarnation_under_the_old_address_is_refused() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 2)
        remote = replace_epoch(world)
        world.holder.epoch = 99
        report = await world.fetcher.fetch(fetch_job(names, LAYOUT), remote)
        assert report.reason is not None
        assert report.reason.startswith("stale_epoch")
        assert not world.receiver.landed_words

    def replace_epoch(world: World) -> Any:
        return remote_kv(world.holder, world.receiver, (world.address,))

    on_virtual_time(main)


def test_missing_blocks_end_the_fetch_and_nothing_is_retried() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 3)
        world.holder.lose("lease", 1, "evicted")
        report = await world.fetch(names)
        assert report.reason == "kv_gone: block 1 will not come: evicted"
        assert sorted(world.receiver.landed_words) == [0]
        world.settled()

    on_virtual_time(main)


@pytest.mark.parametrize("turns", range(40))
def test_cancelling_at_any_moment_ends_the_fetch_and_frees_the_slots(turns: int) -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 4)
        task = asyncio.ensure_future(world.fetch(names))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await world.fetcher.close()
        assert bool(world.receiver.ended) == (turns > 0)
        if turns > 0:
            world.settled()

    on_virtual_time(main)


# ---- what a network cannot be made to do ------------------------------------------------------------------------


class ScriptedPull:
    """Gives blocks of the holder, then fails as told; `closed` says that it was closed."""

    def __init__(
        self, holder: TestSpace, request: PullOpen, sink: BlockSink, bring: int, error: TandemError, close_s: float
    ) -> None:
        self._close_s = close_s
        self._holder = holder
        self._request = request
        self._sink = sink
        self._bring = bring
        self._error = error
        self.closed = False

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        yield Alive()
        for index, name in enumerate(self._request.names[: self._bring]):
            handle = self._holder.look("lease", name)
            self._sink.block(index)[:] = self._holder.memory.block(handle.slot)  # type: ignore[union-attr]
            yield BlockReceived(index, handle)  # type: ignore[arg-type]
        raise self._error

    async def acknowledge(self) -> None:
        self._holder.release("lease")

    async def refuse(self, index: int) -> None:
        raise AssertionError("nothing to refuse")

    async def close(self) -> None:
        await asyncio.sleep(self._close_s)
        self.closed = True


class Scripted:
    """A transport whose n-th pull ends with the n-th error, after some blocks."""

    scheme = "fake"

    def __init__(
        self,
        holder: TestSpace,
        bring: int,
        *codes: str,
        close_s: float = 0.0,
        pull: type[ScriptedPull] = ScriptedPull,
    ) -> None:
        self._close_s = close_s
        self._pull = pull
        self._holder = holder
        self._bring = bring
        self._codes = list(codes)
        self.pulls: list[ScriptedPull] = []
        self.asked: list[tuple[bytes, ...]] = []

    async def serve(self, source: ExportSource) -> str:
        raise AssertionError

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> ScriptedPull:
        assert all(pull.closed for pull in self.pulls), "a retry began before the first pull was closed"
        self.asked.append(request.names)
        error = TandemError(self._codes.pop(0), "as told")
        pull = self._pull(self._holder, request, sink, self._bring, error, self._close_s)
        self.pulls.append(pull)
        return pull

    async def close(self) -> None: ...


def test_a_broken_connection_is_retried_for_what_is_still_open() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 5)
        scripted = Scripted(world.holder, 2, "transfer_failed")
        fetcher = Fetcher(world.receiver, [scripted, world.pulling], LoopClock(world.loop), DEADLINES, world.meter)
        remote = remote_kv(world.holder, world.receiver, ("fake://p0", world.address))
        report = await fetcher.fetch(fetch_job(names, LAYOUT), remote)
        assert report.reason is None
        assert (report.blocks, report.path) == (5, "mem")
        assert world.meter.added["tandem_kv_transfer_bytes_total", "fake"] == 2 * 2048
        assert world.meter.added["tandem_kv_transfer_bytes_total", "mem"] == 3 * 2048
        assert scripted.pulls[0].closed

    on_virtual_time(main)


@pytest.mark.parametrize("code", ["ticket_refused", "stale_epoch", "kv_gone", "protocol_mismatch"])
def test_refusals_are_final(code: str) -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 5)
        scripted = Scripted(world.holder, 1, code, code)
        fetcher = Fetcher(world.receiver, [scripted], LoopClock(world.loop), DEADLINES, world.meter)
        remote = remote_kv(world.holder, world.receiver, ("fake://p0", "fake://p1"))
        report = await fetcher.fetch(fetch_job(names, LAYOUT), remote)
        assert report.reason == f"{code}: as told"
        assert len(scripted.pulls) == 1

    on_virtual_time(main)


@pytest.mark.parametrize("code", ["kv_gone", "transfer_failed"])
def test_slots_are_quarantined_until_a_slow_pull_is_closed(code: str) -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 4)
        scripted = Scripted(world.holder, 1, code, close_s=20.0)
        fetcher = Fetcher(world.receiver, [scripted], LoopClock(world.loop), DEADLINES, world.meter)
        fetching = asyncio.ensure_future(
            fetcher.fetch(fetch_job(names, LAYOUT), remote_kv(world.holder, world.receiver, ("fake://p0",)))
        )
        await asyncio.sleep(2.5)
        assert world.receiver.ended == [(7, f"{code}: as told", (3, 5, 7))]
        assert world.receiver.freed == []
        fetching.cancel()
        await asyncio.wait((fetching,))
        await fetcher.close()
        assert world.receiver.freed == [(3, 5, 7)]
        assert world.loop.time() - BEGIN_S == pytest.approx(20.0)

    on_virtual_time(main)


def test_retries_are_bounded() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 9)
        scripted = Scripted(world.holder, 1, *["transfer_failed"] * 9)
        fetcher = Fetcher(world.receiver, [scripted], LoopClock(world.loop), DEADLINES, world.meter)
        remote = remote_kv(world.holder, world.receiver, ("fake://p0",))
        report = await fetcher.fetch(fetch_job(names, LAYOUT), remote)
        assert (report.blocks, report.reason) == (2, "transfer_failed: as told")
        assert scripted.asked == [names, names[1:]]
        assert all(pull.closed for pull in scripted.pulls)

    on_virtual_time(main)


def test_a_handle_of_another_block_or_incarnation_is_refused() -> None:
    class Swapping(Scripted):
        async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> ScriptedPull:
            swapped = replace(request, names=tuple(reversed(request.names)))
            return await super().open(address, swapped, sink, timeout_s)

    async def main(world: World) -> None:
        names = ready_lease(world.holder, 2)
        scripted = Swapping(world.holder, 2, "transfer_failed")
        fetcher = Fetcher(world.receiver, [scripted], LoopClock(world.loop), DEADLINES, world.meter)
        report = await fetcher.fetch(
            fetch_job(names, LAYOUT), remote_kv(world.holder, world.receiver, ("fake://p0",))
        )
        assert report.reason is not None
        assert report.reason.startswith("kv_corrupt")
        assert not world.receiver.landed_words
        assert world.meter.added["tandem_kv_blocks_refused_total", "name"] == 1

    on_virtual_time(main)


def test_routes_follow_the_holders_preference_and_end() -> None:
    addresses = ("shm:///a", "ucx://b", "tcp://c")
    assert routes(addresses, ("tcp", "shm"), 3) == ("shm:///a", "tcp://c", "tcp://c")
    assert routes(addresses, ("tcp",), 3) == ("tcp://c", "tcp://c")
    assert routes(addresses, ("shm", "tcp"), 1) == ("shm:///a",)
    assert routes(addresses, (), 3) == ()


def test_shared_memory_of_another_node_is_no_route() -> None:
    addresses = ("shm://node-a/run/pull", "nixl://b:1", "tcp://b:2")
    assert routes(addresses, ("shm", "tcp"), 3, "node-a")[0] == "shm://node-a/run/pull"
    assert routes(addresses, ("shm", "tcp"), 3, "node-b") == ("tcp://b:2", "tcp://b:2")
    assert routes(addresses, ("shm", "tcp"), 3)[0] == "shm://node-a/run/pull", "without names it is found out"


@pytest.mark.parametrize("opens", [True, False])
def test_news_of_a_prompt_that_come_when_the_time_of_its_pull_is_over_harm_nobody(opens: bool) -> None:
    """A router's command may come between the end of the time and the pull's next turn."""

    async def main(world: World) -> None:
        prefilled, failed = PrefillStatus(), list[RuntimeError]()
        job = fetch_job(ready_lease(world.holder, 10), LAYOUT)
        world.path.bytes_per_s = 1.0
        world.path.silent = not opens
        remote = remote_kv(world.holder, world.receiver, (world.address,))
        fetching = asyncio.ensure_future(world.fetcher.fetch(job, remote, prefilled=prefilled))

        def tell() -> None:
            try:
                prefilled.changed()
            except RuntimeError as error:
                failed.append(error)

        def tell_often(turns: int) -> None:
            tell()
            if turns:
                world.loop.call_soon(tell_often, turns - 1)

        await asyncio.sleep(1.0)
        prefilled.known(world.loop.time())
        over = world.loop.time() + DEADLINES.transfer_progress_s
        for _ in range(3):
            world.loop.call_at(over, tell_often, 20)
        report = await fetching
        assert not failed
        assert report.code == "transfer_failed"
        world.settled()

    on_virtual_time(main)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_hand_off_that_fails_is_told_before_the_engine_hears_of_its_end(cancelled: bool) -> None:
    async def main(world: World) -> None:
        reports, leave = list[FetchReport](), asyncio.Event()

        async def failed(report: FetchReport) -> None:
            reports.append(report)
            await leave.wait()

        names = ready_lease(world.holder, 4)
        remote = msgspec.structs.replace(remote_kv(world.holder, world.receiver, (world.address,)), ticket=b"forged")
        fetching = asyncio.ensure_future(world.fetcher.fetch(fetch_job(names, LAYOUT), remote, failed=failed))
        await asyncio.sleep(60.0)
        assert [report.code for report in reports] == ["ticket_refused"]
        assert not world.receiver.ended
        if cancelled:
            fetching.cancel()
            await asyncio.wait((fetching,))
        else:
            leave.set()
            assert await fetching is reports[0]
        ((_, reason, _),) = world.receiver.ended
        assert reason is not None
        assert reason.startswith("ticket_refused")
        world.settled()

    on_virtual_time(main)


def test_a_hand_off_that_comes_asks_nobody() -> None:
    async def main(world: World) -> None:
        async def failed(report: FetchReport) -> None:
            raise AssertionError(report)

        names = ready_lease(world.holder, 4)
        remote = remote_kv(world.holder, world.receiver, (world.address,))
        assert (await world.fetcher.fetch(fetch_job(names, LAYOUT), remote, failed=failed)).reason is None
        world.settled()

    on_virtual_time(main)


def test_a_holder_that_says_nothing_but_that_it_lives_does_not_keep_a_fetch_for_ever() -> None:
    """Its engine may be hung; the slots and the request would wait as long as the process lives."""
    progress = FetchProgress(fetch_job((name_of(0),), LAYOUT), DEADLINES, LAYOUT.block_bytes, started=1000.0)
    now = 1000.0
    while now < progress.deadline():
        now += 0.5
        progress.heard(Alive(), now)
        assert now < 2000.0, "it still waits"
    assert now == pytest.approx(1000.0 + DEADLINES.total_s, abs=1.0)


def test_a_block_of_an_earlier_life_of_its_holder_is_refused() -> None:
    """It has the right name and good bytes, and its slot may be given away at any moment."""
    holder = TestSpace(LAYOUT, 8, 11, shared=False)
    (name,) = ready_lease(holder, 1)
    handle = holder.look("lease", name)
    assert isinstance(handle, Handle)
    words = Digester(LAYOUT).content_words(holder.memory.block(handle.slot))
    assert judge([words], [handle], epoch=11, names=[name]) == [words]
    (refused,) = judge([words], [handle], epoch=12, names=[name])
    assert isinstance(refused, Refusal)
    assert refused.reason == "epoch"


def test_a_rate_is_of_the_time_in_which_there_was_something_to_send() -> None:
    """Placement learns what a link can do from it; the wait for prefill says nothing of the link."""
    names = tuple(name_of(index) for index in range(2))
    progress = FetchProgress(fetch_job(names, LAYOUT), DEADLINES, 1_000_000, started=1000.0)
    progress.heard(Alive(), 1000.0)
    progress.moved(1010.0)
    progress.heard(Missing(9, "none"), 1010.0)
    progress.landed(0, 1011.0)
    progress.heard(Alive(), 1011.0)
    progress.heard(Missing(9, "none"), 1021.0)
    progress.landed(1, 1022.0)
    report = progress.report(None, True, 1022.0)
    assert report.seconds == 22.0
    assert report.gb_per_s == pytest.approx(2e6 / 2.0 / 1e9), "one second for each, and twenty of waiting"
    assert report.exposed_s == 1.0
    (brought,) = progress.brought("peer", "u0", None)
    assert brought.seconds == 22.0


def test_what_each_tier_took_adds_up_to_the_whole() -> None:
    names = tuple(name_of(index) for index in range(3))
    progress = FetchProgress(fetch_job(names, LAYOUT), DEADLINES, 2048, started=1000.0)
    progress.landed(0, 1000.5, "dram")
    progress.landed(1, 1002.5, "nvme")
    progress.landed(2, 1002.75, "dram")
    assert {each.origin: each.seconds for each in progress.brought("own", "", None)} == {"dram": 0.75, "nvme": 2.0}
