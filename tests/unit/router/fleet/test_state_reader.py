"""Load figures that cannot be end the link instead of spreading into what placement knows."""

import asyncio
from math import inf, nan

import msgspec
import pytest

from router.fleet.state_reader import sound
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import StepFit, StepSums
from tests.unit.router.placement.test_router_placement import load
from tests.worlds.router_world import World

FIT = StepFit(0.01, 1e-4, 1e-8, 1e-3, 5e-5, 1e-9, StepSums(10, 0.2, 40.0), StepSums(5, 0.3, 10.0, 0.0, 5.0, 900.0))


def test_what_workers_measure_is_sound() -> None:
    assert sound(load())
    assert sound(msgspec.structs.replace(load(step_s=0.02), fit=FIT))


@pytest.mark.parametrize("value", [nan, inf, -inf, -1.0])
@pytest.mark.parametrize("name", ["step_s", "prefill_tokens_per_s", "prefill_token_s", "longest_step_s", "overdue_s"])
def test_a_figure_that_is_no_time_is_not(name: str, value: float) -> None:
    assert not sound(load(**{name: value}))


@pytest.mark.parametrize("value", [nan, inf, -1.0])
@pytest.mark.parametrize("name", ["base_s", "token_s", "position_s"])
def test_nor_is_a_fit_of_such(name: str, value: float) -> None:
    assert not sound(msgspec.structs.replace(load(), fit=msgspec.structs.replace(FIT, **{name: value})))


def test_nor_are_steps_without_time() -> None:
    for sums in (StepSums(10, 0.0, 40.0), StepSums(10, nan, 40.0), StepSums(10, 0.2, inf), StepSums(-1, 0.2)):
        assert not sound(msgspec.structs.replace(load(), fit=msgspec.structs.replace(FIT, plain=sums)))


def test_a_worker_with_such_figures_is_not_used_and_all_others_are() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop)
        for name in ("u1", "u2"):
            world.worker(name, "unified")
        world.workers["u1"].load = load(step_s=nan, blocks_free=1000)
        await world.start()
        await asyncio.sleep(5)
        assert any("cannot be" in problem for problem in world.fleet.problems().values())
        for _ in range(4):
            client = world.ask()
            await client.ended.wait()
        assert not world.workers["u1"].submits
        assert len(world.workers["u2"].submits) == 4
        await world.stop()

    run(main)
