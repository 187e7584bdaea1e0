"""What a holder writes to Redis, in which order and when, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final, cast

import pytest

from kv_transfer.index.redis_connection import RedisFailed
from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.index.redis_scripts import ENTRIES_MAX
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import encoded
from tandem.apps.simulation.loop import LoopClock
from tandem.apps.simulation.redis_data import RedisData
from tandem.apps.simulation.redis_scripts import reported_by
from tandem.process.metrics import PrometheusMeter
from tests.worlds.redis_heard import URL, Asked, Heard, on_stage
from tests.worlds.redis_stage import hello

DRAW = random.Random(11)
NAMES: Final = tuple(DRAW.randbytes(16) for _ in range(1200))
BATCH: Final = 128


class Worker:
    """What keeps blocks, and tells of them."""

    def __init__(self, node: Heard, epoch: int = 1, settings: RedisSettings | None = None) -> None:
        self.node = node
        self.held: dict[str, dict[bytes, None]] = {"hbm": {}, "dram": {}, "nvme": {}}
        self.meter = PrometheusMeter()
        self.publisher = RedisPublisher(
            settings or RedisSettings(URL, service="t"),
            hello("w", epoch),
            self._names,
            LoopClock(node.loop),
            self.meter,
            node.connect,
        )

    def _names(self) -> Mapping[str, Sequence[bytes]]:
        return {tier: tuple(names) for tier, names in self.held.items()}

    def change(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes] = ()) -> None:
        for name in stored:
            self.held[tier][name] = None
        for name in removed:
            self.held[tier].pop(name, None)
        self.publisher.change(tier, stored, removed)

    @property
    def known(self) -> dict[str, dict[bytes, None]]:
        """What Redis would answer of the worker, by tier."""
        data: RedisData = self.node.server.data
        now = int(LoopClock(self.node.loop).wall() * 1000)
        found: dict[str, dict[bytes, None]] = {"hbm": {}, "dram": {}, "nvme": {}}
        for told in reported_by(data, b"t:", now).values():
            for tier, names in told.items():
                found[tier].update(names)
        return found

    async def settled(self) -> None:
        async with asyncio.timeout(60.0):
            while not self.publisher.settled:  # noqa: ASYNC110  (on virtual time)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def telling(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(worker.publisher.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), f"ended by itself: {ends}"


def lives(node: Heard) -> list[tuple[str, int, bytes]]:
    """How numbers came and went: `REGISTER` and whether it is the first, `RELEASE` and the number; and the record."""
    found = []
    for each in node.scripts("REGISTER", "RELEASE"):
        if each.name == "REGISTER":
            found.append((each.name, int(each.arguments[4]), cast(bytes, each.arguments[1])))
        else:
            found.append((each.name, int(each.arguments[1]), cast(bytes, each.arguments[2])))
    return found


def written(asked: Sequence[Asked]) -> list[tuple[str, str, int]]:
    """What was written: `+` or `-`, the tier, how many names."""
    found = []
    for each in asked:
        if each.name == "CHANGE":
            _, _, place, _, packed, storing, _, _ = each.arguments
            tier = ("hbm", "dram", "nvme")[int(place)]
            found.append(("+" if storing == "1" else "-", tier, len(cast(bytes, packed)) // 16))
    return found


def test_a_holder_registers_and_renews_its_lease_three_times_before_it_ends() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await asyncio.sleep(16.0)
            (first,) = node.scripts("REGISTER")
            record = encoded(hello("w"))
            assert first.arguments == (b"t:", record, 15_000, "w", "1")
            assert node.times("RENEW") == [5.0, 10.0, 15.0]
            assert {each.arguments for each in node.scripts("RENEW")} == {(b"t:", 1, record, 15_000, "w")}

    on_stage(main)


def test_every_bucket_is_swept_in_turn_and_none_is_left_out() -> None:
    """A bucket that is passed over keeps the names of workers that are long gone: memory in Redis grows."""

    async def main(node: Heard) -> None:
        # An epoch whose first bucket is the hundredth before the last.
        epoch = -100 * pow(40_503, -1, 1 << 16) % (1 << 16)
        async with telling(Worker(node, epoch)):
            await asyncio.sleep(21.0)
        end = 1 << 16
        assert [each.arguments for each in node.scripts("SWEEP")] == [
            (b"t:", end - 100, end - 37),
            (b"t:", end - 36, end - 1),
            (b"t:", 0, 63),
            (b"t:", 64, 127),
        ]

    on_stage(main)


def test_what_a_holder_has_is_told_at_once_and_again_every_quarter_of_an_entrys_life() -> None:
    """Evenly spread, so that a large worker does not keep Redis busy; and at least four times before entries end."""

    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.change("hbm", NAMES[: 2 * BATCH])
        worker.change("nvme", NAMES[: BATCH - 1])
        async with telling(worker):
            await asyncio.sleep(310.0)
            assert node.times("CHANGE") == [0.0, 0.0, 0.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0]
            assert written(node.asked) == [("+", "hbm", 128), ("+", "hbm", 128), ("+", "nvme", 127)] * 3
            every = {(each.arguments[0], each.arguments[3], each.arguments[6]) for each in node.scripts("CHANGE")}
            assert every == {(b"t:", 600, ENTRIES_MAX)}
            assert worker.known == worker.held

    on_stage(main)


@pytest.mark.parametrize(("count", "times"), [(0, []), (1, [0.0, 150.0, 300.0]), (129, [0.0, 0.0, 75.0, 150.0])])
def test_a_small_holder_is_told_of_as_often(count: int, times: list[float]) -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.change("dram", NAMES[:count])
        async with telling(worker):
            await asyncio.sleep(310.0)
            assert node.times("CHANGE")[: len(times)] == times
            assert len(node.times("CHANGE")) == (2 * len(times) - 2 if count == 129 else len(times))
            assert len(node.scripts("REGISTER")) == 1

    on_stage(main)


def test_it_is_settled_when_everything_is_in_redis_and_not_before() -> None:
    async def main(node: Heard) -> None:
        node.takes_s = 0.1
        worker = Worker(node)
        worker.change("hbm", NAMES[:300])
        worker.change("dram", NAMES[300:400])
        seen = []
        async with telling(worker):
            for at in range(40):
                await asyncio.sleep(0.05)
                if at == 25:
                    worker.change("hbm", NAMES[400:410], NAMES[:5])
                    assert not worker.publisher.settled
                seen.append(worker.publisher.settled)
                if worker.publisher.settled:
                    assert worker.known == worker.held
        assert set(seen) == {False, True}
        assert seen[-1]

    on_stage(main)


def test_changes_are_told_at_once_in_order_and_in_batches() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await asyncio.sleep(1.0)
            node.takes_s = 0.5
            worker.change("hbm", NAMES[:300])
            worker.change("hbm", NAMES[300:301], NAMES[:2])
            worker.change("hbm", (), NAMES[2:4])
            worker.change("dram", (), NAMES[:1])
            worker.change("dram", NAMES[:3], ())
            worker.change("hbm", NAMES[:1], ())
            await asyncio.sleep(0.25)
            # The first is on its way: what is told now waits behind the others.
            worker.change("hbm", NAMES[1:2], ())
            await worker.settled()
            assert written(node.asked) == [
                ("+", "hbm", 128),
                ("+", "hbm", 128),
                ("+", "hbm", 45),
                ("-", "hbm", 4),
                ("-", "dram", 1),
                ("+", "dram", 3),
                ("+", "hbm", 2),
            ]
            assert node.times("CHANGE") == [1.0 + 0.5 * number for number in range(7)]
            assert worker.known == worker.held

    on_stage(main)


@pytest.mark.parametrize(
    ("more", "calls"), [(27, [100, 27]), (28, [100, 28]), (29, [100, 28, 1]), (156, [100, 28, 128])]
)
def test_what_joins_a_batch_that_is_being_written_is_written_after_it(more: int, calls: list[int]) -> None:
    """A batch of at most 128 names: one that grows without end would keep Redis from everybody else."""

    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await asyncio.sleep(1.0)
            node.takes_s = 0.5
            worker.change("hbm", NAMES[:100])
            await asyncio.sleep(0.25)
            for at in range(100, 100 + more):
                worker.change("hbm", NAMES[at : at + 1])
            await worker.settled()
            assert [count for _, _, count in written(node.asked)] == calls
            assert worker.known == worker.held

    on_stage(main)


def test_a_lease_is_renewed_while_there_is_always_something_to_write() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await asyncio.sleep(1.0)
            node.takes_s = 0.4
            for at in range(300):
                worker.change(("hbm", "dram")[at % 2], NAMES[at : at + 1])
                await asyncio.sleep(0.1)
            renewed = [0.0, *node.times("RENEW")]
            assert len(renewed) > 4
            assert max(later - before for before, later in pairwise(renewed)) < 7.0

    on_stage(main)


def test_the_metric_says_how_many_names_wait() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await asyncio.sleep(4.9)
            node.takes_s = 1.0
            # The first of them is written when the lease is due.
            worker.change("hbm", NAMES[:300])
            worker.change("hbm", (), NAMES[:7])
            await asyncio.sleep(2.5)
            assert b"tandem_redis_queue_names 179.0" in worker.meter.render()
            await asyncio.sleep(10.0)
            assert b"tandem_redis_queue_names 0.0" in worker.meter.render()

    on_stage(main)


@pytest.mark.parametrize(("count", "registers"), [(500, 1), (501, 2)])
def test_more_changes_than_may_wait_are_told_as_a_whole(count: int, registers: int) -> None:
    """Twice, as what waited before no longer counts: else the holder would begin anew for ever."""

    async def main(node: Heard) -> None:
        worker = Worker(node, settings=RedisSettings(URL, service="t", queue_names_max=500))
        async with telling(worker):
            for number in range(2):
                await asyncio.sleep(1.0)
                begun = len(node.asked)
                names = NAMES[number * count : (number + 1) * count]
                worker.change("hbm", names)
                await worker.settled()
                worker.change("hbm", names[:1])
                await worker.settled()
                assert sum(each.name == "REGISTER" for each in node.asked[begun:]) == registers - 1
                assert worker.known == worker.held
        # What was told under the numbers before is void.
        record = encoded(hello("w"))
        anew = [(name, number, record) for name, number in (("RELEASE", 1), ("REGISTER", 0), ("RELEASE", 2))]
        whole = [("REGISTER", 1, record), *anew, ("REGISTER", 0, record)]
        assert lives(node) == (whole if registers == 2 else whole[:1])

    on_stage(main)


@pytest.mark.parametrize(("count", "registers"), [(100, 1), (101, 2)])
def test_what_is_removed_while_everything_is_told_again_is_remembered_within_the_same_bound(
    count: int, registers: int
) -> None:
    """Each change is written at once, so nothing waits; what grows is what the walk must not tell any more."""

    async def main(node: Heard) -> None:
        worker = Worker(node, settings=RedisSettings(URL, service="t", queue_names_max=100))
        worker.held["hbm"] = dict.fromkeys(NAMES[:300])
        async with telling(worker):
            await worker.settled()
            for name in NAMES[:count]:
                worker.change("hbm", (), (name,))
                await worker.settled()
            assert len(node.scripts("REGISTER")) == registers
            # The walk that follows takes the names anew: what was removed before that is not remembered.
            await asyncio.sleep(152.0)
            for name in NAMES[count : count + 90]:
                worker.change("hbm", (), (name,))
                await worker.settled()
            assert len(node.scripts("REGISTER")) == registers
            assert worker.known == worker.held

    on_stage(main)


def test_what_is_removed_while_everything_is_told_is_not_told_again() -> None:
    """A name that came back by the walk would send prompts to a worker that has dropped the block."""

    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.held["hbm"] = dict.fromkeys(NAMES[:400])
        worker.held["dram"] = dict.fromkeys(NAMES[:400])
        node.takes_s = 1.0
        async with telling(worker):
            async with asyncio.timeout(60.0):
                while not node.scripts("CHANGE"):  # noqa: ASYNC110  (on virtual time)
                    await asyncio.sleep(0.1)
            # One batch is on its way. Of those that follow some names are removed, and some of these stored again.
            worker.change("hbm", (), NAMES[150:170])
            worker.change("hbm", NAMES[160:165])
            worker.change("dram", (), NAMES[150:152])
            worker.change("dram", (), NAMES[384:400])
            await worker.settled()
            assert worker.known == worker.held
            assert written(node.asked)[-1] == ("+", "dram", 128), "the last batch has nothing any more"
            begun = len(node.asked)
            await asyncio.sleep(200.0)
            assert worker.known == worker.held
            counts = [count for kind, tier, count in written(node.asked[begun:]) if tier == "hbm"]
            assert counts[:3] == [128, 128, 128], "the next walk has what there is then"

    on_stage(main)


def test_whatever_is_not_a_tier_is_passed_over() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await worker.settled()
            worker.publisher.change("tape", NAMES[:3], NAMES[:1])
            worker.change("hbm", NAMES[:3])
            await worker.settled()
            assert written(node.asked) == [("+", "hbm", 3)]

    on_stage(main)


def test_while_redis_cannot_be_reached_nothing_piles_up() -> None:
    async def main(node: Heard) -> None:
        node.refusal = lambda: RedisFailed("connection refused")
        worker = Worker(node)
        async with telling(worker):
            for at in range(0, 1200, 10):
                worker.change("hbm", NAMES[at : at + 10], NAMES[at : at + 9])
                await asyncio.sleep(0.1)
            assert not worker.publisher.settled
            node.refusal = None
            await worker.settled()
            assert written(node.asked) == [("+", "hbm", 120)]
            assert worker.known == worker.held

    on_stage(main)


def test_a_write_that_fails_is_written_again_and_nothing_after_it_is_lost() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await worker.settled()
            node.refusal = lambda: RedisFailed("busy")
            worker.change("hbm", NAMES[:5])
            await asyncio.sleep(0.05)
            worker.change("hbm", (), NAMES[:2])
            assert not worker.publisher.settled
            node.refusal = None
            await worker.settled()
            assert worker.known == worker.held
            assert node.loop.time() < 1.0
            assert len(node.scripts("REGISTER")) == 1, "the same run of the server has all that was told"

    on_stage(main)


def test_another_run_of_the_server_is_told_everything_by_a_first_registration() -> None:
    async def main(node: Heard) -> None:
        worker, record = Worker(node), encoded(hello("w"))
        worker.held["hbm"] = dict.fromkeys(NAMES[:200])
        async with telling(worker):
            await worker.settled()
            node.start()
            # The next probe tells that it is another; nothing is written before a renewal is due.
            await asyncio.sleep(5.1)
            assert worker.known == worker.held
        # The number is released there first, as far as it stands for the holder at all.
        assert lives(node) == [("REGISTER", 1, record), ("RELEASE", 1, record), ("REGISTER", 1, record)]

    on_stage(main)


def test_a_record_that_is_gone_is_registered_anew_when_it_is_missed() -> None:
    """By the next renewal where there is nothing to write, and by the next write where there is."""

    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.held["hbm"] = dict.fromkeys(NAMES[:200])
        async with telling(worker):
            await worker.settled()
            node.server.data = RedisData()
            await asyncio.sleep(4.9)
            assert worker.known["hbm"] == {}
            await asyncio.sleep(0.2)
            assert worker.known == worker.held
            node.server.data = RedisData()
            worker.change("hbm", NAMES[300:301])
            await asyncio.sleep(0.1)
            assert worker.known == worker.held
        assert [int(cast(str, each.arguments[4])) for each in node.scripts("REGISTER")] == [1, 0, 0]

    on_stage(main)


def test_a_new_incarnation_voids_the_old_number_once_and_is_told_at_once() -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.held["hbm"] = dict.fromkeys(NAMES[:200])
        one, two = encoded(hello("w")), encoded(hello("w", 2))
        async with telling(worker):
            await worker.settled()
            await asyncio.sleep(1.0)
            worker.held["hbm"] = dict.fromkeys(NAMES[:10])
            worker.publisher.become(hello("w", 2))
            assert not worker.publisher.settled
            await asyncio.sleep(0.01)
            assert worker.known == worker.held
            await asyncio.sleep(20.0)
            assert lives(node) == [("REGISTER", 1, one), ("RELEASE", 1, one), ("REGISTER", 0, two)]
            assert {each.arguments[2] for each in node.scripts("RENEW")} == {two}

    on_stage(main)


def test_one_that_becomes_another_while_it_registers_leaves_no_number_behind() -> None:
    """A number under a record that nobody renews would have routers ask a stale holder until its lease ends."""

    async def main(node: Heard) -> None:
        worker = Worker(node)
        worker.held["hbm"] = dict.fromkeys(NAMES[:10])
        one, two = encoded(hello("w")), encoded(hello("w", 2))
        node.takes_s = 0.1
        async with telling(worker):
            async with asyncio.timeout(100.0):
                while not node.scripts("REGISTER"):  # noqa: ASYNC110  (on virtual time)
                    await asyncio.sleep(0.01)
            worker.publisher.become(hello("w", 2))
            await worker.settled()
            # The first number was never in use: with this run of the server the holder registers for the first time.
            assert lives(node) == [("REGISTER", 1, one), ("RELEASE", 1, one), ("REGISTER", 1, two)]
            assert worker.known == worker.held

    on_stage(main)


def test_a_farewell_voids_what_was_told_and_nothing_is_told_after_it() -> None:
    async def main(node: Heard) -> None:
        worker, record = Worker(node), encoded(hello("w"))
        worker.held["hbm"] = dict.fromkeys(NAMES[:10])
        async with telling(worker):
            await worker.settled()
            await worker.publisher.close()
            assert worker.known["hbm"] == {}
            asked = len(node.scripts("REGISTER", "RELEASE", "CHANGE", "RENEW"))
            worker.change("hbm", NAMES[10:20])
            await asyncio.sleep(20.0)
            assert len(node.scripts("REGISTER", "RELEASE", "CHANGE", "RENEW")) == asked
            assert lives(node) == [("REGISTER", 1, record), ("RELEASE", 1, record)]

    on_stage(main)


@pytest.mark.parametrize("trouble", ["refused", "hangs"])
def test_a_farewell_that_fails_ends_in_bounded_time(trouble: str) -> None:
    async def main(node: Heard) -> None:
        worker = Worker(node)
        async with telling(worker):
            await worker.settled()
            if trouble == "hangs":
                node.hangs = True
            else:
                node.refusal = lambda: RedisFailed("busy")
            began = node.loop.time()
            await worker.publisher.close()
            assert round(node.loop.time() - began, 6) == (2.0 if trouble == "hangs" else 0.0)

    on_stage(main)
