"""The work queue: each key once, never with two workers, and nothing that was added is lost."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.kube.queue import WorkQueue
from tandem.kube.workers import Workers
from tests.worlds.loop_clock import LoopClock


def test_a_key_is_queued_once_and_comes_back_when_added_during_work() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = WorkQueue[str](LoopClock(loop))
        queue.add("a")
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert queue.idle

    run(main)


def test_of_several_later_moments_the_first_counts_and_now_beats_them() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = WorkQueue[str](LoopClock(loop))
        start = loop.time()
        queue.add_after("a", 50)
        queue.add_after("a", 5)
        queue.add_after("a", 20)
        assert await queue.get() == "a"
        assert loop.time() - start == 5
        queue.done("a")
        queue.add_after("a", 30)
        queue.add("a")
        await queue.get()
        queue.done("a")
        await asyncio.sleep(100)
        assert queue.idle

    run(main)


def test_a_failing_key_waits_longer_each_time_and_a_success_forgets() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = WorkQueue[str](LoopClock(loop))
        waits = []
        for _ in range(6):
            begun = loop.time()
            queue.retry("a")
            await queue.get()
            waits.append(round(loop.time() - begun, 6))
            queue.done("a")
        assert waits == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]
        queue.forget("a")
        begun = loop.time()
        queue.retry("a")
        await queue.get()
        assert round(loop.time() - begun, 6) == 0.005

    run(main)


def test_retries_of_all_keys_share_one_budget() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = WorkQueue[int](LoopClock(loop))
        begun = loop.time()
        for key in range(150):
            queue.retry(key)
        for _ in range(150):
            queue.done(await queue.get())
        assert loop.time() - begun > 4

    run(main)


def test_failures_and_endless_work_are_retried_until_they_succeed() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue, failures, left = WorkQueue[str](LoopClock(loop)), list[tuple[str, str]](), {"refused": 2, "endless": 1}

        async def work(key: str) -> float | None:
            left[key] -= 1
            if left[key] >= 0 and key == "endless":
                await asyncio.Event().wait()
            if left[key] >= 0:
                raise TandemError("conflict", "somebody else was faster")
            return None

        workers = Workers(queue, work, lambda key, why: failures.append((key, why)), limit_s=30)
        task = asyncio.create_task(workers.run())
        queue.add("refused")
        queue.add("endless")
        await asyncio.sleep(100)
        assert sorted(failures) == [
            ("endless", "not done within 30 s"),
            ("refused", "somebody else was faster"),
            ("refused", "somebody else was faster"),
        ]
        assert queue.idle
        task.cancel()

    run(main)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "later", "retry", "wait"]), st.integers(0, 3), st.integers(0, 9))
)


@settings(max_examples=60)
@given(ACTIONS, st.integers(1, 4))
def test_every_addition_is_worked_off_after_it_and_never_twice_at_once(
    actions: list[tuple[str, int, int]], count: int
) -> None:
    async def main(loop: VirtualLoop) -> None:
        queue, at_work = WorkQueue[int](LoopClock(loop)), set[int]()
        added, seen = dict.fromkeys(range(4), -1.0), dict.fromkeys(range(4), -1.0)

        async def work(key: int) -> float | None:
            assert key not in at_work
            at_work.add(key)
            seen[key] = loop.time()
            await asyncio.sleep(1.5)
            at_work.remove(key)
            return None

        workers = asyncio.create_task(Workers(queue, work, lambda _k, _w: None, count=count).run())
        for action, key, amount in actions:
            if action == "wait":
                await asyncio.sleep(amount / 4)
                continue
            added[key] = loop.time()
            if action == "add":
                queue.add(key)
            elif action == "later":
                queue.add_after(key, amount / 2)
            else:
                queue.retry(key)
        await asyncio.sleep(1000)
        assert queue.idle
        assert all(seen[key] >= added[key] for key in range(4))
        assert not workers.done()
        workers.cancel()

    run(main)
