"""The stage's decisions under arbitrary histories: slots never leak, and once all is over nothing is held."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest, FirstTokens
from tandem.engine.vllm.conduit_messages import BlocksReceived, Closed, First, NoMore, OutputSlots
from tandem.engine.vllm.stage_params import NO_SLOT, StageParams, stage_params
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.stage_state import StageState

SIZE = 4
WORDS = bytes(8)
PROMPTS = st.tuples(st.integers(0, 3), st.integers(1, 22))


class Books(RuleBasedStateMachine):
    """Plays engine, ranks and fetchers. Works of few different prompts, so that blocks are shared."""

    @initialize(tensor=st.integers(1, 2))
    def begin(self, tensor: int) -> None:
        ranks = tuple(range(tensor))
        self.ranks = ranks
        self.books = StageState(12, SIZE, ranks, ranks, StageSettings(blocks=12, queue_s=5.0, late_s=3.0))
        self.now = 0.0
        self.next = 0
        self.params: dict[int, StageParams | None] = {}
        self.alive: dict[int, EngineRequest] = {}
        self.fetching: dict[int, dict[int, int]] = {}
        self.late: list[int] = []
        self.told: list[object] = []
        self.outputs: list[tuple[int, int, bool]] = []
        self.over: set[tuple[int, int]] = set()
        self.names: dict[bytes, None] = {}

    @rule(
        prompt=PROMPTS,
        mode=st.sampled_from(("prefill", "decode", "local")),
        save=st.booleans(),
        bring=st.integers(0, 5),
    )
    def open(self, prompt: tuple[int, int], mode: str, save: bool, bring: int) -> None:
        base, length = prompt
        self.next += 1
        lease = f"l{self.next}" if mode == "prefill" else ""
        work = EngineRequest(
            work_id=self.next,
            mode=mode,
            prompt=pack_tokens(tuple(range(100 * base, 100 * base + length))),
            branches=(ChildRequest(0, 1),),
            sampling=Sampling(),
            stopping=Stopping(4),
            root=bytes(16),
            deadline=self.now + 8.0,
            lease_id=lease,
            lease_s=2.0,
        )
        self.books.open(work, self.now, save=save)
        self.alive[self.next] = work
        if bring:
            self.books.bring(self.next, bring)

    @rule(seconds=st.sampled_from((0.0, 0.0, 1.0, 4.0)))
    def look(self, seconds: float) -> None:
        self.now += seconds
        books = self.books
        books.look(self.now)
        for work_id, params in books.admitted:
            assert work_id in self.alive
            assert work_id not in self.params, "admitted once"
            self.params[work_id] = stage_params(params)
        for work_id, error in books.refused:
            assert isinstance(error, TandemError)
            assert work_id not in self.params
            del self.alive[work_id]
        books.admitted, books.refused = [], []
        self.told += books.to_ranks
        books.to_ranks.clear()
        report = books.outbox.take(books.pool.take_changes())
        if report is not None:
            for job in report.fetches:
                self.fetching[job.work_id] = {target.index: target.slot for target in job.targets}
            self.names.update(dict.fromkeys(report.kv.stored))
            for name in report.kv.removed:
                del self.names[name]
            assert sorted(self.names) == sorted(books.pool.snapshot())

    @rule(pick=st.integers(0, 50))
    def land(self, pick: int) -> None:
        for work_id, targets in self.fetching.items():
            if targets and pick % 2:
                index = min(targets)
                del targets[index]
                self.books.landed(work_id, index, WORDS)

    @rule(pick=st.integers(0, 50), late=st.booleans())
    def end_fetch(self, pick: int, late: bool) -> None:
        if not self.fetching:
            return
        work_id = sorted(self.fetching)[pick % len(self.fetching)]
        slots = tuple(self.fetching.pop(work_id).values()) if late else ()
        self.fetching.pop(work_id, None)
        self.books.fetch_ended(work_id, slots)
        self.late += slots

    @rule()
    def quarantine_over(self) -> None:
        for slot in self.late:
            self.books.pool.unquarantine(slot)
        self.late.clear()

    @rule(pick=st.integers(0, 50), rank=st.integers(0, 1), upto=st.integers(0, 6))
    def save(self, pick: int, rank: int, upto: int) -> None:
        saving = [
            work for work in self.alive if (params := self.params.get(work)) and params.save < len(params.slots)
        ]
        if not saving or rank >= len(self.ranks):
            return
        work_id = saving[pick % len(saving)]
        params = self.params[work_id]
        assert params is not None
        self.books.saved(rank, work_id, range(min(upto, len(params.slots))))

    @rule()
    def digest(self) -> None:
        saved = tuple(self.books.to_digest)
        self.books.to_digest.clear()
        for slot, digested in saved:
            assert slot != NO_SLOT
            digested(WORDS)

    @rule(work_id=st.integers(1, 4), chain=st.integers(0, 3), blocks=st.integers(1, 6))
    def offer_output(self, work_id: int, chain: int, blocks: int) -> None:
        spare, here = self.books._admission.spare, self.books.pool.snapshot()
        names = tuple(bytes([99, chain, index, *[0] * 13]) for index in range(blocks))
        self.books.outputs.offered(work_id, 0, names)
        answer = self.books.to_ranks[-1]
        assert isinstance(answer, OutputSlots)
        given = [slot for slot in answer.slots if slot != NO_SLOT]
        assert len(answer.slots) == blocks
        assert len(given) <= spare, "only what nobody needs"
        assert all(slot == NO_SLOT or name not in here for name, slot in zip(names, answer.slots, strict=True))
        if given:
            self.outputs += [(work_id, rank, False) for rank in self.ranks]

    @rule(pick=st.integers(0, 50), whole=st.booleans())
    def output_saved(self, pick: int, whole: bool) -> None:
        if self.outputs:
            work_id, rank, _ = self.outputs.pop(pick % len(self.outputs))
            self.books.outputs.saved(rank, work_id, 0, saved=whole)

    @rule(pick=st.integers(0, 50), rank=st.integers(0, 1))
    def report_load(self, pick: int, rank: int) -> None:
        loading = [work for work in self.alive if (params := self.params.get(work)) is not None and params.load]
        if loading and rank < len(self.ranks):
            work_id = loading[pick % len(loading)]
            if (work_id, rank) not in self.over:
                self.over.add((work_id, rank))
                self.books.loaded(rank, work_id, 0, 1)

    @rule(pick=st.integers(0, 50), first=st.booleans(), lost=st.booleans())
    def position(self, pick: int, first: bool, lost: bool) -> None:
        if self.alive:
            work_id = sorted(self.alive)[pick % len(self.alive)]
            if lost:
                self.books.sample_first(work_id)
            elif first:
                self.books.provide_first(work_id, 0, 9)
            else:
                self.books.first_sampled(work_id, FirstTokens(((0, 9, None),)))

    @rule(pick=st.integers(0, 50), said=st.booleans())
    def close(self, pick: int, said: bool) -> None:
        if self.alive:
            self._close(sorted(self.alive)[pick % len(self.alive)], said)

    def _close(self, work_id: int, said: bool) -> None:
        del self.alive[work_id]
        self.books.close(work_id, self.now)
        if said:
            for rank in self.ranks:
                self.books.ended(rank, work_id, 0)

    @rule(pick=st.integers(1, 50))
    def release(self, pick: int) -> None:
        if f"l{pick}" in self.books.leases._leases:
            self.books.leases.release(f"l{pick}")

    @rule(pick=st.integers(0, 11))
    def invalidate(self, pick: int) -> None:
        if self.books.pool.digests(pick) is not None:
            self.books.invalidate(pick)

    @invariant()
    def balances(self) -> None:
        if hasattr(self, "books"):
            self.books.check()

    def teardown(self) -> None:
        if not hasattr(self, "books"):
            return
        for work_id in sorted(self.alive):
            self._close(work_id, work_id % 2 == 0)
        while self.outputs:
            self.output_saved(0, whole=True)
        self.look(0.0)
        self.digest()
        for work_id in sorted(self.fetching):
            self.books.fetch_ended(work_id, ())
        self.quarantine_over()
        self.look(10.0)
        self.look(10.0)
        assert self.books.pool.used == self.books.pool.quarantined == 0
        self.books.check()
        closed = {message.work for message in self.told if isinstance(message, Closed)}
        for message in self.told:
            if isinstance(message, BlocksReceived | First | NoMore):
                assert message.work in closed, "ranks hear of the end of every work that they have heard of"


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
