"""The states of a sequence: only those follow each other that the table names, and the rarest of these do."""

import pytest

from tandem.engine.scheduler.batch import Batch
from tandem.engine.scheduler.sequence import Sequence
from tandem.engine.scheduler.sequence_status import NEXT, SequenceStatus
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.scheduler_harness import Harness

S = SequenceStatus


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[SequenceStatus]]:
    """The states that each request's first sequence goes through."""
    seen: dict[int, list[SequenceStatus]] = {}
    move = Batch.move

    def moved(batch: Batch, sequence: Sequence, status: SequenceStatus) -> None:
        if sequence is sequence.job.root:
            path = seen.setdefault(sequence.job.work_id, [sequence.status])
            if path[-1] is not status:
                path.append(status)
        move(batch, sequence, status)

    monkeypatch.setattr(Batch, "move", moved)
    return seen


def harness(blocks: int) -> Harness:
    return Harness(
        SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=128, eos_rate=0.0, vocab=1000),
        SchedulerSettings(min_prefill_tokens=1, max_batched_tokens=64, watermark=0.0, queue_s=1e6),
    )


def test_every_state_has_an_end_and_only_a_finished_sequence_has_no_next_state() -> None:
    assert set(NEXT) == set(S)
    assert [status for status in S if not NEXT[status]] == [S.FINISHED]
    assert all(S.FINISHED in NEXT[status] for status in S if status is not S.FINISHED)
    followed = {status for after in NEXT.values() for status in after}
    assert set(S) - followed == {S.WAITING_FOR_PARENT}, "a request's root begins as WAITING, and may be so again"


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_a_state_that_may_not_follow_is_refused(before: SequenceStatus, after: SequenceStatus) -> None:
    h = harness(8)
    h.submit((1, 2, 3))
    batch, sequence = Batch(), next(iter(h.scheduler._jobs.values())).root
    sequence.status = before
    if batch._groups.get(before) is not None:
        batch._groups[before][sequence] = None
        batch.width, batch._width[sequence] = 1, 1
    if after is before or after in NEXT[before]:
        batch.move(sequence, after)
        assert sequence.status is after
        assert batch.width == len(list(batch)) == (after in batch._groups)
    else:
        with pytest.raises(AssertionError, match=f"{before.name} is not followed by {after.name}"):
            batch.move(sequence, after)


def test_a_hand_off_waits_for_its_blocks_and_then_for_its_first_token(
    states: dict[int, list[SequenceStatus]],
) -> None:
    h = harness(8)
    work = h.submit(tuple(range(6)), "decode")
    h.step()
    h.land_all(work)
    h.provide(work, 0)
    h.run()
    loaded = [S.WAITING, S.WAITING_FOR_REMOTE_KVS, S.WAITING_FOR_FIRST_TOKEN]
    assert states[work] == [*loaded, S.RUNNING_DECODE, S.FINISHED]


def test_a_hand_off_that_finds_its_blocks_and_its_token_here_decodes_at_once(
    states: dict[int, list[SequenceStatus]],
) -> None:
    h = harness(8)
    h.submit(tuple(range(8)))
    h.run()
    work = h.submit(tuple(range(8)), "decode")
    h.provide(work, 0)
    h.step()
    h.end_fetch(work)
    h.run()
    assert states[work] == [S.WAITING, S.RUNNING_DECODE, S.FINISHED]


def test_what_waits_for_a_first_token_may_be_preempted_and_find_its_blocks_again(
    states: dict[int, list[SequenceStatus]],
) -> None:
    h = harness(8)
    urgent = h.submit(tuple(range(100, 113)), max_tokens=8, priority=1)
    h.step()
    work = h.submit(tuple(range(16)), "decode")
    h.step()
    h.land_all(work)
    while h.stories[urgent].ended is None:
        h.step()
    h.step()
    assert h.scheduler.state.preemptions == 1
    assert states[work][2:4] == [S.WAITING_FOR_FIRST_TOKEN, S.PREEMPTED]
    h.provide(work, 0)
    h.run()
    assert states[work][-1] is S.FINISHED
