"""The holder's decisions: what is answered when, and for how long a receiver is kept hoping."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.export import Exporter, ExportProgress, ExportSettings
from kv_transfer.transport.protocol import Alive, Answer, Missing, Offer, reuse_lease
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.engine.protocol import FirstTokens
from tests.contract.block_space import FIRST, KEYRING, TestSpace, block_layout, name_of, pull_open, ready_lease

DEADLINES = Deadlines()
LAYOUT = block_layout(2048)


def spaces() -> tuple[TestSpace, TestSpace]:
    return TestSpace(LAYOUT, 64, 11, shared=False), TestSpace(LAYOUT, 64, 22, shared=False)


def progress_of(holder: TestSpace, names: tuple[bytes, ...], batch: int = 4) -> ExportProgress:
    request = pull_open(holder, TestSpace(LAYOUT, 2, 22, shared=False), names)
    return ExportProgress(holder, request, DEADLINES, ExportSettings(batch_blocks=batch), opened=100.0)


@given(computed=st.lists(st.integers(0, 3), max_size=12), batch=st.integers(1, 5))
def test_whatever_the_pace_every_block_is_offered_once_and_in_order(computed: list[int], batch: int) -> None:
    holder, _ = spaces()
    names = tuple(name_of(i) for i in range(10))
    holder.lease("lease", names)
    progress, offered, done, now = progress_of(holder, names, batch), list[Answer](), 0, 100.0
    for count in [*computed, 10]:
        for _ in range(min(count, 10 - done)):
            holder.complete("lease", done)
            done += 1
        if done == 10:
            holder.sample("lease")
        now += 1.0
        while answers := progress.next(now):
            assert len(answers) <= batch + 1
            offered += answers
            if progress.done:
                break
    assert progress.done
    assert [answer.index for answer in offered if isinstance(answer, Offer)] == list(range(10))
    assert offered[-1] == FIRST


def test_an_unknown_lease_is_hoped_for_two_seconds_and_no_longer() -> None:
    holder, _ = spaces()
    progress = progress_of(holder, (name_of(0),))
    assert progress.next(100.0) == ()
    assert progress.next(101.9) == ()
    with pytest.raises(TandemError) as caught:
        progress.next(102.0)
    assert caught.value.code == "kv_gone"
    assert "not known within 2.0 s" in caught.value.message


def test_a_lease_that_has_ended_is_not_hoped_for() -> None:
    holder, _ = spaces()
    ready_lease(holder, 1)
    holder.release("lease")
    with pytest.raises(TandemError) as caught:
        progress_of(holder, (name_of(0),)).next(100.0)
    assert caught.value.code == "kv_gone"
    assert "the lease has ended" in caught.value.message


def test_a_lease_that_opens_in_time_starts_the_clock_of_prefill() -> None:
    holder, _ = spaces()
    progress = progress_of(holder, (name_of(0),))
    assert progress.next(101.5) == ()
    holder.lease("lease", (name_of(0),))
    assert progress.next(101.9) == ()
    assert progress.next(143.8) == ()
    with pytest.raises(TandemError) as caught:
        progress.next(143.9)
    assert "prefill made no progress for 42.0 s" in caught.value.message


def test_a_prefill_that_gets_on_is_waited_for_however_long_its_first_block_takes() -> None:
    holder, _ = spaces()
    progress = progress_of(holder, (name_of(0),))
    holder.lease("lease", (name_of(0),))
    for now in (100.0, 125.0, 150.0, 175.0):
        holder.moved["lease"] = now
        assert progress.next(now + 20.0) == ()
    with pytest.raises(TandemError) as caught:
        progress.next(217.0)
    assert "prefill made no progress for 42.0 s" in caught.value.message


def test_each_block_gives_prefill_new_time_and_renews_the_lease() -> None:
    holder, _ = spaces()
    names = (name_of(0), name_of(1))
    holder.lease("lease", names)
    progress = progress_of(holder, names)
    progress.next(100.0)
    holder.complete("lease", 0)
    assert len(progress.next(125.0)) == 1
    assert progress.next(150.0) == ()
    assert holder.leases["lease"].renewed == 3


def test_a_name_that_is_not_under_the_lease_is_missing() -> None:
    holder, _ = spaces()
    ready_lease(holder, 1)
    missing, first = progress_of(holder, (name_of(5),)).next(100.0)
    assert isinstance(missing, Missing)
    assert first == FIRST


async def _answers(exporter: Exporter, holder: TestSpace, receiver: TestSpace) -> AsyncGenerator[Answer, None]:
    async with aclosing(exporter.answers(pull_open(holder, receiver, (name_of(0), name_of(1))))) as batches:
        async for batch in batches:
            for answer in batch:
                yield answer


def test_a_waiting_receiver_hears_at_once_and_then_twice_a_second() -> None:
    async def main(loop: VirtualLoop) -> list[tuple[float, str]]:
        holder, receiver = spaces()
        exporter = Exporter(holder, KEYRING, LoopClock(loop), DEADLINES)
        loop.call_at(1.2, holder.lease, "lease", (name_of(0), name_of(1)))
        loop.call_at(2.0, holder.complete, "lease", 0)
        loop.call_at(2.1, holder.complete, "lease", 1)
        loop.call_at(3.0, holder.sample, "lease")
        heard = []
        async for answer in _answers(exporter, holder, receiver):
            heard.append((round(loop.time(), 3), type(answer).__name__))
        assert not holder.watchers
        assert exporter.pulls == 0
        return heard

    heard = run(main)
    assert heard[0] == (0.0, "Alive")
    assert (2.0, "Offer") in heard
    assert (2.1, "Offer") in heard
    assert heard[-1] == (3.0, "FirstTokens")
    times = [at for at, _ in heard]
    assert all(later - earlier <= 0.5001 for earlier, later in pairwise(times))


def test_a_receiver_that_stops_listening_is_forgotten() -> None:
    async def main(loop: VirtualLoop) -> None:
        holder, receiver = spaces()
        holder.lease("lease", (name_of(0), name_of(1)))
        exporter = Exporter(holder, KEYRING, LoopClock(loop), DEADLINES)
        async with aclosing(_answers(exporter, holder, receiver)) as answers:
            assert await anext(answers) == Alive()
            assert exporter.pulls == 1
        assert exporter.pulls == 0
        assert not holder.watchers

    run(main)


def test_first_tokens_may_come_without_any_block() -> None:
    holder, _ = spaces()
    holder.lease("lease", ())
    holder.sample("lease")
    progress = progress_of(holder, ())
    (first,) = progress.next(100.0)
    assert isinstance(first, FirstTokens)
    assert progress.done


def test_names_of_one_pull_are_bounded_before_anything_is_looked_up() -> None:
    """A peer's one message must not make the holder work for seconds."""

    async def main(loop: VirtualLoop) -> None:
        holder, receiver = spaces()
        names = ready_lease(holder, 3)
        exporter = Exporter(holder, KEYRING, LoopClock(loop), DEADLINES, ExportSettings(names_max=2))
        with pytest.raises(TandemError, match="3 blocks are asked for at once, 2 are allowed") as caught:
            await anext(exporter.answers(pull_open(holder, receiver, names)))
        assert caught.value.code == "protocol_mismatch"
        async for batch in exporter.answers(pull_open(holder, receiver, names[:2])):
            assert batch

    run(main)


def test_a_lease_that_was_there_and_is_gone_is_not_hoped_for() -> None:
    """Also where nothing is remembered of it: its receiver would wait for what nobody computes."""
    holder, _ = spaces()
    names = (name_of(0), name_of(1))
    holder.lease("lease", names)
    progress = progress_of(holder, names)
    assert progress.next(100.0) == ()
    del holder.leases["lease"]
    with pytest.raises(TandemError, match="has ended") as caught:
        progress.next(100.1)
    assert caught.value.code == "kv_gone"


@pytest.mark.parametrize("lease_id", ["lease", reuse_lease("x")])
def test_pulls_at_once_are_counted(lease_id: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        holder, receiver = spaces()
        holder.lease(lease_id, (name_of(0),))
        exporter = Exporter(holder, KEYRING, LoopClock(loop), DEADLINES)
        pulls = [exporter.answers(pull_open(holder, receiver, (name_of(0),), lease_id)) for _ in range(3)]
        for number, pull in enumerate(pulls, 1):
            assert await anext(pull) == (Alive(),)
            assert exporter.pulls == number
        for number, pull in enumerate(pulls, 1):
            await pull.aclose()
            assert exporter.pulls == 3 - number

    run(main)
