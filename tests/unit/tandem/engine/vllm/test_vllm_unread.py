"""Works with images in the ledger: whose turn it is, what they wait for, what is left of those that have ended."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.core.kv import Layout, pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import NO_CHANGE, EngineInfo, EngineRequest, StepReport
from tandem.engine.scheduler.request_deadlines import Wait
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.image_reader import ImageReader
from tandem.engine.vllm.ledger import Ledger
from tandem.engine.vllm.requests import Expanded, VllmRequest
from tandem.engine.vllm.settings import RunnerKind

QUEUE_S = 5.0
CONTEXT = 50
INFO = EngineInfo(
    model="m", model_hash="h", vocab_size=100, context_tokens=CONTEXT, eos_token_ids=(1,), blocks=100,
    layout=Layout("e", "p", "float32", 4, 1, 4, 1, 1, 1, 1), features=("images",),
)  # fmt: skip


class Maker:
    """Requests are sent as they are, unless `problem` says otherwise."""

    problem: TandemError | None = None

    def prepare(self, request: VllmRequest) -> VllmRequest:
        if self.problem is not None:
            raise self.problem
        return request

    def attach(self, prepared: Any, transfer: Any) -> None:
        raise AssertionError("there is no stage")


def ledger(maker: Maker | None = None) -> Ledger:
    return Ledger(INFO, SchedulerSettings(queue_s=QUEUE_S), maker or Maker(), None, RunnerKind())


class Watched(EngineRequest, frozen=True, weakref=True, gc=True):
    """A request of which a test can see whether anybody keeps it."""


def work(
    number: int, *, priority: int = 0, deadline: float = 100.0, images: tuple[bytes, ...] = (b"file",)
) -> EngineRequest:
    return Watched(
        work_id=number,
        mode="local",
        prompt=pack_tokens((5, 6)),
        branches=(ChildRequest(0, 1),),
        sampling=Sampling(),
        stopping=Stopping(6, ignore_eos=True),
        root=bytes(16),
        deadline=deadline,
        priority=priority,
        private=True,
        images=images,
    )


def told(of: Ledger) -> StepReport:
    report = of.outbox.take(NO_CHANGE)
    assert report is not None
    return report


def expanded(tokens: int = 10) -> Expanded:
    return Expanded(pack_tokens(range(2, 2 + tokens)), {"type": "multimodal"})


@given(st.lists(st.integers(0, 2), max_size=8))
def test_the_most_urgent_is_read_first_and_the_first_to_come_among_equals(priorities: list[int]) -> None:
    books = ledger()
    for number, priority in enumerate(priorities):
        books.submit(work(number, priority=priority), now=0.0)
    read = list[int]()
    while (each := books.next_to_read(1.0)) is not None:
        read.append(each.work_id)
        books.expanded(each.work_id, expanded(), 1.0)
    assert read == sorted(range(len(priorities)), key=lambda number: -priorities[number])
    assert [order.branch.request_id for order in books.to_send] == [f"{number}.0" for number in read]


@pytest.mark.parametrize("how", ["cancelled", "too late"])
def test_nothing_is_kept_of_a_work_that_ends_while_others_images_are_read(how: str) -> None:
    books = ledger()
    books.submit(work(1), now=0.0)
    assert books.next_to_read(0.0) is not None
    kept = list["weakref.ref[EngineRequest]"]()
    for number in range(2, 22):
        each = work(number, deadline=1.0)
        kept.append(weakref.ref(each))
        books.submit(each, now=0.0)
        if how == "cancelled":
            books.cancel(number, now=0.5)
    del each
    books.look(2.0, 0)
    told(books)
    gc.collect()
    assert books.unread == 0
    assert not [ref for ref in kept if ref() is not None]
    assert books.next_to_read(2.0) is None


def test_a_work_whose_images_are_read_when_it_ends_is_not_gone_on_with() -> None:
    books = ledger()
    books.submit(work(1), now=0.0)
    assert books.next_to_read(0.0) is not None
    books.cancel(1, now=0.5)
    books.expanded(1, expanded(), 1.0)
    books.refused(1, TandemError("invalid_request", "it cannot be read"), 1.0)
    report = told(books)
    assert not books.to_send
    assert not report.failed
    assert [each.work_id for each in report.ended] == [1]


def test_who_waits_for_the_images_of_others_gets_on_with_them_and_has_a_bound_of_its_own_without() -> None:
    books = ledger()
    for number in (1, 2):
        books.submit(work(number), now=0.0)
    assert books.next_to_read(0.0) is not None
    first, second = books.runs
    assert (first.wait, second.wait) == (Wait.NOTHING, Wait.PLACE)
    for now in (4.0, 8.0, 12.0):
        books.tell_progress(now, stepping=False, said=0)
        assert told(books).progressed == ((1, 0), (2, 0))
        books.look(now + 0.1, 0)
    assert len(books) == 2
    # Nobody reads any more.
    books.look(12.1 + QUEUE_S, 0)
    assert [(each.work_id, each.code) for each in told(books).failed] == [(2, "deadline_exceeded")]
    books.expanded(1, expanded(), 20.0)
    assert first.wait is Wait.PLACE
    assert len(books.to_send) == 1


def test_what_is_wrong_with_a_work_beside_its_images_is_not_said_of_them() -> None:
    books = ledger()
    books.submit(work(1), now=0.0)
    assert books.next_to_read(0.0) is not None
    books.expanded(1, expanded(CONTEXT), 1.0)
    (failed,) = told(books).failed
    assert (failed.code, failed.param) == ("context_length_exceeded", "max_tokens")
    maker = Maker()
    maker.problem = TandemError("invalid_request", "no such grammar")
    books = ledger(maker)
    books.submit(work(1), now=0.0)
    assert books.next_to_read(0.0) is not None
    books.expanded(1, expanded(), 1.0)
    (failed,) = told(books).failed
    assert (failed.message, failed.param) == ("no such grammar", None)


class SetClock:
    """Says what it was told."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


async def test_time_in_which_the_worker_itself_did_not_run_is_not_held_against_the_reader() -> None:
    async def never(_prompt: bytes, _files: tuple[bytes, ...]) -> Expanded:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    books, clock, begun = ledger(), SetClock(), asyncio.Event()
    reader = ImageReader(books, never, clock, lambda: None)
    task = asyncio.create_task(reader.run())
    books.submit(work(1), now=0.0)
    reader.wake()
    await begun.wait()
    clock.time = 3600.0
    assert reader.look(30.0) is None
    while clock.time < 3625.0:
        clock.time += 0.25
        assert reader.look(30.0) is None
    for _ in range(40):
        clock.time += 0.25
        problem = reader.look(30.0)
        if problem is not None:
            break
    assert problem is not None
    assert [each.code for each in told(books).failed] == ["invalid_request"]
    task.cancel()
