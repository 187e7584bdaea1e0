"""The virtual loop keeps asyncio's promises and turns hangs into errors."""

import asyncio

import pytest

from tandem.apps.simulation.loop import Deadlock, LoopClock, TimeLimit, VirtualLoop, run


def test_an_hour_passes_in_no_time_and_timers_fire_in_order() -> None:
    fired: list[tuple[str, float]] = []

    async def main(loop: VirtualLoop) -> float:
        clock = LoopClock(loop)

        async def wait(name: str, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            fired.append((name, clock.now()))

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("late", 3600.0))
            group.create_task(wait("early", 0.5))
            group.create_task(wait("middle", 60.0))
        return clock.now()

    assert run(main) == 3600.0, "by the real clock pytest would have ended it"
    assert fired == [("early", 0.5), ("middle", 60.0), ("late", 3600.0)]


def test_timeouts_and_cancellation_work_as_in_production() -> None:
    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run(main) == 2.0


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="nothing is ready"):
        run(main)


def test_the_time_limit_ends_a_simulation_that_never_settles() -> None:
    async def main(loop: VirtualLoop) -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(1.0)

    with pytest.raises(TimeLimit):
        run(main, limit_s=100.0)


def test_invariants_run_after_every_round_and_can_fail_the_run() -> None:
    rounds = 0

    def check() -> None:
        nonlocal rounds
        rounds += 1
        assert rounds < 10, "invariant broken"

    async def main(loop: VirtualLoop) -> None:
        loop.after_step = check
        for _ in range(100):
            await asyncio.sleep(0.1)

    with pytest.raises(AssertionError, match="invariant broken"):
        run(main)


def test_threads_are_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.to_thread(int)

    with pytest.raises(AssertionError, match="threads"):
        run(main)


def test_tasks_that_keep_each_other_awake_while_no_time_passes_are_reported() -> None:
    async def main(_loop: VirtualLoop) -> None:
        for _ in range(10_000_000):
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="rounds went by at virtual time"):
        run(main)


def test_siblings_are_cancelled_in_the_order_in_which_they_began_wherever_they_lie_in_memory() -> None:
    cancelled: list[int] = []

    async def sibling(number: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def failing() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def main(_loop: VirtualLoop) -> None:
        scattered: list[list[bytearray]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(sibling(number))
                    # What is allocated between them moves the next ones about.
                    scattered.append([bytearray(8) for _ in range(number * 7919 % 613)])
                    if number % 3:
                        scattered.pop(number % len(scattered))
                group.create_task(failing())
        except ExceptionGroup:
            assert scattered

    run(main)
    first = cancelled[:]
    cancelled.clear()
    run(main)
    assert sorted(first) == list(range(40))
    assert cancelled == first
