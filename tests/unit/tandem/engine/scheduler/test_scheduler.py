"""What the scheduler decides, case by case; `test_scheduler_properties` mixes them at random."""

from dataclasses import replace

import msgspec
import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import Handle, unpack_tokens
from tandem.core.request import ChildRequest, Sampling
from tandem.engine.protocol import FirstTokens, Gone, Pending
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.scheduler_harness import EPOCH, Harness, export_names

MODEL = SimulatedModel(block_tokens=4, blocks=64, context_tokens=256, vocab=1000)


def engine(blocks: int = 64, eos_rate: float = 0.0, **settings: object) -> Harness:
    model = SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=256, vocab=1000, eos_rate=eos_rate)
    given = {"max_batched_tokens": 64, "min_prefill_tokens": 4, "watermark": 0.0, **settings}
    return Harness(model, SchedulerSettings(**given))  # type: ignore[arg-type]


def prompt(length: int, base: int = 0) -> tuple[int, ...]:
    return tuple(range(base, base + length))


def code_of(work: object) -> str:
    with pytest.raises(TandemError) as raised:
        work()  # type: ignore[operator]
    return raised.value.code


# ---- tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 8, 64])
def test_tokens_are_the_references_whatever_the_chunks(budget: int) -> None:
    h = engine(max_batched_tokens=budget, min_prefill_tokens=1)
    for length in range(1, 14):
        h.submit(prompt(length, base=100 * length), max_tokens=6)
    h.run()
    assert all(story.ended is not None for story in h.stories.values())
    h.drain()


def test_chunks_end_at_block_edges_where_they_can() -> None:
    h = engine(max_batched_tokens=7)
    h.submit(prompt(21), max_tokens=1)
    h.run()
    rows = [(row.start, row.count) for step in h.steps for row in step.rows]
    assert rows == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 5)]


def test_ends_by_end_token_stop_token_and_length() -> None:
    h = engine(eos_rate=0.2)
    finishes: dict[str | None, int] = {}
    for number in range(40):
        work = h.submit(prompt(5, number * 7), max_tokens=8, branches=(ChildRequest(0, number),))
        h.run()
        last = h.stories[work].emitted[0][-1]
        finishes[last.finish] = finishes.get(last.finish, 0) + 1
        assert (last.finish == "stop") == (last.token == 0)
    assert finishes.keys() == {"stop", "length"}
    free = h.submit(prompt(5), max_tokens=8, ignore_eos=True)
    h.run()
    answer = h.tokens(free)
    assert len(answer) == 8
    stopped = h.submit(prompt(5), max_tokens=8, stop_token_ids=(answer[1],), ignore_eos=True)
    h.run()
    last = h.stories[stopped].emitted[0][-1]
    assert (last.finish, last.stop_reason, last.position) == ("stop", answer[1], 2)


def test_end_tokens_cannot_be_drawn_below_min_tokens() -> None:
    h = engine(eos_rate=0.9)
    work = h.submit(prompt(5), max_tokens=30, min_tokens=6)
    h.run()
    tokens = h.tokens(work)
    assert 0 not in tokens[:6]
    assert len(tokens) >= 7
    assert tokens[-1] == 0


def test_forced_tokens_count_as_output_and_are_not_emitted_again() -> None:
    h = engine()
    whole = h.submit(prompt(9), max_tokens=8, sampling=Sampling(frequency_penalty=1.0))
    h.run()
    tokens = h.tokens(whole)
    for cut in range(1, 8):
        branch = (ChildRequest(0, 11, tokens[:cut]),)
        again = h.submit(prompt(9), max_tokens=8, branches=branch, sampling=Sampling(frequency_penalty=1.0))
        h.run()
        assert h.tokens(again) == tokens[cut:]
        assert h.stories[again].emitted[0][0].position == cut + 1


def test_a_corrupt_byte_in_an_attended_block_changes_what_follows() -> None:
    h = engine()
    h.submit(prompt(12), max_tokens=6)
    for _ in range(2):
        h.step()
    slot = unpack_tokens(h.steps[-1].rows[0].table)[1]
    h.runner.memory.block(slot)[3] ^= 1
    with pytest.raises(AssertionError):
        h.run()


@pytest.mark.parametrize("mode", ["local", "prefill"])
def test_a_result_that_lacks_a_blocks_digests_is_refused(mode: str) -> None:
    """Taken as it is, the block would never be ready: whoever is to pull it would wait for nothing."""
    h = engine()
    h.submit(prompt(12), mode)
    assert h.begin()
    assert h.running is not None
    result = h.runner.compute(h.running, 0.001)
    with pytest.raises(ValueError, match="shorter"):
        h.scheduler.apply(msgspec.structs.replace(result, digests=result.digests[:-1]), h.now)


# ---- sharing --------------------------------------------------------------------------------------------------


def test_a_shared_prefix_in_flight_is_computed_once() -> None:
    h = engine(max_batched_tokens=8)
    first = h.submit((*prompt(24), 90), max_tokens=2)
    second = h.submit((*prompt(24), 91), max_tokens=2)
    h.run()
    computed = [h.stats(work) for work in (first, second)]
    assert computed[0].tokens_computed == 25
    assert (computed[1].tokens_computed, computed[1].tokens_reused) == (1, 24)


def test_equal_prefixes_in_one_step_are_computed_by_one() -> None:
    h = engine()
    works = [h.submit((*prompt(8), 90 + number), max_tokens=2) for number in range(3)]
    h.run()
    assert [h.stats(work).tokens_computed for work in works] == [9, 1, 1]
    assert [h.stats(work).tokens_reused for work in works] == [0, 8, 8]


def test_what_equal_prompts_have_in_common_behind_a_cached_prefix_is_computed_by_one() -> None:
    """Requests that share a long system prompt would each pay for what they share beyond it."""
    h = engine()
    h.submit(prompt(8), max_tokens=1)
    h.run()
    works = [h.submit((*prompt(24), 90 + number), max_tokens=2) for number in range(3)]
    h.run()
    assert [h.stats(work).tokens_computed for work in works] == [17, 1, 1]
    assert [h.stats(work).tokens_reused for work in works] == [8, 24, 24]
    assert "waited a step for a shared prefix being computed" in h.stats(works[1]).reasons


def test_a_fully_cached_prompt_recomputes_its_last_token_without_writing() -> None:
    h = engine()
    h.submit(prompt(8), max_tokens=1)
    h.run()
    again = h.submit(prompt(8), max_tokens=1)
    h.run()
    (row,) = h.steps[-1].rows
    assert (row.start, row.count, row.write) == (7, 1, False)
    stats = h.stats(again)
    assert (stats.tokens_computed, stats.tokens_reused) == (1, 7)


def test_branches_share_one_prompt_and_copy_its_tail() -> None:
    h = engine()
    branches = tuple(ChildRequest(number, 50 + number) for number in range(3))
    work = h.submit(prompt(10), max_tokens=5, branches=branches)
    h.run()
    assert sum(row.count for row in h.steps[0].rows) == 10
    assert len(h.steps[0].rows[0].draws) == 3
    tables = [unpack_tokens(row.table) for row in h.steps[1].rows]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    assert h.stats(work).tokens_computed == 10
    assert len({h.tokens(work, number) for number in range(3)}) == 3


def test_without_prefix_cache_nothing_is_named() -> None:
    h = engine(prefix_cache=False)
    for _ in range(2):
        work = h.submit(prompt(9), max_tokens=1)
        h.run()
    assert h.scheduler.snapshot() == ()
    assert h.stats(work).tokens_computed == 9


# ---- decode works ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 5, 8, 11])
def test_a_fetched_prompt_is_not_computed(length: int) -> None:
    h = engine()
    work = h.submit(prompt(length), "decode", max_tokens=4)
    h.run()
    names = export_names(prompt(length), 4)
    assert [target.name for target in h.fetches[work].job.targets] == names
    h.provide(work, 0)
    assert not h.step()
    h.land_all(work)
    h.run()
    assert h.steps[0].rows[0].start == length
    assert h.steps[0].rows[0].draws[0].position == 2
    assert sorted(h.steps[0].landed) == sorted(unpack_tokens(h.steps[0].rows[0].table)[: len(names)])
    stats = h.stats(work)
    assert (stats.tokens_computed, stats.tokens_pulled) == (0, length)


def test_blocks_of_the_own_cache_are_not_fetched_and_an_empty_fetch_is_announced() -> None:
    h = engine()
    h.submit(prompt(8), max_tokens=1)
    h.run()
    partly = h.submit(prompt(11), "decode")
    fully = h.submit(prompt(8), "decode")
    h.run()
    assert [target.index for target in h.fetches[partly].job.targets] == [2]
    assert h.fetches[partly].job.targets[0].tokens == 3
    assert h.fetches[fully].job.targets == ()
    h.provide(fully, 0)
    h.run()
    assert h.stories[fully].ended is not None
    h.land_all(partly)
    h.provide(partly, 0)
    h.run()
    assert h.stories[partly].ended is not None
    h.drain()


def test_what_a_fetch_did_not_bring_is_computed_and_nothing_else() -> None:
    h = engine()
    work = h.submit(prompt(19), "decode", max_tokens=3)
    h.run()
    for index in (0, 2, 4):
        h.land(work, index)
    h.end_fetch(work, "holder lost")
    h.provide(work, 0)
    h.run()
    assert [(row.start, row.count) for step in h.steps for row in step.rows] == [(4, 4), (12, 4), (19, 1), (20, 1)]
    stats = h.stats(work)
    assert (stats.tokens_pulled, stats.tokens_computed) == (11, 8)
    assert "fetch ended: holder lost" in stats.reasons


def test_the_first_position_is_never_drawn_here_unless_told() -> None:
    h = engine()
    work = h.submit(prompt(9), "decode", max_tokens=3)
    h.run()
    h.end_fetch(work, "prefill lost")
    h.run()
    assert h.tokens(work) == ()
    assert all(not row.draws for step in h.steps for row in step.rows)
    h.sample_first(work)
    h.run()
    assert h.stories[work].ended is not None
    assert [emitted.position for emitted in h.stories[work].emitted[0]] == [1, 2, 3]


def test_a_relayed_first_token_is_emitted_once() -> None:
    h = engine()
    work = h.submit(prompt(9), "decode", max_tokens=3)
    h.run()
    h.provide(work, 0, relay=True)
    h.provide(work, 0)
    (first,) = h.stories[work].emitted[0]
    assert (first.position, first.relayed) == (1, True)
    h.land_all(work)
    h.run()
    assert [(e.position, e.relayed) for e in h.stories[work].emitted[0]] == [(1, True), (2, False), (3, False)]


def test_a_provided_end_token_below_min_tokens_does_not_end() -> None:
    h = engine()
    early = h.submit(prompt(9), "decode", max_tokens=4, min_tokens=1)
    late = h.submit(prompt(9), "decode", max_tokens=4)
    h.scheduler.provide_first(early, 0, 0, h.now)
    h.scheduler.provide_first(late, 0, 0, h.now)
    report = h.scheduler.take_report()
    assert report is not None
    assert [ended.work_id for ended in report.ended] == [late]


def test_a_first_token_that_comes_while_it_is_drawn_wins() -> None:
    h = engine()
    work = h.submit(prompt(9), "decode", max_tokens=4)
    h.run()
    h.land_all(work)
    h.sample_first(work)
    assert h.begin()
    h.provide(work, 0)
    h.finish()
    h.run()
    assert [emitted.position for emitted in h.stories[work].emitted[0]] == [2, 3, 4]


@pytest.mark.parametrize("when", ["queued", "fetching", "landed"])
def test_a_first_token_that_ends_the_sequence_leaves_nothing(when: str) -> None:
    h = engine()
    work = h.submit(prompt(9), "decode", max_tokens=1)
    if when != "queued":
        h.run()
    if when == "landed":
        h.land_all(work)
    h.provide(work, 0)
    assert h.stories[work].ended is not None
    if when == "fetching":
        assert h.scheduler.kv_cache.pool.quarantined == 3
        h.end_fetch(work, "not wanted any more")
    h.drain()


def test_slots_of_an_abandoned_fetch_are_not_given_away() -> None:
    h = engine(blocks=8)
    work = h.submit(prompt(20), "decode")
    h.run()
    h.land(work, 0)
    h.cancel(work)
    pool = h.scheduler.kv_cache.pool
    assert (pool.quarantined, pool.available) == (4, 4)
    late = tuple(target.slot for target in list(h.fetches[work].left.values())[:2])
    h.end_fetch(work, "cancelled", late)
    assert pool.quarantined == 2
    h.quiet()
    assert pool.available == 8


def test_slots_that_landed_and_were_given_away_are_not_loaded() -> None:
    h = engine(blocks=4)
    work = h.submit(prompt(13), "decode")
    h.run()
    h.land_all(work)
    h.cancel(work)
    h.submit(prompt(12, 50), max_tokens=1)
    h.run()
    assert len(unpack_tokens(h.steps[0].rows[0].table)) == 3
    assert not set(h.steps[0].landed) & set(unpack_tokens(h.steps[0].rows[0].table))


def test_late_slots_of_a_failed_fetch_are_replaced_before_anything_is_computed() -> None:
    h = engine()
    work = h.submit(prompt(19), "decode", max_tokens=3)
    h.run()
    h.land(work, 0)
    h.land(work, 1)
    late = (h.fetches[work].left[3].slot,)
    h.end_fetch(work, "timed out", late)
    h.provide(work, 0)
    h.begin()
    assert late[0] not in unpack_tokens(h.steps[-1].rows[0].table)
    assert h.steps[-1].rows[0].start == 8, "what landed is found by name"
    h.finish()
    h.quiet()
    h.run()
    assert h.stories[work].ended is not None


# ---- prefill works --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 7, 12])
def test_a_prefill_exports_its_blocks_as_they_complete_and_ends_with_the_first_token(length: int) -> None:
    h = engine(max_batched_tokens=4)
    work = h.submit(prompt(length), "prefill", max_tokens=9)
    names = export_names(prompt(length), 4)
    lease = h.stories[work].work.lease_id
    assert all(h.scheduler.leases.look(lease, name, EPOCH) == Pending() for name in names)
    for count in range(1, len(names) + 1):
        assert h.step()
        assert len(h.exports(work)) == count
    assert not h.step()
    assert h.stories[work].ended is not None
    (first,) = h.stories[work].emitted[0]
    assert h.scheduler.leases.first_tokens(lease) == FirstTokens(((0, first.token, first.finish),))
    assert h.scheduler.load().blocks_exported == len(names)
    h.scheduler.leases.release(lease)
    assert h.scheduler.kv_cache.pool.available == 64
    assert all(isinstance(h.scheduler.leases.look(lease, name, EPOCH), Gone) for name in names)


def test_an_answer_that_ends_with_its_first_token_keeps_no_blocks() -> None:
    """Nobody comes for them: with one-token answers a prefill worker would be full of leases that run out."""
    h = engine()
    work = h.submit(prompt(9), "prefill", max_tokens=1, lease_s=1e6)
    h.run()
    assert h.stories[work].ended is not None
    assert not h.scheduler.leases.exists(h.stories[work].work.lease_id)
    assert h.scheduler.load().blocks_exported == 0
    assert h.scheduler.kv_cache.pool.available == 64


def test_a_cached_prefix_is_exported_at_once_with_the_digests_it_had() -> None:
    h = engine()
    h.submit(prompt(8), max_tokens=1)
    h.run()
    work = h.submit(prompt(11), "prefill")
    h.begin()
    assert [handle.slot for handle in h.exports(work)] == list(unpack_tokens(h.steps[-1].rows[0].table)[:2])
    h.finish()
    assert len(h.exports(work)) == 3


def test_an_exported_tail_holds_nothing_of_who_had_its_slot_before() -> None:
    """Another user's KV would be handed to a peer along with it."""
    h = engine(blocks=4)
    h.submit(prompt(16), max_tokens=1)
    h.run()
    work = h.submit(prompt(7, 50), "prefill")
    h.run()
    assert len(h.exports(work)) == 2, "their bytes are compared"


def test_exports_end_with_the_lease_and_with_a_cancel() -> None:
    h = engine()
    expired = h.submit(prompt(9), "prefill", lease_s=5.0)
    cancelled = h.submit(prompt(9, 50), "prefill", lease_s=5.0)
    h.begin()
    h.cancel(cancelled)
    h.finish()
    assert len(h.exports(expired)) == 3
    assert h.exports(cancelled) == []
    h.now += 5.1
    h.step()
    assert h.exports(expired) == []
    assert h.scheduler.kv_cache.pool.available == 64


def test_a_lease_released_before_its_work_comes_refuses_the_work() -> None:
    h = engine()
    h.scheduler.leases.release("lease-1")
    assert code_of(lambda: h.submit(prompt(9), "prefill")) == "cancelled"


def test_new_prefills_wait_while_exports_hold_their_share_but_fetches_do_not() -> None:
    h = engine(blocks=16, export_share=0.5)
    first = h.submit(prompt(24), "prefill")
    second = h.submit(prompt(24, 50), "prefill")
    fetching = h.submit(prompt(8, 100), "decode")
    h.run()
    assert h.stories[first].ended is not None
    assert h.stories[second].ended is None
    assert fetching in h.fetches
    h.scheduler.leases.release("lease-1")
    h.run()
    assert h.stories[second].ended is not None
    assert any("exports" in reason for reason in h.stats(second).reasons)


def test_a_prompt_that_is_still_computed_counts_among_exports_with_all_of_its_blocks() -> None:
    """Else two prompts that do not fit the share together would be let in one shortly after the other."""
    h = engine(blocks=32, export_share=0.5, max_batched_tokens=8)
    first = h.submit(prompt(40), "prefill")
    second = h.submit(prompt(32, 50), "prefill")
    for exported in (2, 4, 6, 8):
        h.step()
        assert len(h.exports(first)) == exported
        assert h.scheduler.kv_cache.export_due == 10 - exported
    h.run()
    assert h.stories[first].ended is not None
    assert h.stories[second].ended is None
    h.drain()


def test_a_prompt_as_large_as_the_share_of_exports_waits_for_all_of_it() -> None:
    """Beside other exports it would take blocks beyond the share, which running sequences are to have."""
    h = engine(blocks=16, export_share=0.5)
    small = h.submit(prompt(8), "prefill")
    large = h.submit(prompt(32, 50), "prefill")
    h.run()
    assert h.stories[small].ended is not None
    assert h.stories[large].ended is None
    h.scheduler.leases.release("lease-1")
    h.run()
    assert h.stories[large].ended is not None
    assert h.scheduler.load().blocks_exported == 8


def test_exports_may_have_their_whole_share_and_a_prompt_beyond_it_the_whole_pool() -> None:
    """A block less, and the last prompt that fits would wait until others have been pulled."""
    h = engine(blocks=16, export_share=0.5)
    works = [h.submit(prompt(16, 100 * number), "prefill") for number in range(2)]
    h.run()
    assert all(h.stories[work].ended is not None for work in works)
    h.scheduler.leases.release("lease-2")
    beyond = h.submit(prompt(48, 300), "prefill")
    h.run()
    assert h.stories[beyond].ended is not None
    assert h.scheduler.load().blocks_exported == 16


def test_a_prompt_larger_than_the_share_of_exports_needs_only_room() -> None:
    h = engine(blocks=16, export_share=0.25)
    small = h.submit(prompt(8), "prefill")
    large = h.submit(prompt(40, 50), "prefill")
    h.run()
    assert h.stories[small].ended is not None
    assert len(h.exports(small)) == 2, "nobody has pulled them yet"
    assert h.stories[large].ended is not None
    larger = h.submit(prompt(20, 200), "prefill")
    h.run()
    assert h.stories[larger].ended is None, "there is no room for it beside what is exported"


def test_branches_with_own_forced_tokens_fork_after_what_they_share() -> None:
    h = engine()
    branches = (ChildRequest(0, 1, (300, 301)), ChildRequest(1, 2, (300,)), ChildRequest(2, 3, (300, 302, 303)))
    work = h.submit(prompt(6), "prefill", max_tokens=9, branches=branches)
    h.run()
    assert h.stories[work].ended is not None
    assert [h.stories[work].emitted[n][0].position for n in range(3)] == [3, 2, 4]
    assert len(h.exports(work)) == 2
    fetching = h.submit(prompt(6), "decode", max_tokens=9, branches=branches)
    h.run()
    assert [target.tokens for target in h.fetches[fetching].job.targets] == [3]
    h.land_all(fetching)
    for number in range(3):
        h.provide(fetching, number)
    h.run()
    assert h.stories[fetching].ended is not None


# ---- running out ----------------------------------------------------------------------------------------------


def test_the_latest_arrival_is_preempted_and_starts_again() -> None:
    h = engine(blocks=8)
    first = h.submit(prompt(8), max_tokens=16)
    second = h.submit(prompt(8, 50), max_tokens=16)
    h.run()
    stats = [h.stats(work) for work in (first, second)]
    assert stats[0].preemptions == 0
    assert stats[1].preemptions >= 1
    assert h.scheduler.load().preemptions == stats[1].preemptions


def test_a_block_is_not_copied_for_who_is_preempted_in_the_same_step() -> None:
    """The copy would be written over the KV of whoever was given its slot."""
    h = engine(blocks=5)
    urgent = h.submit(prompt(8, 50), "decode", max_tokens=6, priority=1)
    h.step()
    h.land_all(urgent)
    forked = h.submit(prompt(6), max_tokens=6, branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
    h.step()
    h.provide(urgent, 0)
    h.step()
    assert h.scheduler.state.preemptions == 2
    assert h.steps[-1].copies == ()
    h.run()
    assert len(h.tokens(urgent)) == 6
    assert h.stories[forked].ended is not None
    h.drain()


def test_higher_priority_goes_first_and_is_preempted_last() -> None:
    h = engine(blocks=8, max_sequences=1)
    for number in range(3):
        h.submit(prompt(8, 50 * number), max_tokens=2, priority=number)
    h.step()
    assert h.steps[0].rows[0].draws[0].work_id == 3
    urgent = engine(blocks=8)
    urgent.submit(prompt(8), max_tokens=16, priority=0)
    urgent.submit(prompt(8, 50), max_tokens=16, priority=1)
    urgent.run()
    stats = [urgent.stats(work).preemptions for work in urgent.stories]
    assert stats[0] >= 1
    assert stats[1] == 0


def test_a_preempted_prefill_takes_its_exports_back() -> None:
    h = engine(blocks=6, max_batched_tokens=5)
    running = h.submit(prompt(7), max_tokens=6)
    h.step()
    h.step()
    exporting = h.submit(prompt(16, 50), "prefill")
    h.step()
    before = h.exports(exporting)
    assert before
    while h.stories[running].ended is None and h.scheduler.state.preemptions == 0:
        h.step()
    assert h.scheduler.state.preemptions == 1
    assert h.exports(exporting) == []
    h.run()
    assert h.stories[exporting].ended is not None
    after = h.exports(exporting)
    assert len(after) == 4
    stale = [handle for handle in before if isinstance(handle, Handle) and handle in after]
    assert all(handle.name in h.names for handle in stale), "an unchanged handle must still hold its block"


def test_works_that_can_never_run_are_refused() -> None:
    h = engine(blocks=8)
    assert code_of(lambda: h.submit(prompt(200), max_tokens=57)) == "context_length_exceeded"
    assert code_of(lambda: h.submit(prompt(28), max_tokens=6)) == "out_of_blocks"
    assert code_of(lambda: h.submit((), max_tokens=6)) == "invalid_request"
    assert (
        code_of(lambda: h.submit(prompt(8), max_tokens=1, branches=(ChildRequest(0, 1, (5,)),))) == "invalid_request"
    )
    h.submit(prompt(28), max_tokens=5)
    h.submit(prompt(32), "prefill", max_tokens=50)
    h.run()
    h.drain()


def test_the_queue_is_bounded() -> None:
    h = engine(max_waiting=2)
    h.submit(prompt(8))
    h.submit(prompt(8))
    assert code_of(lambda: h.submit(prompt(8))) == "queue_full"


def test_whoever_waits_is_counted_whatever_for() -> None:
    """Who is not counted is queued beyond the bound, and routers send more to a worker that has enough."""
    h = engine(max_sequences=2, max_waiting=4)
    h.submit(prompt(16), bring=4)
    h.step()
    h.submit((*prompt(16), 90), bring=4)
    h.submit(prompt(8, 100), max_tokens=50)
    h.step()
    assert h.scheduler.load().waiting == 1, "one waits for blocks that are on their way for the first"
    for mode, bring in (("decode", 0), ("local", 2), ("local", 0)):
        h.submit(prompt(12, 200), mode, bring=bring)
        h.step()
    assert (h.scheduler.load().running, h.scheduler.load().waiting) == (2, 4)
    assert code_of(lambda: h.submit(prompt(8))) == "queue_full"
    h.drain()
    assert h.scheduler.load().waiting == 0


def test_queue_and_total_deadlines_fail_works_with_a_typed_error() -> None:
    h = engine(max_sequences=1, queue_s=10.0)
    running = h.submit(prompt(8), max_tokens=100, deadline=50.0)
    waiting = h.submit(prompt(8), deadline=50.0)
    h.step()
    h.now = 10.0
    h.step()
    assert h.stories[waiting].failed == "deadline_exceeded"
    assert h.stories[running].failed is None
    h.now = 50.0
    assert not h.step()
    assert h.stories[running].failed == "deadline_exceeded"
    assert h.scheduler.next_wake(h.now) is None
    assert h.scheduler.kv_cache.pool.available == 64


def test_a_request_whose_prefill_is_lost_waits_no_longer_for_a_place_than_one_that_comes_then() -> None:
    """However often it is said to be lost; until then its router knows better how long it may take."""
    h = engine(max_sequences=1, queue_s=10.0)
    running = h.submit(prompt(8), max_tokens=100)
    waiting = h.submit(prompt(8, 50), "decode")
    h.step()
    for now in (30.0, 37.0):
        h.now = now
        h.sample_first(waiting)
        h.step()
        assert h.scheduler.next_wake(h.now) == 40.0
    h.now = 39.9
    h.step()
    assert h.stories[waiting].failed is None
    h.now = 40.0
    h.step()
    assert h.stories[waiting].failed == "deadline_exceeded"
    assert h.stories[running].failed is None
    h.drain()


def test_an_idle_engine_knows_when_to_look_again() -> None:
    h = engine(queue_s=10.0)
    assert h.scheduler.next_wake(h.now) is None
    exported = h.submit(prompt(8), "prefill", lease_s=4.0)
    h.run()
    assert h.scheduler.next_wake(h.now) == pytest.approx((h.stats(exported).finished or 0.0) + 4.0)
    h.now += 4.0
    assert not h.step()
    h.submit(prompt(8), "decode", deadline=7.0)
    assert not h.step()
    assert h.scheduler.next_wake(h.now) == 7.0


def test_a_cancel_during_a_step_drops_its_result() -> None:
    h = engine()
    work = h.submit(prompt(8), max_tokens=5)
    h.begin()
    h.cancel(work)
    assert h.scheduler.kv_cache.pool.available == 64
    h.finish()
    assert h.tokens(work) == ()
    assert h.scheduler.snapshot() == ()
    h.drain()


def test_one_branch_can_be_cancelled_alone() -> None:
    h = engine()
    work = h.submit(prompt(9), max_tokens=5, branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
    h.step()
    h.cancel(work, 0)
    h.run()
    assert h.stories[work].ended is not None
    assert len(h.tokens(work, 0)) == 1
    assert len(h.tokens(work, 1)) == 5


def test_load_counts_what_runs_waits_and_is_held() -> None:
    h = engine(max_sequences=1, max_batched_tokens=4)
    h.submit(prompt(9), max_tokens=5)
    h.submit(prompt(6, 50), max_tokens=5)
    h.step()
    load = h.scheduler.load()
    assert (load.running, load.waiting, load.queued_prompt_tokens) == (1, 1, 11)
    assert load.blocks_free == 61
    h.run()
    load = h.scheduler.load()
    assert (load.running, load.waiting, load.queued_prompt_tokens, load.blocks_free) == (0, 0, 0, 64)
    assert load.blocks_cached > 0
    assert load.step_s == pytest.approx(0.001)


def test_every_branch_counts_once_before_and_after_they_fork() -> None:
    """Who counts for more takes the place of others, here and in the eyes of routers."""
    h = engine(max_sequences=4)
    h.submit(prompt(9), max_tokens=20, branches=(ChildRequest(0, 1), ChildRequest(1, 2)))
    for _ in range(3):
        h.submit(prompt(6, 50), max_tokens=20)
    for _ in range(6):
        h.step()
        assert (h.scheduler.load().running, h.scheduler.load().waiting) == (4, 1)
    h.run()
    h.drain()


def test_what_another_worker_computes_is_not_queued_here() -> None:
    h = engine()
    work = h.submit(prompt(9), "decode")
    h.step()
    load = h.scheduler.load()
    assert (load.running, load.queued_prompt_tokens) == (1, 0)
    h.land_all(work)
    h.drain()


def test_stats_tell_when_the_prompt_was_complete() -> None:
    """The trace of a request says by it for how long the prompt was computed, and not its whole answer."""
    h = engine(max_batched_tokens=8)
    work = h.submit(prompt(21), max_tokens=6)
    for _ in range(3):
        h.step()
    complete = h.now
    h.run()
    stats = h.stats(work)
    assert stats.prefilled == stats.first_token == complete
    assert stats.chunks == 3
    assert stats.finished is not None
    assert complete < stats.finished


def test_the_prompt_of_several_branches_is_complete_when_they_fork() -> None:
    h = engine()
    work = h.submit(prompt(10), max_tokens=8, branches=(ChildRequest(0, 1, (300, 301)), ChildRequest(1, 2, (400,))))
    h.step()
    complete = h.now
    h.run()
    stats = h.stats(work)
    assert stats.prefilled == complete
    assert stats.first_token is not None
    assert stats.first_token > complete, "their own forced tokens come first"


@pytest.mark.parametrize(
    "branches", [(ChildRequest(0, 1),), (ChildRequest(0, 1), ChildRequest(1, 2))], ids=["one", "two"]
)
def test_a_prompt_that_others_computed_is_complete_when_its_last_block_has_landed(
    branches: tuple[ChildRequest, ...],
) -> None:
    h = engine()
    work = h.submit(prompt(9), "decode", branches=branches)
    h.step()
    h.now = 2.0
    h.land_all(work)
    h.now = 3.0
    for branch in branches:
        h.provide(work, branch.sequence)
    h.run()
    assert h.stats(work).prefilled == 2.0


def test_a_preempted_work_keeps_the_time_at_which_its_prompt_was_complete() -> None:
    h = engine(blocks=8)
    works = [h.submit(prompt(8, 50 * number), max_tokens=16) for number in range(2)]
    h.step()
    complete = h.now
    h.run()
    assert h.stats(works[1]).preemptions >= 1
    assert [h.stats(work).prefilled for work in works] == [complete, complete]


def test_a_target_that_is_told_bounds_the_prompts_of_the_next_step_until_it_is_taken_back() -> None:
    """Routers tell a worker to keep its streams smoother, and plan as if it did: it must not go on as before."""
    h = engine(max_batched_tokens=64, min_prefill_tokens=4)
    h.submit(prompt(8), max_tokens=60)
    for _ in range(20):
        h.step()
    chunks = []
    for number, target in enumerate((None, 1e-4, None)):
        h.scheduler.set_itl_target(target)
        h.submit(prompt(40, 100 + 50 * number), max_tokens=1)
        h.step()
        chunks.append(max(row.count for row in h.steps[-1].rows))
        h.scheduler.set_itl_target(None)
        h.step()
    assert chunks == [40, 4, 40], "steps of a millisecond leave no room beside a tenth of one, but the floor"
    h.drain()


def test_columns_and_rows_bring_the_same_tokens_and_blocks() -> None:
    def told(columns: bool) -> tuple[list[tuple[int, ...]], dict[bytes, None], bool]:
        h = engine(blocks=24)
        if not columns:
            h.scheduler = Scheduler(replace(h.model.info(), columns=False), h.scheduler.settings)
        works = [
            h.submit(prompt(9, 100 * at), max_tokens=24, sampling=Sampling(temperature=float(at % 2)))
            for at in range(4)
        ]
        in_columns = False
        while h.begin():
            assert h.running is not None
            in_columns = in_columns or h.running.columns is not None
            h.finish()
        return [tuple(e.token for e in h.stories[work].emitted[0]) for work in works], h.names, in_columns

    with_columns, without = told(columns=True), told(columns=False)
    assert (with_columns[2], without[2]) == (True, False)
    assert with_columns[:2] == without[:2]
    assert all(len(tokens) == 24 for tokens in with_columns[0])


def test_branches_of_an_exported_prompt_that_has_begun_need_a_block_more() -> None:
    """They may have to copy its pinned tail: a work let in without that block would wait for it for ever."""
    h = engine(blocks=4)
    two = (ChildRequest(0, 11, (300,)), ChildRequest(1, 12, (300,)))
    with pytest.raises(TandemError, match="up to 5 KV blocks"):
        h.submit(tuple(range(15)), "prefill", branches=two)
    h.submit(tuple(range(15)), "prefill", branches=two[:1])
    h.submit(tuple(range(16)), "prefill", branches=(ChildRequest(0, 11), ChildRequest(1, 12)))
