"""The connector over a device that is late: under any schedule of saves, loads, preemptions, ends and aborts nothing
counts as saved or loaded before it is, and no block or slot has a new owner while something is copied.

A model of vLLM's scheduler and of the stage stand on the two sides of the real books and the real worker. What every
block must contain is its request's name and the block's number, whoever computed or brought it.
"""

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tandem.core.kv import chain_names, pack_tokens
from tandem.engine.vllm.conduit_messages import (
    BlocksReceived,
    Closed,
    Ended,
    NoMore,
    OutputOffer,
    OutputSaved,
    OutputSlots,
    Saved,
    ToRank,
)
from tandem.engine.vllm.connector.load_pace import LoadPace
from tandem.engine.vllm.connector.request_table import Finished, RequestTable, ScheduledTokens
from tandem.engine.vllm.connector.worker_side import TandemConnectorWorker
from tandem.engine.vllm.stage_params import StageParams
from tests.worlds.late_copies import LateCopies

SIZE, BLOCKS, SLOTS = 4, 12, 40
ROOT = bytes(16)
GARBAGE = "somebody else's"


class Client:
    """The rank's end of a conduit, in memory."""

    def __init__(self) -> None:
        self.inbox: list[ToRank] = []
        self.outbox: list[Any] = []
        self.lost = False
        self.memory = self
        self.buffer = memoryview(bytearray(1))

    def mapped(self) -> "Client":
        return self

    def send(self, message: Any) -> None:
        self.outbox.append(message)

    def receive(self) -> list[ToRank]:
        heard, self.inbox = self.inbox, []
        return heard

    def wait(self, timeout_s: float) -> None:
        assert timeout_s <= 0.01, "a step waits for nothing for long"

    def close(self) -> None:
        self.lost = True


@dataclass
class Request:
    """In the model: `computed` tokens are in `blocks`; `drawn` are those that came of it."""

    name: str
    work: int
    params: StageParams
    prompt: int
    limit: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    drawn: int = 0
    loading: bool = False
    over: bool = False

    def content(self, index: int) -> list[str | None]:
        return [f"{self.name}:{index}"] * 2

    @property
    def tokens(self) -> list[int]:
        return [1000 * self.work + at for at in range(self.prompt + self.drawn)]


class Schedules(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.copies = LateCopies(BLOCKS, SLOTS)
        self.client = Client()
        pace = LoadPace(itl_s=1.0, share=1.0, bytes_per_s=2.0)
        self.worker = TandemConnectorWorker(0, cast("Any", self.client), self.copies, 1, pace, ("l0", "l1"))
        self.book = RequestTable(SIZE)
        self.free = list(range(BLOCKS))
        self.free_slots = list(range(SLOTS))
        self.requests: dict[str, Request] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.freed_late: dict[str, str] = {}
        """Finished requests whose blocks the engine keeps, and until which report."""
        self.offered: dict[tuple[int, int], tuple[str, int, list[int]]] = {}
        self.ended: set[int] = set()
        self.work = 0
        self.outputs_saved = 0

    # -- works --

    @rule(prompt=st.integers(1, 11), limit=st.integers(1, 9), load=st.booleans(), save=st.booleans())
    def arrive(self, prompt: int, limit: int, load: bool, save: bool) -> None:
        blocks = -(-prompt // SIZE)
        if len(self.free_slots) < blocks or len(self.requests) > 6:
            return
        self.work += 1
        name = f"r{self.work}"
        slots = tuple(self.free_slots.pop() for _ in range(blocks))
        self.copies.owned.update(slots)
        brought = prompt if load else 0
        keep = ROOT if not save else None
        params = StageParams(self.work, 0, slots, brought, 0 if save and not load else blocks, (), False, keep)
        request = Request(name, self.work, params, prompt, 1 if save else limit)
        self.requests[name] = request
        self.waiting.append(name)
        self.book.add(name, params, prompt)
        if not load:
            self.client.inbox.append(NoMore(self.work))

    @rule(pick=st.integers(0, 20), index=st.integers(0, 2), last=st.booleans())
    def land(self, pick: int, index: int, last: bool) -> None:
        """A block of a load comes to its slot."""
        loads = [each for each in self.requests.values() if each.params.load and not each.over]
        if not loads:
            return
        request = loads[pick % len(loads)]
        index %= len(request.params.slots)
        self.copies.slots[request.params.slots[index]] = request.content(index)
        self.client.inbox.append(BlocksReceived(request.work, (index,)))
        if last:
            self.client.inbox.append(NoMore(request.work))

    # -- the device --

    @rule(saves=st.integers(0, 3), loads=st.integers(0, 2))
    def device(self, saves: int, loads: int) -> None:
        self.copies.end_some(saves, loads)

    # -- the engine --

    @rule(chunk=st.integers(1, 9), preempt=st.booleans(), late=st.booleans())
    def step(self, chunk: int, preempt: bool, late: bool) -> None:
        if preempt and self.running:
            self._preempt(self.running.pop())
        for name in list(self.waiting):
            self._admit(self.requests[name])
        progress, computing = list[ScheduledTokens](), list[tuple[Request, int]]()
        for name in list(self.running):
            request = self.requests[name]
            end = min(request.prompt + request.drawn, request.computed + chunk)
            needed = -(-end // SIZE) - len(request.blocks)
            if needed > len(self.free):
                self.running.remove(name)
                self._preempt(name)
                continue
            request.blocks += [self.free.pop() for _ in range(max(0, needed))]
            progress.append(ScheduledTokens(name, request.computed, end, list(request.blocks)))
            computing.append((request, end))
        decoding = any(request.computed >= request.prompt for request, _ in computing)
        told = [each for each in progress if each.request_id in self.book.saving]
        orders = self.book.step(told, self.preempted, decoding=decoding, idle=not computing)
        finished, self.finished, self.preempted = self.finished, set(), set()
        self.worker.begin_step(orders)
        for layer in range(2):
            for request, end in computing:
                for index in range(request.computed // SIZE, -(-end // SIZE)):
                    self.copies.blocks[request.blocks[index]][layer] = request.content(index)[layer]
            if late:
                self.copies.end_some(1, 1)
            self.worker.layer_computed(f"l{layer}")
        self.worker.end_step()
        sent, received = self.worker.report(finished)
        failed = self.worker.failed_blocks()
        self._heard()
        for request, end in computing:
            self._computed(request, end)
        for name in received:
            self._received(self.requests[name], failed)
        for name in sent:
            self._report(name, "sent")

    def _admit(self, request: Request) -> None:
        matched = self.book.matched(request.name, 0)
        needed = -(-matched // SIZE)
        if needed > len(self.free):
            return
        self.waiting.remove(request.name)
        request.blocks = [self.free.pop() for _ in range(needed)]
        if matched:
            request.loading = True
            self.book.allocated(request.name, request.blocks, matched)
        else:
            self.running.append(request.name)

    def _preempt(self, name: str) -> None:
        request = self.requests[name]
        self._free(request)
        request.computed = 0
        self.preempted.add(name)
        self.waiting.insert(0, name)

    def _computed(self, request: Request, end: int) -> None:
        request.computed = end
        for index in range(end // SIZE):
            assert self.copies.blocks[request.blocks[index]] == request.content(index), "a block was overwritten"
        if end == request.prompt + request.drawn:
            request.drawn += 1
            if request.drawn >= request.limit:
                self.running.remove(request.name)
                self._end(request)

    def _received(self, request: Request, failed: set[int]) -> None:
        if request.over:
            self._report(request.name, "received")
            return
        request.loading = False
        good = 0
        while good < len(request.blocks) and request.blocks[good] not in failed:
            assert self.copies.blocks[request.blocks[good]] == request.content(good), "loaded before it was"
            good += 1
        # As vLLM does: the last token of a prompt is computed in any case.
        request.computed = min(good * SIZE, request.prompt - 1)
        self.running.append(request.name)

    @rule(pick=st.integers(0, 20))
    def abort(self, pick: int) -> None:
        alive = [request for request in self.requests.values() if not request.over]
        if alive:
            request = alive[pick % len(alive)]
            for line in (self.waiting, self.running):
                if request.name in line:
                    line.remove(request.name)
            self._end(request)

    def _end(self, request: Request) -> None:
        request.over = True
        self.finished.add(request.name)
        over = Finished(request.name, request.tokens, request.computed, list(request.blocks))
        delayed = self.book.finished(over)
        if request.loading:
            assert not delayed, "blocks are given back twice"
            self.freed_late[request.name] = "received"
        elif delayed:
            self.freed_late[request.name] = "sent"
        else:
            self._free(request)

    def _report(self, name: str, kind: str) -> None:
        assert self.freed_late.pop(name, None) == kind, "reported, though nobody waits for it"
        self._free(self.requests[name])

    def _free(self, request: Request) -> None:
        for block in request.blocks:
            # Whoever reads it from now on reads what is not its own; unless a fence comes first.
            self.free.append(block)
        request.blocks = []

    # -- the stage --

    def _heard(self) -> None:
        heard, self.client.outbox = self.client.outbox, []
        for message in heard:
            match message:
                case Saved():
                    request = self.requests[f"r{message.work}"]
                    for index in message.indices:
                        found = self.copies.slots[request.params.slots[index]]
                        assert found == request.content(index), "said to be saved before it is"
                case OutputOffer():
                    self._offered(message)
                case OutputSaved():
                    self._output_saved(message)
                case Ended():
                    assert message.work not in self.ended
                    self.ended.add(message.work)
                    self._give_back(self.requests[f"r{message.work}"].params.slots)

    def _offered(self, offer: OutputOffer) -> None:
        request = self.requests[f"r{offer.work}"]
        first = request.prompt // SIZE
        chain = chain_names(ROOT, pack_tokens(request.tokens[first * SIZE :]), SIZE)
        assert offer.names == chain[: len(offer.names)]
        count = min(len(offer.names), len(self.free_slots))
        slots = [self.free_slots.pop() for _ in range(count)]
        self.copies.owned.update(slots)
        self.offered[offer.work, offer.sequence] = (request.name, first, slots)
        padded = (*slots, *[-1] * (len(offer.names) - count))
        self.client.inbox.append(OutputSlots(offer.work, offer.sequence, padded))

    def _output_saved(self, message: OutputSaved) -> None:
        name, first, slots = self.offered.pop((message.work, message.sequence))
        if message.saved:
            for index, slot in enumerate(slots):
                assert self.copies.slots[slot] == self.requests[name].content(first + index), "saved before it is"
                self.outputs_saved += 1
        self._give_back(slots)

    def _give_back(self, slots: Any) -> None:
        for slot in slots:
            self.copies.owned.discard(slot)
            self.copies.slots[slot] = [GARBAGE, GARBAGE]
            self.free_slots.append(slot)

    @rule(pick=st.integers(0, 20))
    def close(self, pick: int) -> None:
        """The stage ends a load's work: its slots get other bytes as soon as the rank has been told."""
        loads = [request for request in self.requests.values() if request.params.load]
        if loads:
            request = loads[pick % len(loads)]
            self.client.inbox.append(Closed(request.work))
            if request.work not in self.ended:
                for slot in request.params.slots:
                    self.copies.slots[slot] = [GARBAGE, GARBAGE]

    def teardown(self) -> None:
        if not hasattr(self, "copies"):
            return
        for request in list(self.requests.values()):
            if request.params.load:
                self.client.inbox.append(NoMore(request.work))
        for _ in range(200):
            self.device(9, 9)
            self.step(9, preempt=False, late=False)
            if all(request.over for request in self.requests.values()) and not self.freed_late:
                break
        assert not self.freed_late, f"blocks are held for ever: {self.freed_late}"
        assert all(request.over for request in self.requests.values())
        assert sorted(self.free) == list(range(BLOCKS)), "every block is free again"
        assert self.copies.under_way == 0


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_blocks_of_a_preempted_request_are_not_computed_over_before_they_are_saved() -> None:
    world = Schedules()
    world.begin()
    world.arrive(prompt=11, limit=1, load=False, save=True)
    world.step(9, preempt=False, late=False)
    assert world.copies.under_way == 2, "two blocks in two groups of layers, one call each"
    world.step(9, preempt=True, late=False)
    assert world.copies.fences == 1
    world.teardown()


def test_nothing_is_copied_twice_or_in_pieces() -> None:
    world = Schedules()
    world.begin()
    world.arrive(prompt=11, limit=1, load=False, save=True)
    world.step(11, preempt=False, late=False)
    assert [copying.bytes for copying in world.copies._saves] == [3, 3], "a step's blocks are one copy for each group"
    assert world.freed_late == {"r1": "sent"}
    world.device(1, 0)
    world.step(1, preempt=False, late=False)
    assert world.freed_late == {"r1": "sent"}, "half of the layers are under way"
    world.device(1, 0)
    world.step(1, preempt=False, late=False)
    assert world.freed_late == {}


def test_the_answer_is_kept_where_the_stage_has_room() -> None:
    world = Schedules()
    world.begin()
    world.arrive(prompt=3, limit=9, load=False, save=False)
    world.teardown()
    assert world.outputs_saved == 2, "tokens 0 to 10 are computed: blocks 0 and 1 are whole"
