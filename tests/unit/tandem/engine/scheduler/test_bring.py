"""Works of any mode have leading blocks brought before they compute the rest: scheduling, exports, losses, guests."""

import pytest

from tandem.core.kv import Handle, pack_tokens, tail_name
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest, Gone, Pending
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.scheduler_harness import EPOCH, ROOT, Harness, export_names, trunk_tokens


def harness(blocks: int = 32, **settings: float) -> Harness:
    fields: dict[str, float] = {"min_prefill_tokens": 1, "max_batched_tokens": 64, "watermark": 0.0, "queue_s": 1e6}
    return Harness(
        SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=256, eos_rate=0.0, vocab=1000),
        SchedulerSettings(**{**fields, **settings}),  # type: ignore[arg-type]
    )


def prompt(number: int, tokens: int) -> tuple[int, ...]:
    return tuple(range(100 * number, 100 * number + tokens))


def test_others_compute_while_a_work_is_fetched_for_and_then_it_computes_only_the_rest() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), bring=3)
    other = h.submit(prompt(2, 9))
    h.run()
    assert h.stories[other].ended is not None
    assert h.stories[work].ended is None
    assert [target.index for target in h.fetches[work].job.targets] == [0, 1, 2]
    assert not h.fetches[work].job.hand_off
    h.land_all(work)
    h.run()
    assert (h.stats(work).tokens_computed, h.stats(work).tokens_pulled) == (6, 12)
    h.drain()


def test_what_is_lost_is_computed_around_what_came() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), bring=4)
    h.step()
    h.land(work, 0)
    h.land(work, 2)
    h.end_fetch(work, "kv_gone: elsewhere")
    h.run()
    assert (h.stats(work).tokens_computed, h.stats(work).tokens_pulled) == (10, 8)
    h.drain()


@pytest.mark.parametrize("mode", ["local", "prefill"])
def test_a_prompt_that_is_brought_whole_computes_its_last_token_only(mode: str) -> None:
    h = harness()
    work = h.submit(prompt(1, 16), mode, bring=9)
    h.step()
    h.land_all(work)
    h.run()
    assert (h.stats(work).tokens_computed, h.stats(work).tokens_pulled) == (1, 15)
    h.drain()


def test_stats_tell_when_the_step_was_planned_that_computes_some_of_the_prompt() -> None:
    h = harness()
    brought, computed = h.submit(prompt(1, 18), bring=4), h.submit(prompt(2, 70))
    h.step()
    h.run()
    assert h.stats(computed).admitted == h.stats(computed).computing, "its first step is the one that admits it"
    h.now += 5.0
    h.land_all(brought)
    landed = h.now
    h.run()
    stats = h.stats(brought)
    assert stats.admitted == h.stats(computed).admitted
    assert stats.computing is not None
    assert stats.computing > landed
    h.drain()


def test_blocks_that_land_can_be_pulled_from_here_at_once() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), "prefill", bring=4)
    h.step()
    assert h.exports(work) == []
    h.land(work, 1)
    assert len(h.exports(work)) == 1
    h.land(work, 0)
    h.end_fetch(work, "the source died")
    assert len(h.exports(work)) == 2
    h.run()
    assert len(h.exports(work)) == 5
    h.drain()


def test_all_branches_share_what_was_brought() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), branches=(ChildRequest(0, 1), ChildRequest(1, 2), ChildRequest(2, 3)), bring=4)
    h.step()
    h.land_all(work)
    h.run()
    assert h.stats(work).tokens_computed == 2
    h.drain()


def test_a_decode_work_has_blocks_brought_whose_prefill_is_lost_before_its_turn() -> None:
    h = harness(blocks=8)
    first = h.submit(prompt(2, 20), max_tokens=8)
    h.step()
    lost = h.submit(prompt(1, 18), "decode", bring=4)
    h.sample_first(lost)
    h.cancel(first)
    h.step()
    assert not h.fetches[lost].job.hand_off
    h.land_all(lost)
    h.run()
    assert h.stats(lost).tokens_computed == 2
    h.drain()


def test_who_needs_blocks_that_are_on_their_way_waits_for_them_and_nobody_else_does() -> None:
    h = harness()
    first = h.submit(prompt(1, 16), bring=4)
    h.step()
    second = h.submit((*prompt(1, 16), 7, 8), bring=4)
    other = h.submit(prompt(2, 9))
    h.run()
    assert list(h.fetches) == [first]
    assert h.stories[other].ended is not None
    h.land(first, 0)
    h.land(first, 1)
    h.run()
    assert list(h.fetches) == [first], "the third block is on its way, too"
    h.land_all(first)
    h.run()
    assert h.stats(second).tokens_reused == 16
    assert "waited for a shared prefix being fetched" in h.stats(second).reasons
    h.drain()


def test_who_waited_for_blocks_that_did_not_come_asks_for_them_itself() -> None:
    h = harness()
    first = h.submit(prompt(1, 16), bring=4)
    h.step()
    second = h.submit(prompt(1, 18), bring=4)
    h.run()
    h.cancel(first)
    h.end_fetch(first, "cancelled")
    h.step()
    assert list(h.fetches) == [second]
    h.land_all(second)
    h.run()
    h.drain()


def test_nobody_waits_for_one_failure_after_another() -> None:
    h = harness(blocks=64)
    works = [h.submit((*prompt(1, 16), 7 + number), bring=4) for number in range(4)]
    h.run()
    assert list(h.fetches) == works[:1]
    h.end_fetch(works[0], "the source is dead")
    h.run()
    assert list(h.fetches) == works[1:], "all that waited try at once"
    for work in works[1:]:
        h.end_fetch(work, "the source is dead")
    h.run()
    assert all(h.stories[work].ended is not None for work in works)
    h.drain()


def test_who_waits_for_blocks_on_their_way_holds_up_no_other_fetch() -> None:
    h = harness(blocks=64)
    first = h.submit(prompt(1, 16), bring=4)
    h.step()
    waiting = h.submit((*prompt(1, 16), 7), bring=4)
    other = h.submit(prompt(2, 16), bring=3)
    h.run()
    assert list(h.fetches) == [first, other]
    h.cancel(waiting)
    h.drain()


def test_without_budget_only_a_few_are_fetched_ahead() -> None:
    h = harness(blocks=256, max_batched_tokens=4, fetch_ahead=2)
    busy = h.submit(prompt(9, 60), max_tokens=2)
    h.step()
    works = [h.submit(prompt(number, 16), bring=3) for number in range(1, 5)]
    h.step()
    assert list(h.fetches) == works[:1], "one computes, and one is fetched for"
    h.cancel(busy)
    h.drain()


def test_bytes_that_may_come_late_move_the_work_to_other_slots_and_its_exports_with_it() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), "prefill", bring=4)
    h.step()
    h.land(work, 0)
    (late, *_) = h.fetches[work].left.values()
    h.end_fetch(work, "stalled", (late.slot,))
    assert h.exports(work) == [], "pending again"
    h.run()
    assert h.scheduler.kv_cache.pool.quarantined == 1
    assert len(h.exports(work)) == 5
    assert h.stats(work).tokens_computed == 14, "what had landed was found by its name"
    h.quiet()
    h.drain()


def test_how_much_is_brought_may_change_while_a_work_waits() -> None:
    h = harness(blocks=8)
    running = h.submit(prompt(2, 20), max_tokens=8)
    h.step()
    work = h.submit(prompt(1, 18))
    assert h.scheduler.prefix(work) == (tuple(export_names(prompt(1, 18), 4)[:4]), 0)
    h.scheduler.bring(work, 3)
    h.scheduler.bring(work, 99)
    h.cancel(running)
    h.step()
    assert len(h.fetches[work].job.targets) == 4, "full blocks only"
    h.scheduler.bring(work, 0)
    assert h.scheduler.prefix(work) is None
    h.land_all(work)
    h.run()
    h.drain()


def test_works_that_wait_for_what_is_brought_do_not_count_it_as_queued() -> None:
    h = harness()
    work = h.submit(prompt(1, 18), bring=4)
    assert h.scheduler.load().queued_prompt_tokens == 2
    h.step()
    assert h.scheduler.load().queued_prompt_tokens == 2
    h.land_all(work)
    h.drain()


def test_a_branch_that_is_preempted_is_queued_whole_though_some_of_its_prompt_was_brought() -> None:
    """It is computed again: what was brought before the fork is brought to no branch."""
    h = harness(blocks=8)
    work = h.submit(prompt(1, 8), max_tokens=20, branches=(ChildRequest(0, 1), ChildRequest(1, 2)), bring=2)
    h.step()
    h.land_all(work)
    while not h.scheduler.state.preemptions:
        assert h.step()
    assert h.scheduler.load().queued_prompt_tokens == 8 + len(h.tokens(work, 1))
    h.run()
    h.drain()


def test_private_works_are_brought_nothing() -> None:
    h = harness()
    sampling, stopping = _plain(h)
    work = EngineRequest(
        work_id=77,
        mode="local",
        prompt=pack_tokens(prompt(1, 18)),
        branches=(ChildRequest(0, 1),),
        sampling=sampling,
        stopping=stopping,
        root=ROOT,
        deadline=1e9,
        private=True,
    )
    h.scheduler.submit(work, 0.0)
    assert h.scheduler.prefix(77) is None
    h.scheduler.bring(77, 4)
    step, _ = h.scheduler.plan(0.0)
    assert step is not None
    assert step.rows[0].count == 18


def _plain(h: Harness) -> tuple[Sampling, Stopping]:
    other = h.stories[h.submit(prompt(3, 3))].work
    h.cancel(other.work_id)
    return other.sampling, other.stopping


# ---- what peers are given ------------------------------------------------------------------------------------


def shared(h: Harness, tokens: int = 18) -> tuple[bytes, ...]:
    """Names of a prompt's full blocks that are in the pool, nobody's."""
    work = h.submit(prompt(1, tokens), max_tokens=1)
    h.run()
    return tuple(export_names(trunk_tokens(h.stories[work].work), 4)[: tokens // 4])


def test_a_peer_is_shown_what_is_here_for_as_long_as_it_gives_signs() -> None:
    h = harness()
    names = shared(h)
    unknown = tail_name(ROOT, pack_tokens((1,)))
    assert h.scheduler.sharing.open("reuse-1", (*names, unknown), 2.0, h.now)
    leases = h.scheduler.leases
    assert all(isinstance(leases.look("reuse-1", name, EPOCH), Handle) for name in names)
    assert isinstance(leases.look("reuse-1", unknown, EPOCH), Gone)
    assert (leases.exported, leases.owed) == (4, 0)
    h.check()
    h.now += 1.5
    leases.renew("reuse-1", h.now)
    h.now += 1.5
    h.step()
    assert leases.exists("reuse-1")
    h.now += 1.0
    h.step()
    assert not leases.exists("reuse-1")
    assert not h.scheduler.sharing.open("reuse-1", names, 2.0, h.now), "it has ended"
    h.drain()


def test_sharing_is_bounded_by_its_leases_and_by_its_blocks_each() -> None:
    h = harness(blocks=16, shared_leases_max=2, export_share=0.5)
    names = shared(h)
    assert h.scheduler.sharing.open("reuse-1", names[:1], 2.0, h.now)
    assert h.scheduler.sharing.open("reuse-2", names[:1], 2.0, h.now)
    assert not h.scheduler.sharing.open("reuse-3", names[:1], 2.0, h.now), "two leases"
    h = harness(blocks=8, shared_leases_max=9, export_share=0.5)
    names = shared(h)
    assert h.scheduler.sharing.open("reuse-1", names, 2.0, h.now)
    assert not h.scheduler.sharing.open("reuse-2", names, 2.0, h.now), "half of the pool"
    assert h.scheduler.sharing.open("reuse-1", names, 2.0, h.now), "it is open"


def test_sharing_is_bounded_and_holds_up_no_hand_off() -> None:
    h = harness(blocks=8, shared_leases_max=2, export_share=0.5)
    names = shared(h)
    assert h.scheduler.sharing.open("reuse-1", names[:1], 2.0, h.now)
    assert h.scheduler.sharing.open("reuse-2", names, 2.0, h.now)
    assert not h.scheduler.sharing.open("reuse-3", names, 2.0, h.now)
    assert h.scheduler.leases.exported == 4
    work = h.submit(prompt(5, 15), "prefill")
    h.run()
    assert len(h.exports(work)) == 4
    h.drain()


def test_a_guests_blocks_are_pinned_as_they_land_and_stay_when_it_has_gone() -> None:
    h = harness()
    names = export_names(prompt(1, 18), 4)[:4]
    leases = h.scheduler.leases
    assert h.ask_as_peer(prompt(1, 18))
    assert isinstance(leases.look("reuse-1", names[0], EPOCH), Pending)
    assert not h.step()
    (peer_read,) = h.peer_reads
    h.land_guest(peer_read, 1)
    assert isinstance(leases.look("reuse-1", names[1], EPOCH), Handle)
    h.land_guest(peer_read, 0)
    h.end_guest(peer_read)
    assert isinstance(leases.look("reuse-1", names[2], EPOCH), Gone)
    h.scheduler.leases.release("reuse-1")
    work = h.submit(prompt(1, 18))
    h.run()
    assert h.stats(work).tokens_reused == 8
    h.drain()


def test_a_guest_takes_only_room_that_nobody_waits_for() -> None:
    h = harness(blocks=8, export_share=1.0)
    name = export_names(prompt(1, 24), 4)[0]
    running = h.submit(prompt(2, 12), max_tokens=8)
    h.step()
    h.submit(prompt(3, 24), max_tokens=1)
    h.ask_as_peer(prompt(1, 24))
    h.step()
    assert not h.peer_reads, "a work waits for blocks"
    assert isinstance(h.scheduler.leases.look("reuse-3", name, EPOCH), Gone)
    h.cancel(running)
    h.run()
    h.ask_as_peer(prompt(1, 24))
    h.step()
    (peer_read,) = h.peer_reads
    late = h.peer_reads[peer_read].targets[0].slot
    h.end_guest(peer_read, (late,))
    assert h.scheduler.kv_cache.pool.quarantined == 1
    h.drain()
