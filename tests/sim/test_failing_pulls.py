"""Pulls that fail: decode asks before it computes a prompt again, and it is a retry; no client fails, and hardly
anything is computed twice."""

import asyncio

from tests.sim.test_starvation import ANSWER, PROMPT, TWICE_MAX, Starved, slow_steps, starve


def retries(starved: Starved) -> int:
    """How many the router has charged."""
    life = starved.stalled.platform.router.life
    assert life is not None
    return life.dispatcher._retries._retries


def failed_pulls(starved: Starved) -> int:
    """Prompts that decode computed as their blocks did not come."""
    return starved.stalled.platform.meter.sum("tandem_attempts_total", "prefill_lost")


async def changed_blocks(starved: Starved) -> None:
    """Now and then one block changes on its way from a prefill worker that is starved."""
    await slow_steps(starved, 5.0)
    for _ in range(2):
        starved.stalled.platform.network.corrupt("p0", 1)
        await asyncio.sleep(15.0)


def test_pulls_that_fail_now_and_then_are_retries_and_hardly_anything_is_computed_twice() -> None:
    """Prefill is called off with most of the prompt not computed yet."""
    starved = starve(changed_blocks, prefer="disaggregated", requests=120, timeout_s=3600.0)
    assert starved.ends == {"done": 120}
    assert starved.stalled.platform.network.corrupted == 2
    assert 1 <= failed_pulls(starved) <= retries(starved)
    for each in starved.heard:
        each.check_whole(ANSWER)
    assert starved.computed <= (1 + TWICE_MAX) * PROMPT * 120


async def no_exports(starved: Starved) -> None:
    """From now on no block of the prefill worker arrives as it was."""
    for receiver in ("d0", "d1"):
        starved.stalled.platform.network.spoil(("p0", receiver))


def test_a_prefill_worker_whose_exports_always_fail_ends_in_local_prompts_and_charged_retries() -> None:
    """The pairs are left after some failures, of which each prompt is one retry."""
    starved = starve(no_exports, requests=60, prefer="auto")
    assert starved.ends == {"done": 60}
    for each in starved.heard:
        each.check_whole(ANSWER)
    failed = failed_pulls(starved)
    assert 1 <= failed <= retries(starved) <= 2 * failed
    assert starved.placed("local") > 40
    assert starved.computed <= PROMPT * (len(starved.heard) + 2 * failed)
