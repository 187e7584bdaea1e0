"""Drives a scheduler with the simulated runner, synchronously, and compares everything with the reference."""

from dataclasses import dataclass, field

import msgspec

from tandem.core.kv import Handle, RootIdentity, chain_names, pack_tokens, tail_name, unpack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.digest import Digester, unbind
from tandem.engine.protocol import (
    Emitted,
    EngineRequest,
    FetchJob,
    FetchTarget,
    Gone,
    RequestEnded,
    RequestStats,
    StepReport,
)
from tandem.engine.scheduler.plan import Draw, Row, Step
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.content import Content
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import Answer, reference_tokens
from tandem.engine.simulated.runner import SimulatedRunner

EPOCH = 7
ROOT = RootIdentity("simulated", "u64", 4).name()


def trunk_tokens(work: EngineRequest) -> tuple[int, ...]:
    """What all branches of a work have in common."""
    forced = [branch.forced for branch in work.branches]
    length = 0
    while all(len(f) > length and f[length] == forced[0][length] for f in forced):
        length += 1
    return unpack_tokens(work.prompt) + forced[0][:length]


def spelled_out(step: Step) -> Step:
    """The same step with rows in place of columns."""
    columns = step.columns
    if columns is None:
        return step
    rows = []
    for at, lane in enumerate(columns.lanes):
        draw = Draw(lane.work_id, lane.sequence, lane.seed, columns.positions[at], lane.sampling)
        rows.append(Row(columns.tokens[4 * at : 4 * at + 4], columns.starts[at], columns.tables[at], True, (draw,)))
    return msgspec.structs.replace(step, rows=(*rows, *step.rows), columns=None)


@dataclass
class Story:
    """One work as seen from outside."""

    work: EngineRequest
    emitted: dict[int, list[Emitted]]
    provided: dict[int, int] = field(default_factory=dict)
    ended: RequestEnded | None = None
    failed: str | None = None
    cancelled: bool = False
    dropped: set[int] = field(default_factory=set)

    def answer(self, model: SimulatedModel, branch: ChildRequest) -> Answer:
        return reference_tokens(model, self.work.prompt, branch, self.work.sampling, self.work.stopping)


@dataclass
class Fetching:
    """A fetch the harness carries out."""

    job: FetchJob
    left: dict[int, FetchTarget]
    closed: bool = False


class Harness:
    """One engine on hand-turned time."""

    def __init__(self, model: SimulatedModel, settings: SchedulerSettings) -> None:
        self.model = model
        self.now = 0.0
        self.scheduler = Scheduler(model.info(), settings)
        self.runner = SimulatedRunner(model)
        self.content = Content(model)
        self.digester = Digester(model.layout)
        self.stories: dict[int, Story] = {}
        self.fetches: dict[int, Fetching] = {}
        self.stopping: dict[int, Fetching] = {}
        """Withdrawn fetches that have not ended yet."""
        self.quarantine: list[int] = []
        self.names: dict[bytes, None] = {}
        self.withdrawn: list[int] = []
        """Works whose blocks went to others, in order."""
        self.peer_reads: dict[int, FetchJob] = {}
        """Fetches for peers."""
        self.landed_for_guest: dict[int, list[int]] = {}
        self.blocks: dict[bytes, tuple[tuple[int, ...], int]] = {}
        """Of which prompt a block is which that peers have asked for."""
        self.copied: int | None = None
        """The slot that a tier copies."""
        self.running: Step | None = None
        self.steps: list[Step] = []
        self.progressed: list[tuple[int, int]] = []
        """Works that were said to get on, with their tokens computed."""
        self._next = 0

    # -- commands --

    def submit(
        self,
        prompt: tuple[int, ...],
        mode: str = "local",
        *,
        max_tokens: int = 4,
        branches: tuple[ChildRequest, ...] = (ChildRequest(0, 11),),
        sampling: Sampling | None = None,
        deadline: float = 1e9,
        lease_s: float = 100.0,
        priority: int = 0,
        bring: int = 0,
        private: bool = False,
        **stopping: object,
    ) -> int:
        self._next += 1
        work = EngineRequest(
            work_id=self._next,
            mode=mode,
            prompt=pack_tokens(prompt),
            branches=branches,
            sampling=sampling or Sampling(),
            stopping=Stopping(max_tokens, **stopping),  # type: ignore[arg-type]
            root=ROOT,
            deadline=deadline,
            priority=priority,
            lease_id=f"lease-{self._next}" if mode == "prefill" else "",
            lease_s=lease_s,
            private=private,
        )
        self.scheduler.submit(work, self.now)
        self.stories[work.work_id] = Story(work, {branch.sequence: [] for branch in branches})
        self.scheduler.bring(work.work_id, bring)
        return work.work_id

    def provide(self, work_id: int, sequence: int, relay: bool = False) -> None:
        """Tell a decode work its next position, as prefill would have drawn it."""
        story = self.stories[work_id]
        branch = next(b for b in story.work.branches if b.sequence == sequence)
        token = story.answer(self.model, branch).tokens[0]
        if not story.emitted[sequence] and sequence not in story.provided and not relay and not story.ended:
            story.provided[sequence] = token
        self.scheduler.provide_first(work_id, sequence, token, self.now, relay)
        self.flush()

    def sample_first(self, work_id: int) -> None:
        """Prefill of a decode work is lost."""
        self.scheduler.sample_first(work_id, self.now)
        self.flush()

    def cancel(self, work_id: int, sequence: int | None = None) -> None:
        story = self.stories[work_id]
        if story.ended is None:
            if sequence is None:
                story.cancelled = True
            else:
                story.dropped.add(sequence)
        self.scheduler.cancel(work_id, self.now, sequence)
        self.flush()

    # -- fetches --

    def land(self, work_id: int, index: int) -> None:
        """Bring one block of a fetch, with the bytes the reference says it has."""
        fetching = self.fetches[work_id]
        target = fetching.left.pop(index)
        block = self.content.block_bytes(trunk_tokens(self.stories[work_id].work), index)
        self.runner.memory.block(target.slot)[:] = block
        self.scheduler.landed(work_id, index, self.digester.content_words(block), self.now)
        self.flush()

    def land_all(self, work_id: int) -> None:
        for index in list(self.fetches[work_id].left):
            self.land(work_id, index)
        self.end_fetch(work_id)

    def end_fetch(self, work_id: int, reason: str | None = None, late: tuple[int, ...] = ()) -> None:
        """Give up what has not landed; `late` slots stay dangerous until `quiet`."""
        fetching = self.fetches.pop(work_id)
        self.quarantine += late
        for target in fetching.left.values():
            if target.slot not in late:
                # The transfer leaves half-written bytes behind.
                self.runner.memory.block(target.slot)[:8] = b"\xa5" * 8
        self.scheduler.fetch_ended(work_id, reason, self.now, late)
        self.flush()

    def stop_withdrawn(self, late: bool = False) -> None:
        """What was withdrawn ends; with `late` its slots stay dangerous until `quiet`."""
        for work_id in list(self.stopping):
            self.fetches[work_id] = self.stopping.pop(work_id)
            slots = tuple(target.slot for target in self.fetches[work_id].left.values())
            self.end_fetch(work_id, "cancelled", slots if late else ())

    def quiet(self) -> None:
        """The abandoned transfers write their last bytes and are over."""
        for slot in self.quarantine:
            self.runner.memory.block(slot)[:] = b"\x5a" * self.model.layout.block_bytes
        for slot in self.quarantine:
            self.scheduler.kv_cache.pool.unquarantine(slot)
        self.quarantine = []

    # -- tiers --

    def ask_as_peer(self, known: tuple[int, ...]) -> bool:
        """A peer asks for the full blocks of a prompt, and own tiers have all of them."""
        self._next += 1
        lease_id, size = f"reuse-{self._next}", self.model.block_tokens
        names = export_names(known, size)[: len(known) // size]
        self.blocks.update({name: (known, index) for index, name in enumerate(names)})
        shared = self.scheduler.sharing.open(lease_id, names, 50.0, self.now)
        if shared:
            gone = [name for name in names if isinstance(self.scheduler.leases.look(lease_id, name, EPOCH), Gone)]
            self.scheduler.sharing.peer_reads.ask(lease_id, gone)
        self.flush()
        return shared

    def land_guest(self, number: int, index: int) -> None:
        """A tier has read one block of a prompt for a peer."""
        target = self.peer_reads[number].targets[index]
        block = self.content.block_bytes(*self.blocks[target.name])
        self.landed_for_guest.setdefault(number, []).append(index)
        self.runner.memory.block(target.slot)[:] = block
        self.scheduler.landed(number, index, self.digester.content_words(block), self.now)
        self.flush()

    def end_guest(self, number: int, late: tuple[int, ...] = ()) -> None:
        """Nothing more is read for a peer."""
        job, landed = self.peer_reads.pop(number), self.landed_for_guest.pop(number, [])
        for target in job.targets:
            if target.index not in landed and target.slot not in late:
                self.runner.memory.block(target.slot)[:8] = b"\xa5" * 8
        self.quarantine += late
        self.scheduler.fetch_ended(number, None, self.now, late)
        self.flush()

    def copy_block(self, number: int | None) -> None:
        """A tier has copied its block, and copies another one."""
        pool, names = self.scheduler.kv_cache.pool, self.scheduler.snapshot()
        if self.copied is not None:
            pool.unhold(self.copied)
        self.copied = pool.hold(names[number % len(names)]) if names and number is not None else None
        self.check()

    # -- steps --

    def begin(self) -> bool:
        """Plan a step; its result is taken by `finish`."""
        self.now += 0.01
        step, report = self.scheduler.plan(self.now)
        self._read(report)
        self.running = step
        if step is not None:
            self.steps.append(spelled_out(step))
            self._check_writes(self.steps[-1])
        self.check()
        return step is not None

    def _check_writes(self, step: Step) -> None:
        """A slot is written by one row, for one user, before it has a name, and not while a transfer fills it."""
        size, pool = self.model.block_tokens, self.scheduler.kv_cache.pool
        fetching = (*self.fetches.values(), *self.stopping.values())
        filling = {target.slot for each in fetching for target in each.left.values()}
        filling |= set(self.scheduler.sharing.peer_reads.slots())
        named = {pool.find(name) for name in pool.snapshot()}
        written: set[int] = set()
        for row in step.rows:
            table = unpack_tokens(row.table)
            assert len(table) * size >= row.start + row.count
            assert not filling & set(table[: -(-(row.start + row.count) // size)]), "attends to a slot being filled"
            for block in range(row.start // size, -(-(row.start + row.count) // size)) if row.write else ():
                slot = table[block]
                assert slot not in written, "two rows write one slot"
                assert pool.refs(slot) == 1, "a shared slot is written"
                assert slot not in named, "a published slot is written"
                written.add(slot)

    def finish(self) -> None:
        assert self.running is not None
        result = self.runner.compute(self.running, 0.001)
        self.running = None
        self._read(self.scheduler.apply(result, self.now))
        self.check()

    def step(self) -> bool:
        if not self.begin():
            return False
        self.finish()
        return True

    def run(self, limit: int = 2000) -> None:
        """Step until nothing can be computed."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still busy after {limit} steps")

    # -- observation --

    def flush(self) -> None:
        self._read(self.scheduler.take_report())
        self.check()

    def _read(self, report: StepReport | None) -> None:
        if report is None:
            return
        for name in report.kv.stored:
            assert name not in self.names
            self.names[name] = None
        for name in report.kv.removed:
            del self.names[name]
        self.withdrawn += report.withdrawn
        self.progressed += report.progressed
        for work_id in report.withdrawn:
            self.stopping[work_id] = self.fetches.pop(work_id)
        for job in report.fetches:
            if job.peer_read:
                self.peer_reads[job.work_id] = job
                continue
            assert job.work_id not in self.stopping, "fetched again before the last fetch has ended"
            self.fetches[job.work_id] = Fetching(job, {target.index: target for target in job.targets})
        for emitted in report.emitted:
            self._emitted(emitted)
        for failed in report.failed:
            self.stories[failed.work_id].failed = failed.code
        for ended in report.ended:
            story = self.stories[ended.work_id]
            assert story.ended is None, "ended twice"
            story.ended = ended
            self._judge(story)

    def _emitted(self, emitted: Emitted) -> None:
        story = self.stories[emitted.work_id]
        assert story.ended is None
        branch = next(b for b in story.work.branches if b.sequence == emitted.sequence)
        so_far = story.emitted[emitted.sequence]
        first = len(branch.forced) + 1 + (emitted.sequence in story.provided)
        assert emitted.position == first + len(so_far), "positions come in order, once"
        so_far.append(emitted)

    def stats(self, work_id: int) -> RequestStats:
        """The figures of a work that has ended."""
        ended = self.stories[work_id].ended
        assert ended is not None, "the work has not ended"
        return ended.stats

    def tokens(self, work_id: int, sequence: int = 0) -> tuple[int, ...]:
        """New tokens of a branch, the provided one included."""
        story = self.stories[work_id]
        provided = (story.provided[sequence],) if sequence in story.provided else ()
        return provided + tuple(emitted.token for emitted in story.emitted[sequence])

    def _judge(self, story: Story) -> None:
        """What was emitted must be right; where the work ended by itself it must be whole."""
        for branch in story.work.branches:
            answer = story.answer(self.model, branch)
            tokens = self.tokens(story.work.work_id, branch.sequence)
            whole = not (story.failed or story.cancelled or branch.sequence in story.dropped)
            if story.work.mode == "prefill":
                assert tokens == answer.tokens[: len(tokens)]
                assert len(tokens) == 1 or not whole
            elif whole:
                assert tokens == answer.tokens
                finish = story.emitted[branch.sequence][-1].finish if story.emitted[branch.sequence] else None
                assert finish == answer.finish or (len(tokens) == 1 and branch.sequence in story.provided)
            else:
                assert tokens == answer.tokens[: len(tokens)]

    def exports(self, work_id: int) -> list[Handle]:
        """All blocks under a work's lease that can be pulled now; their bytes and digests must be right."""
        story = self.stories[work_id]
        known = trunk_tokens(story.work)
        lease = self.scheduler.leases
        handles = []
        for index, name in enumerate(export_names(known, self.model.block_tokens)):
            handle = lease.look(story.work.lease_id, name, EPOCH)
            if isinstance(handle, Handle):
                block = self.content.block_bytes(known, index)
                assert bytes(self.runner.memory.block(handle.slot)) == block, f"block {index} has other bytes"
                words = unbind(handle.digests, EPOCH, name, handle.generation)
                assert words == self.digester.content_words(block)
                handles.append(handle)
        return handles

    def check(self) -> None:
        self.scheduler.check()
        assert dict.fromkeys(self.scheduler.snapshot()).keys() >= self.names.keys() - self._gone()
        pool = self.scheduler.kv_cache.pool
        assert pool.available + pool._held_idle + pool.used + pool.quarantined == pool.blocks

    def _gone(self) -> set[bytes]:
        """Names removed since the last report."""
        return {name for name, maker in self.scheduler.kv_cache.pool._changes.items() if maker is None}

    def drain(self) -> None:
        """End everything; nothing may be left."""
        for work_id, story in self.stories.items():
            if story.ended is None:
                self.cancel(work_id)
        if self.running is not None:
            self.finish()
        self.stop_withdrawn()
        for work_id in list(self.fetches):
            self.end_fetch(work_id, "drained")
        for number in list(self.peer_reads):
            self.end_guest(number)
        self.quiet()
        self.copy_block(None)
        self.scheduler.leases.release_all()
        assert not self.step()
        pool = self.scheduler.kv_cache.pool
        assert pool.available == pool.blocks
        assert self.scheduler.kv_cache.export_due == 0
        assert self.scheduler.state.batch.width == 0
        assert all(story.ended is not None for story in self.stories.values())
        assert sorted(self.names) == sorted(self.scheduler.snapshot())


def export_names(known: tuple[int, ...], block_tokens: int) -> list[bytes]:
    """Names of a trunk's blocks, derived apart from the engine."""
    packed = pack_tokens(known)
    names = list(chain_names(ROOT, packed, block_tokens))
    rest = len(known) % block_tokens
    if rest:
        names.append(tail_name(names[-1] if names else ROOT, packed[-4 * rest :]))
    return names
