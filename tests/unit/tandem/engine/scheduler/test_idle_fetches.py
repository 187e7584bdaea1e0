"""Fetches that bring nothing make room: for whom, when, how often, and never so that somebody waits for ever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.request import ChildRequest
from tandem.engine.protocol import FetchJob, KvChange
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.scheduler_harness import Harness


def harness(blocks: int = 8, **settings_: float) -> Harness:
    return Harness(
        SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=128, eos_rate=0.0, vocab=1000),
        SchedulerSettings(
            min_prefill_tokens=1,
            max_batched_tokens=64,
            watermark=0.0,
            queue_s=1e6,
            **settings_,  # type: ignore[arg-type]
        ),
    )


def prompt(number: int, tokens: int) -> tuple[int, ...]:
    return tuple(range(100 * number, 100 * number + tokens))


def ask(h: Harness, number: int, tokens: int, priority: int = 0) -> int:
    """A decode work; its fetch begins as soon as its blocks fit."""
    work_id = h.submit(prompt(number, tokens), "decode", max_tokens=3, priority=priority)
    h.step()
    return work_id


def wait(h: Harness, seconds: float) -> None:
    h.now += seconds
    h.step()


def test_an_idle_fetch_gives_its_blocks_to_whoever_waits_and_gets_others_later() -> None:
    h = harness()
    first, second = ask(h, 1, 20), ask(h, 2, 20)
    assert list(h.fetches) == [first]
    wait(h, 1.5)
    assert h.withdrawn == []
    wait(h, 1.0)
    assert h.withdrawn == [first]
    assert list(h.fetches) == [], "the slots are not free before the fetch has ended"
    h.stop_withdrawn()
    h.step()
    assert list(h.fetches) == [second]
    h.land_all(second)
    h.provide(second, 0)
    h.run()
    assert list(h.fetches) == [first]
    h.land_all(first)
    h.provide(first, 0)
    h.run()
    assert any("gave its blocks back" in reason for reason in h.stats(first).reasons)
    h.drain()


def test_late_bytes_of_a_withdrawn_fetch_do_not_reach_its_successor() -> None:
    h = harness()
    first, second = ask(h, 1, 20), ask(h, 2, 20)
    wait(h, 2.5)
    h.stop_withdrawn(late=True)
    h.step()
    assert list(h.fetches) == [], "quarantined slots are nobody's"
    h.quiet()
    h.step()
    assert list(h.fetches) == [second]
    h.cancel(first)
    h.land_all(second)
    h.provide(second, 0)
    h.run()
    h.drain()


def test_nobody_gives_way_while_nobody_waits_or_when_it_would_not_help() -> None:
    h = harness(blocks=10)
    alone = ask(h, 1, 12)
    wait(h, 60.0)
    assert h.withdrawn == []
    h.land_all(alone)
    running = h.submit(prompt(3, 16), "local", max_tokens=8)
    h.step()
    ask(h, 2, 38)
    wait(h, 0.1)
    assert h.withdrawn == [], "even with its blocks the other would not fit"
    h.cancel(running)
    h.drain()


def test_blocks_that_landed_keep_a_fetch_going() -> None:
    h = harness()
    first, _ = ask(h, 1, 20), ask(h, 2, 20)
    for index in range(4):
        wait(h, 1.5)
        h.land(first, index)
    assert h.withdrawn == []
    wait(h, 2.5)
    assert h.withdrawn == [first]
    h.drain()


def test_a_fetch_for_which_nothing_has_come_makes_room_at_once_for_blocks_that_wait() -> None:
    h = harness()
    first, second = ask(h, 1, 20), ask(h, 2, 20)
    h.provide(second, 0)
    h.step()
    assert h.withdrawn == [first]
    h.stop_withdrawn()
    h.step()
    assert list(h.fetches) == [second]
    h.drain()


def test_a_work_that_waits_goes_first_once_its_blocks_are_there() -> None:
    h = harness()
    running = h.submit(prompt(9, 20), "local", max_tokens=4)
    h.step()
    _, second = ask(h, 1, 20), ask(h, 2, 20)
    h.provide(second, 0)
    h.cancel(running)
    h.step()
    assert list(h.fetches) == [second]
    h.drain()


def test_who_lost_prefill_does_not_begin_to_fetch() -> None:
    h = harness()
    running = h.submit(prompt(9, 20), "local", max_tokens=4)
    h.step()
    lost = ask(h, 1, 20)
    h.sample_first(lost)
    h.cancel(running)
    h.run()
    assert list(h.fetches) == []
    assert h.stats(lost).tokens_computed == 20
    h.drain()


def test_who_loses_prefill_stops_fetching_and_computes_in_its_place() -> None:
    h = harness()
    lost = ask(h, 1, 20)
    waiting = ask(h, 2, 20)
    h.land(lost, 0)
    h.sample_first(lost)
    assert h.withdrawn == [lost]
    h.sample_first(lost)
    wait(h, 10.0)
    assert h.withdrawn == [lost], "it is stopped once"
    h.stop_withdrawn()
    h.run()
    assert h.stats(lost).tokens_computed == 16
    assert list(h.fetches) == [waiting], "nobody overtook it"
    h.drain()


def test_who_loses_prefill_flees_from_late_bytes() -> None:
    h = harness(blocks=16)
    lost = ask(h, 1, 20)
    h.land(lost, 0)
    h.sample_first(lost)
    h.stop_withdrawn(late=True)
    h.run()
    assert h.stats(lost).tokens_computed == 16
    h.drain()


def test_who_loses_prefill_when_all_is_computed_goes_on_fetching() -> None:
    h = harness()
    work = h.submit(prompt(1, 20), "decode", max_tokens=3, branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
    h.step()
    h.land(work, 0)
    h.provide(work, 0)
    h.sample_first(work)
    assert h.withdrawn == []
    h.land_all(work)
    h.run()
    assert h.stats(work).tokens_pulled == 20
    h.drain()


def test_turns_grow_until_a_fetch_can_conclude() -> None:
    """Two fetches whose blocks never come, and a transport that needs 30 s to find that out."""
    h = harness()
    works = [ask(h, 1, 20), ask(h, 2, 20)]
    began: dict[int, float] = {}
    for _ in range(2000):
        h.stop_withdrawn()
        h.step()
        began = {work: began.get(work, h.now) for work in h.fetches}
        for work, at in began.items():
            if h.now - at > 30.0:
                h.end_fetch(work, "nothing came")
                h.provide(work, 0)
        h.now += 0.1
        if all(h.stories[work].ended is not None for work in works):
            break
    assert all(h.stories[work].ended is not None for work in works), "they give way to each other for ever"
    h.drain()


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=10),
    ready_in=st.lists(st.integers(1, 60), min_size=10, max_size=10),
    priorities=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=10, max_size=10),
    blocks=st.integers(9, 14),
)
def test_every_fetch_gets_its_turn(sizes: list[int], ready_in: list[int], priorities: list[int], blocks: int) -> None:
    """A holder computes prompts one after the other, in an order of its own, and keeps each until it was fetched: a
    decode worker that kept its reservations would wait for it and it for the decode worker."""
    h = harness(blocks=blocks)
    works = [
        h.submit(
            prompt(number, size), "decode", max_tokens=3, priority=priorities[number], branches=(ChildRequest(0, 7),)
        )
        for number, size in enumerate(sizes)
    ]
    order = sorted(works, key=lambda work: ready_in[works.index(work)])
    for turn in range(4000):
        h.stop_withdrawn(late=turn % 3 == 0)
        h.quiet()
        h.step()
        if order and h.stories[order[0]].provided == {}:
            h.provide(order[0], 0)
        if order and order[0] in h.fetches:
            h.land_all(order.pop(0))
        h.now += 0.05
        if not order and all(story.ended is not None for story in h.stories.values()):
            break
    assert not order, f"{len(order)} works never got their blocks"
    assert h.now < 60.0
    h.drain()


def test_blocks_found_here_do_not_count_as_room_for_who_shares_them() -> None:
    """A preempted work finds its prefix here, unused: what it still lacks is all that is wanted of an idle fetch."""
    h = harness(blocks=8)
    cached = h.submit(prompt(1, 16), "local", max_tokens=1)
    h.run()
    assert h.stories[cached].ended is not None
    ask(h, 2, 12)
    again = h.submit(prompt(1, 28), "local", max_tokens=1)
    wait(h, 2.5)
    assert h.withdrawn, "four blocks are available, but they are the ones it shares"
    h.stop_withdrawn()
    h.run()
    assert h.stories[again].ended is not None
    h.drain()


def test_an_outbox_does_not_tell_of_a_fetch_that_was_withdrawn_before() -> None:
    outbox = EngineEvents()
    outbox.fetch(FetchJob(1, ()))
    outbox.fetch(FetchJob(2, ()))
    assert not outbox.withdraw(1)
    assert outbox.withdraw(3)
    report = outbox.take(KvChange())
    assert report is not None
    assert (report.fetches, report.withdrawn) == ((FetchJob(2, ()),), (3,))
