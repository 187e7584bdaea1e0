"""A prefill worker that is short of time: it gets on slowly, nobody computes its prompts again, and none is failed.
Prompts of which nothing is computed go elsewhere when they would come too late.

Real services on virtual time. What is slow is drawn from nothing: each world is one kind of shortage.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.simulated.runner import SimulatedRunner
from tests.sim.test_deadlines import Heard, More, Stalled

PROMPT: Final = 998
ANSWER: Final = 86
TWICE_MAX: Final = 0.01
"""The share of all prompt tokens that may be computed twice."""

Starve = Callable[["Starved"], Coroutine[Any, Any, None]]


@dataclass
class Starved:
    """One prefill and two decode workers, and what became of what was asked."""

    stalled: Stalled
    heard: list[Heard] = field(default_factory=list)
    over: bool = False
    computed: int = 0
    """Prompt tokens that all workers together have computed."""

    def counting(self) -> None:
        """From now on count what is computed."""
        for node in self.stalled.platform.nodes.values():
            if node.incarnation is not None:
                self._count(node.incarnation.runner)

    def _count(self, runner: SimulatedRunner) -> None:
        execute = runner.execute

        async def counted(step: Step) -> StepResult:
            self.computed += sum(row.count for row in step.rows if row.count > 1)
            return await execute(step)

        runner.execute = counted  # type: ignore[method-assign]

    @property
    def moved(self) -> int:
        return self.stalled.platform.meter.sum("tandem_starved_prompts_total", "moved")

    @property
    def refused(self) -> int:
        return self.stalled.platform.meter.sum("tandem_starved_prompts_total", "refused")

    @property
    def ends(self) -> Counter[str]:
        return Counter(each.error.code if each.error is not None else "done" for each in self.heard)

    @property
    def given_up(self) -> int:
        return self.stalled.platform.meter.sum("tandem_attempts_total", "prefill_lost")

    def placed(self, mode: str) -> int:
        return self.stalled.platform.meter.sum("tandem_placements_total", mode)

    @property
    def twice(self) -> float:
        """Tokens computed twice, as a share of all prompts'."""
        again = self.stalled.platform.meter.sum("tandem_tokens_computed_twice_total")
        return again / (PROMPT * len(self.heard))


async def slow_steps(starved: Starved, factor: float) -> None:
    """From now on each step of the prefill worker takes so many times as long."""
    incarnation = starved.stalled.platform.nodes["p0"].incarnation
    assert incarnation is not None
    runner, clock = incarnation.runner, starved.stalled.loop
    execute = runner.execute

    async def slow(step: Step) -> StepResult:
        began = clock.time()
        result = await execute(step)
        await asyncio.sleep((factor - 1) * (clock.time() - began))
        return result

    runner.execute = slow  # type: ignore[method-assign]


async def stopped(starved: Starved, stop_s: float, go_s: float) -> None:
    """The prefill worker's process gets its time in slices, with long pauses between."""
    node = starved.stalled.platform.nodes["p0"]
    while not starved.over:
        node.freeze()
        await asyncio.sleep(stop_s)
        node.thaw()
        await asyncio.sleep(go_s)


def starve(
    how: Starve,
    *,
    prefer: str = "auto",
    requests: int = 60,
    rate: float = 2.0,
    timeout_s: float = 90.0,
    workers: str = "p0 d0 d1",
) -> Starved:
    """Serve requests, of which the first few find the prefill worker well."""

    async def main(loop: VirtualLoop) -> Starved:
        starved = Starved(Stalled(loop, Deadlines(), workers, More(step_s=0.02), prefer))
        platform = starved.stalled.platform
        platform.start()
        await platform.until(platform.ready, 60.0, "the platform is not ready")
        await asyncio.sleep(1.0)
        starved.counting()
        starving: asyncio.Task[None] | None = None
        for number in range(requests):
            if number == 5:
                starving = loop.create_task(how(starved))
            starved.heard.append(starved.stalled.ask(tokens=PROMPT, output=ANSWER, timeout_s=timeout_s)[0])
            await asyncio.sleep(1 / rate)
        for each in starved.heard:
            await each.ended.wait()
        starved.over = True
        assert starving is not None
        await starving
        await starved.stalled.free()
        return starved

    return run(main, limit_s=10_000.0)


@pytest.mark.parametrize("factor", [20.0, 100.0])
def test_a_prefill_worker_with_slow_steps_fails_nobody_and_hardly_anything_is_computed_twice(factor: float) -> None:
    starved = starve(lambda world: slow_steps(world, factor))
    assert starved.ends == {"done": 60}
    assert starved.placed("disaggregated") >= 5
    assert starved.twice <= TWICE_MAX


@pytest.mark.parametrize(("stop_s", "go_s"), [(0.95, 0.05), (1.9, 0.1)])
def test_a_prefill_worker_that_runs_in_slices_is_given_up_by_nobody(stop_s: float, go_s: float) -> None:
    starved = starve(lambda world: stopped(world, stop_s, go_s))
    assert starved.ends == {"done": 60}
    assert starved.placed("disaggregated") >= 5
    assert starved.given_up == 0
    assert starved.twice <= TWICE_MAX


def test_hand_offs_that_wait_for_a_slow_prefill_keep_their_workers() -> None:
    """More than decode has room for: they wait for a prompt that is computed elsewhere, which is no stall here."""
    starved = starve(lambda world: slow_steps(world, 20.0), prefer="disaggregated", timeout_s=3600.0)
    assert starved.ends == {"done": 60}
    assert (starved.placed("disaggregated"), starved.placed("local")) == (60, 0)
    assert starved.given_up == 0


SHORT: Final[tuple[Starve, ...]] = (
    lambda world: slow_steps(world, 20.0),
    lambda world: stopped(world, 1.9, 0.1),
    lambda world: stopped(world, 0.95, 0.05),
)


def check_nothing_twice(starved: Starved) -> None:
    """Every prompt was computed once, and every answer is whole."""
    assert starved.twice <= TWICE_MAX
    whole = [each for each in starved.heard if each.error is None]
    for each in whole:
        each.check_whole(ANSWER)
    assert starved.computed <= (1 + TWICE_MAX) * PROMPT * len(starved.heard)
    assert starved.computed >= (PROMPT - 1) * len(whole)


@pytest.mark.parametrize("how", SHORT, ids=["slow steps", "long slices", "short slices"])
def test_where_nothing_but_hand_offs_is_wanted_no_client_waits_in_vain(how: Starve) -> None:
    """Prompts that the only prefill worker cannot have in time are computed by decode, before clients give up."""
    starved = starve(how, prefer="disaggregated", requests=120)
    assert starved.ends == {"done": 120}
    assert starved.moved > 0
    assert starved.given_up == 0
    check_nothing_twice(starved)


@pytest.mark.parametrize("prefer", ["auto", "disaggregated"])
def test_prompts_leave_a_starved_worker_for_one_that_is_well(prefer: str) -> None:
    """They come faster than placement learns how slow the worker has become: at two a second none waits there."""
    starved = starve(SHORT[0], prefer=prefer, workers="p0 p1 d0 d1", timeout_s=3600.0, rate=30.0)
    assert starved.ends == {"done": 60}
    assert starved.moved > 0
    assert starved.placed("local") == 0 or prefer == "auto"
    check_nothing_twice(starved)
