"""The connector's bookkeeping: every load is reported exactly once, whatever comes in whatever order."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.kv import chain_names, pack_tokens
from tandem.engine.vllm.conduit_messages import BlocksReceived, Closed, DrawFirst, First, NoMore, Spoiled, Withheld
from tandem.engine.vllm.connector.load_table import LoadCopy, LoadTable
from tandem.engine.vllm.connector.orders import LoadOrder, PageTarget
from tandem.engine.vllm.connector.request_table import Finished, RequestTable, ScheduledTokens
from tandem.engine.vllm.stage_params import NO_SLOT, StageParams, for_sequence, stage_params


def order(request: str = "a", work: int = 1, blocks: int = 3, *, first: bool = True, sequence: int = 0) -> LoadOrder:
    return LoadOrder(request, work, sequence, tuple(PageTarget(i, 10 + i, 100 + i) for i in range(blocks)), first)


def copied(book: LoadTable, limit: int = 9) -> list[LoadCopy]:
    """Copy what has landed."""
    copies = book.next_copies(limit)
    book.copied(copies)
    return copies


# -- loads --


def test_a_load_is_over_when_all_blocks_are_copied_and_the_next_position_is_known() -> None:
    book = LoadTable()
    book.begin(order())
    book.hear(BlocksReceived(1, (0, 2)))
    assert [copy.target.index for copy in copied(book)] == [0, 2]
    assert book.take() == []
    book.hear(BlocksReceived(1, (1,)))
    assert book.take() == [], "it has landed, but is not copied"
    copies = book.next_copies(9)
    assert [(copy.target.slot, copy.target.block) for copy in copies] == [(11, 101)]
    book.hear(First(1, 0, 42))
    assert book.take() == [], "its copy is under way"
    book.copied(copies)
    (ended,) = book.take()
    assert (ended.request_id, ended.copied, ended.failed, ended.first) == ("a", 3, (), 42)
    assert book.take() == []
    assert book.waiting == 0


def test_what_was_said_before_the_load_began_counts() -> None:
    book = LoadTable()
    book.hear(BlocksReceived(1, (0, 1, 2)))
    book.hear(First(1, 0, 42))
    book.begin(order())
    assert len(copied(book, 2)) == 2
    assert len(copied(book, 2)) == 1
    assert len(book.take()) == 1


def test_what_does_not_come_has_failed() -> None:
    book = LoadTable()
    book.begin(order())
    book.hear(BlocksReceived(1, (0,)))
    copied(book)
    book.hear(First(1, 0, 42))
    assert book.take() == []
    book.hear(NoMore(1))
    (ended,) = book.take()
    assert (ended.copied, ended.failed, ended.first) == (1, (101, 102), 42)


def test_a_block_without_a_slot_has_failed_from_the_start() -> None:
    book = LoadTable()
    targets = (PageTarget(0, NO_SLOT, 100), PageTarget(1, 11, 101))
    book.begin(LoadOrder("a", 1, 0, targets, first=False))
    book.hear(BlocksReceived(1, (1,)))
    copied(book)
    (ended,) = book.take()
    assert ended.failed == (100,)


def test_where_parts_mean_nothing_one_lost_block_fails_all_of_them() -> None:
    book = LoadTable()
    book.begin(replace(order(first=False), whole=True))
    book.hear(BlocksReceived(1, (0, 2)))
    copied(book)
    book.hear(NoMore(1))
    (ended,) = book.take()
    assert (ended.copied, ended.failed) == (2, (100, 101, 102))


def test_a_position_that_is_drawn_here_is_not_awaited() -> None:
    book = LoadTable()
    book.begin(order(blocks=0))
    assert book.take() == []
    book.hear(DrawFirst(1))
    (ended,) = book.take()
    assert ended.first is None


def test_a_block_that_turns_out_to_be_damaged_has_failed_even_if_it_was_copied() -> None:
    book = LoadTable()
    book.begin(order())
    book.hear(BlocksReceived(1, (0, 1, 2)))
    copied(book)
    book.hear(Spoiled(1, (1,)))
    book.hear(First(1, 0, 42))
    (ended,) = book.take()
    assert (ended.copied, ended.failed) == (2, (101,))


def test_a_block_that_is_damaged_while_it_is_copied_has_failed() -> None:
    book = LoadTable()
    book.begin(order(first=False))
    book.hear(BlocksReceived(1, (0, 1, 2)))
    copies = book.next_copies(9)
    book.hear(Spoiled(1, (1,)))
    assert book.take() == [], "the copy may still write to the engine's block"
    book.copied(copies)
    (ended,) = book.take()
    assert (ended.copied, ended.failed) == (2, (101,))


def test_what_was_copied_from_slots_of_a_work_that_was_closed_meanwhile_counts_for_nothing() -> None:
    book = LoadTable()
    book.begin(order(first=False))
    book.hear(BlocksReceived(1, (0, 1, 2)))
    early, late = book.next_copies(1), book.next_copies(9)
    book.copied(early)
    book.hear(Closed(1))
    book.abort("a")
    assert book.take() == []
    book.copied(late)
    (ended,) = book.take()
    assert (ended.copied, ended.aborted) == (1, True)


@pytest.mark.parametrize("told", [None, Closed(1), NoMore(1)])
def test_an_aborted_load_is_reported_once_and_fills_nothing(told: Closed | NoMore | None) -> None:
    book = LoadTable()
    book.begin(order())
    book.hear(BlocksReceived(1, (0,)))
    book.abort("a")
    if told is not None:
        book.hear(told)
    assert book.next_copies(9) == []
    (ended,) = book.take()
    assert (ended.failed, ended.first, ended.aborted) == ((), None, True)
    book.abort("a")
    assert book.take() == []


def test_an_abort_of_what_was_reported_or_is_unknown_reports_nothing() -> None:
    book = LoadTable()
    book.begin(order(blocks=0, first=False))
    assert len(book.take()) == 1
    book.abort("a")
    book.abort("never heard of")
    assert book.take() == []


@pytest.mark.parametrize("lost_first", [True, False])
def test_without_a_stage_every_load_ends(lost_first: bool) -> None:
    book = LoadTable()
    if lost_first:
        book.lose()
    book.begin(order())
    if not lost_first:
        book.lose()
    (ended,) = book.take()
    assert ended.failed == (100, 101, 102)


def test_a_load_of_a_closed_work_ends() -> None:
    book = LoadTable()
    book.hear(BlocksReceived(1, (0,)))
    book.hear(Closed(1))
    book.hear(BlocksReceived(1, (1,)))
    book.begin(order())
    assert book.next_copies(9) == [], "its slots are others' by now"
    assert len(book.take()) == 1


def test_sequences_of_a_work_load_the_same_blocks_and_await_their_own_position() -> None:
    book = LoadTable()
    book.begin(order("a"))
    book.begin(order("b", sequence=1))
    book.hear(BlocksReceived(1, (0, 1, 2)))
    assert len(copied(book)) == 6
    book.hear(First(1, 1, 7))
    assert [(ended.request_id, ended.first) for ended in book.take()] == [("b", 7)]
    book.hear(First(1, 0, 8))
    assert [(ended.request_id, ended.first) for ended in book.take()] == [("a", 8)]


def test_slots_that_are_complete_or_withheld_are_not_written() -> None:
    book = LoadTable()
    book.hear(BlocksReceived(1, (0,)))
    book.hear(Withheld(1, (2,)))
    assert [book.held(1, index) for index in range(3)] == [True, False, True]
    book.saved(1, 1)
    assert book.held(1, 1)
    assert not book.held(2, 0)


MESSAGES = st.one_of(
    st.builds(BlocksReceived, st.integers(1, 3), st.lists(st.integers(0, 3), max_size=3).map(tuple)),
    st.builds(Spoiled, st.integers(1, 3), st.lists(st.integers(0, 3), max_size=2).map(tuple)),
    st.builds(Withheld, st.integers(1, 3), st.lists(st.integers(0, 3), max_size=2).map(tuple)),
    st.builds(First, st.integers(1, 3), st.integers(0, 1), st.integers(0, 9)),
    st.builds(NoMore, st.integers(1, 3)),
    st.builds(DrawFirst, st.integers(1, 3)),
    st.builds(Closed, st.integers(1, 3)),
)


@dataclass
class Scheduler:
    """vLLM's side: dies of a report for a request that does not wait, as the real one does."""

    book: LoadTable = field(default_factory=LoadTable)
    waiting: dict[str, int] = field(default_factory=dict)
    begun: int = 0
    copied: dict[str, set[int]] = field(default_factory=dict)
    flying: list[LoadCopy] = field(default_factory=list)

    def begin(self, work: int, blocks: int, first: bool) -> None:
        self.begun += 1
        name = f"r{self.begun}"
        self.waiting[name] = work
        targets = tuple(PageTarget(i, i - (i == 3), 1000 * self.begun + i) for i in range(blocks))
        self.book.begin(LoadOrder(name, work, self.begun % 2, targets, first))

    def step(self, limit: int, *, land: bool = True) -> None:
        for copy in self.book.next_copies(limit):
            mine = self.copied.setdefault(copy.request_id, set())
            assert copy.target.block not in mine, "copied twice"
            mine.add(copy.target.block)
            self.flying.append(copy)
        if land:
            self.book.copied(self.flying)
            self.flying = []
        for ended in self.book.take():
            assert all(copy.request_id != ended.request_id for copy in self.flying), "a block is still written to"
            del self.waiting[ended.request_id]
            if not ended.aborted:
                assert ended.copied <= len(self.copied.get(ended.request_id, ()))


ACTIONS = st.one_of(
    MESSAGES,
    st.tuples(st.just("begin"), st.integers(1, 3), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("step"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("abort"), st.integers(1, 9)),
    st.tuples(st.just("save"), st.integers(1, 3), st.integers(0, 3)),
    st.just(("lose",)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_every_load_is_reported_exactly_once_and_always_ends(actions: list[object], by_closing: bool) -> None:
    engine = Scheduler()
    for action in actions:
        match action:
            case ("begin", int(work), int(blocks), bool(first)):
                engine.begin(work, blocks, first)
            case ("step", int(limit), bool(land)):
                engine.step(limit, land=land)
            case ("abort", int(number)):
                engine.book.abort(f"r{number}")
            case ("save", int(work), int(index)):
                engine.book.saved(work, index)
            case ("lose",):
                engine.book.lose()
            case _:
                engine.book.hear(action)  # type: ignore[arg-type]
    for work in (1, 2, 3):
        for message in (Closed(work),) if by_closing else (NoMore(work), DrawFirst(work)):
            engine.book.hear(message)
    engine.step(1000)
    assert engine.waiting == {}
    assert engine.book.waiting == 0


# -- requests --


def params(
    blocks: int, *, load: int = 0, save: int = 0, held: tuple[int, ...] = (), first: bool = False
) -> StageParams:
    return StageParams(1, 0, tuple(range(blocks)), load, save, held, first)


def test_parameters_travel_as_a_dictionary() -> None:
    sent = params(3, load=16, save=1, held=(0,), first=True)
    assert stage_params(sent.as_dict()) == sent
    assert stage_params(None) is None
    assert stage_params({"do_remote_decode": True}) is None
    other = stage_params(for_sequence(sent.as_dict(), 2))
    assert other is not None
    assert (other.sequence, other.save, other.load) == (2, 3, 16)


def test_what_is_in_the_engines_own_cache_is_not_loaded() -> None:
    book = RequestTable(8)
    book.add("a", params(3, load=20, save=3, first=True), 20)
    assert book.matched("a", 8) == 12
    assert book.matched("a", 8) == 12, "asking changes nothing"
    book.allocated("a", [50, 51, 52], 12)
    (load,) = book.step([], idle=True).loads
    assert [(target.index, target.slot, target.block) for target in load.targets] == [(1, 1, 51), (2, 2, 52)]
    assert (load.cached, load.loading, load.first) == (8, 12, True)
    assert book.step([], idle=True).loads == ()
    assert book.matched("a", 0) == 0, "a load is tried once"
    assert book.matched("somebody else's", 0) == 0


def test_a_load_without_its_first_block_is_none_unless_a_position_is_awaited() -> None:
    for first in (False, True):
        book = RequestTable(8)
        book.add("a", StageParams(1, 0, (NO_SLOT, 1), 16, 2, (), first), 17)
        assert book.matched("a", 0) == (16 if first else 0)
        assert book.matched("a", 8) == 8


def test_where_parts_mean_nothing_whole_prompts_are_loaded_and_no_others() -> None:
    book = RequestTable(8, whole=True)
    book.add("all", params(3, load=20, first=True), 20)
    book.add("beginning", params(3, load=16), 20)
    assert book.matched("all", 0) == 20
    assert book.matched("all", 8) == 0
    assert book.matched("beginning", 0) == 0
    book.allocated("all", [50, 51, 52], 20)
    assert [load.whole for load in book.step([], idle=True).loads] == [True]


def test_blocks_are_saved_as_they_complete_and_the_tail_at_the_end() -> None:
    book = RequestTable(8)
    book.add("a", params(3, held=(0,)), 20)
    blocks = [50, 51, 52]
    step = book.step([ScheduledTokens("a", 0, 10, blocks)], idle=False)
    assert step.saves == ()
    assert step.tracked == {"a": (1, 0)}
    step = book.step([ScheduledTokens("a", 10, 18, blocks)], idle=False)
    assert [target.index for target in step.saves[0].targets] == [1]
    assert step.blank == (52,), "the tail's block is blanked in the step that writes to it first"
    assert book.saving == ("a",)
    step = book.step([ScheduledTokens("a", 18, 20, blocks)], idle=False)
    assert [target.index for target in step.saves[0].targets] == [2]
    assert step.blank == ()
    assert book.saving == (), "nothing more needs to be known of how far it gets"
    assert book.step([ScheduledTokens("a", 20, 21, blocks)], idle=False).saves == ()


def test_what_was_saved_before_a_preemption_is_not_saved_again() -> None:
    book = RequestTable(8)
    book.add("a", params(3), 20)
    assert len(book.step([ScheduledTokens("a", 0, 16, [50, 51, 52])], idle=False).saves[0].targets) == 2
    again = book.step([ScheduledTokens("a", 0, 20, [60, 61, 62])], idle=False)
    assert [(target.index, target.block) for target in again.saves[0].targets] == [(2, 62)]
    assert again.blank == (62,)


def test_a_request_that_ends_before_its_step_loads_nothing() -> None:
    book = RequestTable(8)
    book.add("a", params(2, load=16), 17)
    book.allocated("a", [1, 2, 3], 16)
    assert not book.finished(Finished("a", range(17), 0, [1, 2, 3])), "nothing is copied from its blocks"
    assert not book.finished(Finished("a", range(17), 0, [1, 2, 3]))
    step = book.step([ScheduledTokens("a", 0, 8, [1, 2, 3])], idle=False)
    assert (step.loads, step.saves) == ((), ())
    assert step.tracked == {"a": (1, 0)}, "the workers hear of its end too"
    assert len(book) == 0
    assert book.saving == ()


@pytest.mark.parametrize(
    ("output", "computed", "blocks", "kept"),
    [
        (1, 20, 3, ()),  # the drawn token is not computed
        (5, 24, 3, (52,)),  # position 23 is final: 24 has been drawn
        (4, 24, 3, ()),  # position 23 may be a draft: nobody has drawn what follows it
        (13, 32, 4, (52, 53)),
        (13, 24, 4, (52,)),  # the rest is being computed again, after a preemption
        (13, 32, 3, (52,)),
    ],
)
def test_only_computed_blocks_of_tokens_that_are_final_are_offered(
    output: int, computed: int, blocks: int, kept: tuple[int, ...]
) -> None:
    tokens = tuple(range(100, 120 + output))
    for parent in (bytes(16), None):
        book = RequestTable(8)
        book.add("a", StageParams(1, 0, (), 0, 0, parent=parent), 20)
        book.step([], idle=True)
        wanted = bool(kept) and parent is not None
        assert book.finished(Finished("a", tokens, computed, list(range(50, 50 + blocks)))) == wanted
        step = book.step([], idle=True)
        assert step.held == (("a",) if wanted else ())
        assert [order.blocks for order in step.outputs] == ([kept] if wanted else [])
        if wanted:
            chain = chain_names(bytes(16), pack_tokens(tokens[16:]), 8)
            assert step.outputs[0].names == chain[: len(kept)], "named by the tokens from the prompt's last block on"


def test_blocks_of_a_request_that_was_saved_are_held_and_those_of_a_preempted_one_fenced() -> None:
    book = RequestTable(8)
    book.add("a", params(3), 20)
    book.step([ScheduledTokens("a", 0, 16, [50, 51, 52])], idle=False)
    assert book.step([], ["a"], idle=True).fence
    assert not book.step([], ["b"], idle=True).fence
    assert book.finished(Finished("a", range(20), 0, []))
    orders = book.step([], idle=True)
    assert orders.held == ("a",)
    assert orders.asks
    assert not book.step([], idle=True).asks


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 15), min_size=1, max_size=40),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 39)),
)
def test_every_block_that_is_not_held_is_saved_exactly_once(
    prompt: int, chunks: list[int], held: set[int], preempted: set[int]
) -> None:
    book = RequestTable(8)
    blocks = -(-prompt // 8)
    book.add("a", params(blocks, held=tuple(sorted(held))), prompt)
    saved: list[int] = []
    at = 0
    for number, chunk in enumerate([*chunks, prompt]):
        at = 0 if number in preempted else at
        end = min(prompt, at + chunk)
        if end > at:
            for save in book.step([ScheduledTokens("a", at, end, range(blocks))], idle=False).saves:
                assert all(end >= min(prompt, 8 * (target.index + 1)) for target in save.targets)
                saved += [target.index for target in save.targets]
            at = end
    if at < prompt:
        for save in book.step([ScheduledTokens("a", at, prompt, range(blocks))], idle=False).saves:
            saved += [target.index for target in save.targets]
    assert sorted(saved) == [index for index in range(blocks) if index not in held]
