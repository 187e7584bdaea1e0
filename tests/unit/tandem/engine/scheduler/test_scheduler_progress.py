"""Of which works the scheduler says that they get on, and when: a router takes the others to stand still."""

from tandem.core.request import ChildRequest
from tests.unit.tandem.engine.scheduler.test_scheduler import engine, prompt
from tests.worlds.scheduler_harness import Harness


def told(h: Harness) -> list[int]:
    """Works that were said to get on since this was asked last."""
    works, h.progressed = [work_id for work_id, _ in h.progressed], []
    return sorted(works)


def step_that_ends_at(h: Harness, now: float) -> None:
    h.begin()
    h.now = now
    h.finish()


def test_blocks_that_land_are_progress_of_their_own_work_alone() -> None:
    h = engine(max_sequences=1)
    fetched = h.submit(prompt(20), "decode")
    waits = h.submit(prompt(20, 100))
    h.begin()
    h.now = 1.0
    h.land(fetched, 0)
    assert told(h) == [fetched]
    h.now = 1.2
    h.land(fetched, 1)
    assert told(h) == [], "it was said a moment ago"
    h.now = 1.3
    h.land(fetched, 2)
    assert told(h) == [fetched]
    h.land_all(fetched)
    h.provide(fetched, 0)
    h.run()
    assert h.stories[waits].ended is not None


def test_works_whose_blocks_land_at_once_are_told_of_each() -> None:
    h = engine()
    works = [h.submit(prompt(20, 100 * number), "decode") for number in range(3)]
    h.begin()
    h.now = 1.0
    for work in works:
        h.land(work, 0)
    assert told(h) == works


def test_a_prompt_is_told_of_though_blocks_have_landed_right_before_its_step_ends() -> None:
    h = engine(max_batched_tokens=16)
    fetched = h.submit(prompt(20, 100), "decode")
    computed = h.submit(prompt(64), "prefill")
    for index in range(3):
        h.begin()
        h.now = index + 0.9
        h.land(fetched, index)
        told(h)
        h.now = index + 1.0
        h.finish()
        assert (computed, 16 * (index + 1)) in h.progressed


def test_a_prompt_is_told_of_though_its_branches_have_nothing_left_to_wait_for() -> None:
    """They fork with the last block, which the fetch did not bring, and only the first token is not there."""
    h = engine()
    work = h.submit(prompt(20), "decode", branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
    h.step()
    h.land(work, 0)
    h.end_fetch(work, "broken")
    told(h)
    step_that_ends_at(h, 1.0)
    assert told(h) == [work]
    h.drain()


def test_who_waits_for_its_turn_behind_a_prompt_that_is_computed_gets_on() -> None:
    h = engine(max_batched_tokens=16)
    computed = h.submit(prompt(100))
    brought = h.submit(prompt(20, 120), bring=2)
    queued = h.submit(prompt(20, 160))
    h.begin()
    h.finish()
    h.land_all(brought)
    told(h)
    step_that_ends_at(h, 1.0)
    assert told(h) == [computed, brought, queued]
    h.run()
    h.drain()


def test_a_preempted_work_gets_on_with_the_prompts_that_are_computed_before_it() -> None:
    h = engine(blocks=10, max_batched_tokens=8)
    first = h.submit(prompt(8), max_tokens=20)
    second = h.submit(prompt(8, 50), max_tokens=20)
    while not h.scheduler.state.preemptions:
        assert h.step()
    urgent = h.submit(prompt(12, 100), priority=1)
    told(h)
    step_that_ends_at(h, h.now + 1.0)
    assert h.stories[first].ended is None
    assert told(h) == [second, urgent]
    h.run()
    h.drain()
