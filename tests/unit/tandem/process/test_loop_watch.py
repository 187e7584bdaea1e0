"""How long the event loop was held, from two clocks that a test sets."""

import asyncio

import pytest

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.process.loop_watch import LoopWatch, held_s
from tandem.process.metrics import PrometheusMeter


@pytest.mark.parametrize(
    ("gap_s", "computed_s", "wall_s", "thread_s"),
    [
        (0.010, 0.001, 0.0, 0.0),
        (0.510, 0.510, 0.5, 0.5),
        (0.510, 0.110, 0.5, 0.1),
        (0.510, 0.004, 0.5, 0.0),
        (0.110, 0.900, 0.1, 0.1),
    ],
)
def test_what_is_beyond_a_period_was_held(gap_s: float, computed_s: float, wall_s: float, thread_s: float) -> None:
    assert held_s(gap_s, computed_s) == (pytest.approx(wall_s), pytest.approx(thread_s))


def test_a_loop_that_computes_and_one_that_gets_no_processor_are_told_apart() -> None:
    meter, jumped = PrometheusMeter(), {"wall": 0.0, "thread": 0.0}

    async def main(loop: VirtualLoop) -> None:
        def hold(wall_s: float, thread_s: float) -> None:
            jumped["wall"] += wall_s
            jumped["thread"] += thread_s

        watch = LoopWatch(meter, lambda: loop.time() + jumped["wall"], lambda: jumped["thread"])
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(0.105)
        hold(0.3, 0.3)
        await asyncio.sleep(0.1)
        hold(0.8, 0.0)
        await asyncio.sleep(0.1)
        watching.cancel()

    run(main)
    page = meter.render().decode()
    assert 'tandem_loop_held_seconds_count{clock="wall"} 30.0' in page
    assert 'tandem_loop_held_seconds_bucket{clock="wall",le="0.2"} 28.0' in page
    assert 'tandem_loop_held_seconds_bucket{clock="wall",le="0.5"} 29.0' in page
    assert 'tandem_loop_held_seconds_bucket{clock="thread",le="0.2"} 29.0' in page
    assert 'tandem_loop_held_seconds_bucket{clock="thread",le="0.5"} 30.0' in page
