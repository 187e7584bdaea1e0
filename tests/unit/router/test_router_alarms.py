"""Alarms on one timer ring as if each had its own: at its time, once, and not after it was given up."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.alarms import Alarm, Alarms
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run

MOMENTS = st.integers(0, 40).map(float)
TIMES = st.integers(-1, 45).map(lambda second: second + 0.5)
ACTIONS = st.lists(
    st.tuples(MOMENTS, st.integers(0, 5), st.none() | TIMES), max_size=40, unique_by=lambda action: action[0]
)
"""At a moment an alarm is set to another one, which may have passed, or given up."""
_EXACT_S = 0.0011


def rung(actions: list[tuple[float, int, float | None]]) -> list[tuple[int, float]]:
    """Which alarm rang when."""
    found: list[tuple[int, float]] = []

    async def main(loop: VirtualLoop) -> None:
        alarms = Alarms(loop, LoopClock(loop))
        own = [Alarm(alarms, lambda number=number: found.append((number, loop.time()))) for number in range(6)]  # type: ignore[misc]
        for moment, number, at in sorted(actions, key=lambda action: action[0]):
            if moment > loop.time():
                await asyncio.sleep(moment - loop.time())
            if at is None:
                own[number].off()
            else:
                own[number].set(at)
            assert own[number].is_set == (at is not None)
        await asyncio.sleep(60.0)
        assert not any(alarm.is_set for alarm in own)

    run(main, limit_s=1000.0)
    return found


def expected(actions: list[tuple[float, int, float | None]]) -> list[tuple[int, float]]:
    """By hand: what every alarm was set to last before it rang."""
    found = []
    for number in range(6):
        set_to: float | None = None
        for moment, _, at in sorted((action for action in actions if action[1] == number), key=lambda each: each[0]):
            if set_to is not None and set_to < moment:
                found.append((number, set_to))
                set_to = None
            set_to = None if at is None else max(at, moment)
        if set_to is not None:
            found.append((number, set_to))
    return sorted(found, key=lambda each: each[1])


@given(ACTIONS)
def test_each_rings_once_at_the_time_it_was_last_set_to(actions: list[tuple[float, int, float | None]]) -> None:
    found, wanted = rung(actions), expected(actions)
    assert sorted(number for number, _ in found) == sorted(number for number, _ in wanted)
    for number in range(6):
        pairs = zip(
            [at for each, at in found if each == number], [at for each, at in wanted if each == number], strict=True
        )
        assert all(at <= late <= at + _EXACT_S for late, at in pairs)


def test_those_of_one_moment_ring_in_the_order_in_which_they_were_set() -> None:
    assert [number for number, _ in rung([(0.0, 3, 5.5), (0.0, 1, 5.5), (0.0, 2, 5.5)])] == [3, 1, 2]


def test_what_one_raises_keeps_no_other_from_ringing() -> None:
    found: list[str] = []

    def broken() -> None:
        raise ValueError("an owner has a fault")

    async def main(loop: VirtualLoop) -> None:
        faults: list[object] = []
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        alarms = Alarms(loop, LoopClock(loop))
        Alarm(alarms, broken).set(1.0)
        Alarm(alarms, lambda: found.append("rang")).set(1.0)
        await asyncio.sleep(2.0)
        assert len(faults) == 1

    run(main, limit_s=10.0)
    assert found == ["rang"]


def test_given_up_ones_are_not_kept() -> None:
    async def main(loop: VirtualLoop) -> None:
        alarms = Alarms(loop, LoopClock(loop))
        for _ in range(10_000):
            alarm = Alarm(alarms, lambda: None)
            alarm.set(loop.time() + 600.0)
            alarm.retire()
        assert len(alarms._heap) < 200

    run(main, limit_s=10.0)


def test_a_retired_one_that_rings_is_a_fault() -> None:
    async def main(loop: VirtualLoop) -> None:
        alarm = Alarm(Alarms(loop, LoopClock(loop)), lambda: None)
        alarm.retire()
        with pytest.raises(AssertionError, match="retired"):
            alarm.ring()

    run(main, limit_s=10.0)
