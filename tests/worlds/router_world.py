"""A router's core over scripted workers on virtual time, for the dispatch and fleet tests.

The truth of a request is a pure function of (seed, sequence, position), so every worker knows it and a test can
tell at once whether a client got exactly that.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.tickets import Keyring, TicketKey, check
from router.dispatch.deps import DispatchDeps
from router.dispatch.dispatcher import Dispatcher
from router.fleet.fleet import Fleet
from router.fleet.orphaned_holders import SharedIndex
from router.fleet.prober import PairProber
from router.generation import Generation, Usage
from router.placement import CostModel
from router.settings import RouterSettings
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.entropy import SeededEntropy, position_u64
from tandem.core.errors import TandemError
from tandem.core.kv import Layout, RootIdentity, pack_tokens
from tandem.core.messages import (
    PROTOCOL_VERSION,
    Adapter,
    AttemptFailed,
    AttemptReport,
    Cancel,
    Hello,
    KvSnapshot,
    Load,
    Ping,
    Pong,
    Progressed,
    ProvideFirst,
    PublishSplit,
    RouterMessage,
    SampleFirst,
    SequenceOutput,
    StepOutputs,
    Submit,
    Transferred,
    WorkerCommand,
)
from tandem.core.metrics import Meter, NullMeter
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.spans import Span, TraceContext
from tandem.link.memory_link import MemoryLinks
from tandem.link.protocol import WorkerLink
from tandem.worker.split_registry import SplitRegistry

KEYRING = Keyring(TicketKey("k1", b"0123456789abcdef"))
ROOT = RootIdentity("model-hash", "float32", 16)
LAYOUT = Layout("torch", "block", "float32", 4, 2, 16, 2, 8)


@lru_cache(maxsize=1 << 16)
def true_token(seed: int, sequence: int, position: int) -> int:
    return position_u64(seed, sequence, position) % 1000


def true_tokens(seed: int, sequence: int, count: int) -> tuple[int, ...]:
    return tuple(true_token(seed, sequence, position) for position in range(1, count + 1))


def text_of(tokens: tuple[int, ...]) -> str:
    """Text as a pure function of the ids, with every third id held back until the next one."""
    text = ""
    for index, token in enumerate(tokens):
        if index == len(tokens) - 1 and token % 3 == 0:
            break
        text += _piece(token)
    return text


def _piece(token: int) -> str:
    return f" {token}" if token % 3 else f"<{token}>"


@lru_cache(maxsize=4096)
def _lengths(seed: int, sequence: int) -> list[int]:
    """Of the text of the first 0, 1, 2, ... tokens of a sequence, none held back, as far as it has been asked for."""
    return [0]


def text_of_one(seed: int, sequence: int, position: int, last: bool) -> tuple[int, str]:
    """What the token of this position adds to the text that `text_of` gives for those before it: where, and what."""
    lengths = _lengths(seed, sequence)
    while len(lengths) < position:
        lengths.append(lengths[-1] + len(_piece(true_token(seed, sequence, len(lengths)))))
    token, before = true_token(seed, sequence, position), true_token(seed, sequence, position - 1)
    held = _piece(before) if position > 1 and before % 3 == 0 else ""
    return lengths[position - 1] - len(held), held + (_piece(token) if last or token % 3 else "")


@dataclass
class Job:
    """One submit on one scripted worker."""

    submit: Submit
    first: dict[int, asyncio.Event] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    sampling: bool = False
    cancelled: set[int] = field(default_factory=set)
    task: "asyncio.Task[None] | None" = None


class _Teller:
    """A worker's router, as the board of splits knows it."""

    def __init__(self, worker: "ScriptedWorker") -> None:
        self._worker = worker

    def tell(self, message: RouterMessage) -> None:
        self._worker.send(message)


class ScriptedWorker:
    """Speaks the link protocol and generates the truth. `step_s` and `prefill_s` give its pace."""

    def __init__(self, world: "World", worker_id: str, role: str) -> None:
        self.world = world
        self.worker_id = worker_id
        self.role = role
        self.epoch = 1
        self.step_s = 0.01
        self.prefill_s = 0.05
        self.revision = "r1"
        self.layout = LAYOUT
        self.root = ROOT.name()
        self.model = "demo"
        self.protocol = PROTOCOL_VERSION
        self.features: tuple[str, ...] = ()
        self.adapters: tuple[Adapter, ...] = ()
        self.draining = False
        self.pongs = True
        self.mute = False
        self.gets_on = False
        """Whether it says of its attempts that they get on, with every heartbeat."""
        self.deaf = False
        self.report = True
        self.end_s = 0.0
        """How long an attempt that is cancelled takes to end."""
        self.relay = False
        self.reused = 0
        self.by_tier: dict[str, int] = {}
        self.keeps = True
        """Whether it keeps prefixes that it is asked to pin."""
        self.fail_with: tuple[str, ...] | None = None
        self.load: Load | None = None
        self.lie_at: int | None = None
        self.submits: list[Submit] = []
        self.commands: list[WorkerCommand] = []
        self.jobs: dict[int, Job] = {}
        self.link: WorkerLink | None = None
        self.names: tuple[bytes, ...] = ()
        self.snapshots_asked = 0
        self.unready = False
        self.canaries: list[Submit] = []
        self.transfer: Callable[[str], tuple[str, str] | None] = lambda _holder: ("mem", "")
        """How a fetch from a holder ends: path and code. None keeps a canary waiting."""
        self.transfer_of_requests: Callable[[str], tuple[str, str] | None] | None = None
        """The same, for all but canaries."""
        self.board = SplitRegistry()
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        server = self.world.links.server(self.worker_id)
        await server.start(self._accept)

    def die(self) -> None:
        """The process ends without a word."""
        self.world.links.kill(self.worker_id)
        for task in self._running:
            task.cancel()
        self.jobs.clear()
        self.link = None

    async def revive(self) -> None:
        self.epoch += 1
        await self.start()

    def hello(self) -> Hello:
        return Hello(
            protocol=self.protocol,
            worker_id=self.worker_id,
            epoch=self.epoch,
            role=self.role,
            model=self.model,
            model_hash="model-hash",
            revision=self.revision,
            layout=self.layout,
            root=self.root,
            blocks=1000,
            context_tokens=4096,
            eos_token_ids=(0,),
            addresses=(f"mem://{self.worker_id}",),
            draining=self.draining,
            unready=self.unready,
            canary="" if self.unready else "self",
            features=self.features,
            adapters=self.adapters,
        )

    async def _accept(self, link: WorkerLink) -> None:
        self.link = link
        self.jobs = {}
        link.tokens.send(self.hello())
        self.board.tell((_Teller(self),), self.world.clock.now())
        state = asyncio.get_running_loop().create_task(self._state(link))
        self._running.append(state)
        try:
            while True:
                for command in await link.tokens.receive():
                    self._take(command)
        except TandemError:
            return
        finally:
            state.cancel()
            for job in self.jobs.values():
                if job.task is not None:
                    job.task.cancel()

    async def _state(self, link: WorkerLink) -> None:
        try:
            while True:
                link.state.send(KvSnapshot(self.epoch, 1, b"".join(self.names), True))
                if self.load is not None:
                    link.state.send(self.load)
                await link.state.receive()
                self.snapshots_asked += 1
        except TandemError:
            return

    def _take(self, command: WorkerCommand) -> None:
        if self.deaf and not isinstance(command, Ping):
            return
        if not isinstance(command, Ping):
            self.commands.append(command)
        match command:
            case Ping() if self.pongs:
                self.send(Pong(self.epoch, command.count))
                if self.gets_on:
                    self.send(Progressed(tuple(self.jobs)))
            case Submit():
                self._submitted(command)
            case Cancel() if (job := self.jobs.get(command.handle)) is not None:
                if command.sequence is not None:
                    job.cancelled.add(command.sequence)
                elif job.task is not None:
                    job.task.cancel()
                    asyncio.get_running_loop().call_later(self.end_s, self._end, job)
            case ProvideFirst() if (job := self.jobs.get(command.handle)) is not None:
                assert command.token == true_token(
                    job.submit.branches[0].seed, command.sequence, self._next(job, command)
                )
                job.first[command.sequence].set()
            case PublishSplit():
                self.board.publish(command, _Teller(self), (_Teller(self),), self.world.clock.now())
            case SampleFirst() if (job := self.jobs.get(command.handle)) is not None:
                job.sampling = True
                for event in job.first.values():
                    event.set()
            case _:
                pass

    def _next(self, job: Job, command: ProvideFirst) -> int:
        branch = next(each for each in job.submit.branches if each.sequence == command.sequence)
        return len(branch.forced) + 1

    def _submitted(self, submit: Submit) -> None:
        if submit.canary:
            self.canaries.append(submit)
            self._transferred(submit)
            return
        self.submits.append(submit)
        job = Job(submit, {branch.sequence: asyncio.Event() for branch in submit.branches})
        for branch in submit.branches:
            truth = true_tokens(branch.seed, branch.sequence, len(branch.forced))
            assert branch.forced == truth, "forced tokens are not what was generated"
        if self.fail_with is not None:
            self.send(AttemptFailed(submit.handle, *self.fail_with))
            return
        self.jobs[submit.handle] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job))
        self._running.append(job.task)

    async def _run(self, job: Job) -> None:
        submit = job.submit
        if submit.mode == "prefill":
            await asyncio.sleep(self.prefill_s)
            for branch in submit.branches:
                self._emit(job, branch, len(branch.forced) + 1)
            assert submit.export is not None
            self.world.first_known(submit.export.lease_id)
            self._end(job)
            return
        if submit.mode == "decode":
            assert submit.remote is not None
            check(
                KEYRING,
                submit.remote.ticket,
                holder_epoch=submit.remote.epoch,
                lease_id=submit.remote.lease_id,
                receiver_epoch=self.epoch,
                wall=self.world.clock.wall(),
            )
            self._transferred(submit)
        await asyncio.gather(*(self._generate(job, branch) for branch in submit.branches))
        self._end(job)

    def _transferred(self, submit: Submit) -> None:
        """What a decode worker says when its fetch has ended."""
        remote = submit.remote
        answer = self.transfer if submit.canary else self.transfer_of_requests or self.transfer
        ended = answer(remote.worker_id) if remote is not None else None
        if remote is not None and ended is not None:
            path, code = ended
            told = Transferred(submit.handle, remote.worker_id, remote.epoch, path, 0.001, 64, code, "as told")
            self.send(told)

    async def _generate(self, job: Job, branch: ChildRequest) -> None:
        position = len(branch.forced) + 1
        if job.submit.mode == "local":
            await asyncio.sleep(self.prefill_s)
        else:
            position = await self._await_first(job, branch, position)
        last = self.world.last_position(branch.sequence, job.submit.stopping)
        while branch.sequence not in job.cancelled and position <= last:
            await asyncio.sleep(self.step_s)
            if branch.sequence not in job.cancelled:
                self._emit(job, branch, position)
            position += 1

    async def _await_first(self, job: Job, branch: ChildRequest, position: int) -> int:
        assert job.submit.remote is not None
        relayed = self.relay and self.world.when_first(job.submit.remote.lease_id)
        if relayed:
            waits = [asyncio.ensure_future(relayed.wait()), asyncio.ensure_future(job.first[branch.sequence].wait())]
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if waits[0] in done:
                self._emit(job, branch, position)
                return position + 1
        await job.first[branch.sequence].wait()
        if job.sampling:
            await asyncio.sleep(self.prefill_s)
            return position
        return position + 1

    def _emit(self, job: Job, branch: ChildRequest, position: int) -> None:
        if self.mute:
            return
        last = position == self.world.last_position(branch.sequence, job.submit.stopping)
        offset, text = text_of_one(branch.seed, branch.sequence, position, last)
        token = true_token(branch.seed, branch.sequence, position) + (self.lie_at == position)
        self.send(
            StepOutputs(
                (
                    SequenceOutput(
                        handle=job.submit.handle,
                        sequence=branch.sequence,
                        position=position,
                        tokens=(token,),
                        text=text,
                        offset=offset,
                        finish="length" if last else None,
                    ),
                )
            )
        )

    def _end(self, job: Job) -> None:
        if self.jobs.pop(job.submit.handle, None) is not None and self.report:
            handle = job.submit.handle
            spans = (Span("0" * 32, "1" * 16, "2" * 16, job.submit.mode, self.role, 0.0, 0.0, {}),)
            kept = len(job.submit.prompt) // 64 if job.submit.pin is not None and self.keeps else 0
            self.send(AttemptReport(handle, 10, self.reused, 0, 0, spans, self.by_tier, kept))

    def send(self, message: RouterMessage) -> None:
        if self.link is not None:
            self.link.tokens.send(message)


class Client:
    """A sink that checks as it listens."""

    def __init__(self, world: "World", generation: Generation) -> None:
        self.world = world
        self.generation = generation
        self.tokens: dict[int, list[int]] = {sequence: [] for sequence in range(generation.n)}
        self.text: dict[int, str] = dict.fromkeys(self.tokens, "")
        self.finish: dict[int, str] = {}
        self.usage: Usage | None = None
        self.error: TandemError | None = None
        self.ended = asyncio.Event()
        self.on_output: Callable[[], None] | None = None

    def output(self, output: SequenceOutput) -> None:
        assert not self.ended.is_set(), "output after the end"
        assert output.sequence not in self.finish, "output after the finish"
        assert output.position == len(self.tokens[output.sequence]) + 1, "positions are not consecutive"
        self.tokens[output.sequence].extend(output.tokens)
        self.text[output.sequence] += output.text
        if output.finish is not None:
            self.finish[output.sequence] = output.finish
        if self.on_output is not None:
            self.on_output()

    def done(self, usage: Usage) -> None:
        assert not self.ended.is_set(), "two ends"
        assert len(self.finish) == self.generation.n, "done before every sequence had finished"
        self.usage = usage
        self.ended.set()

    def failed(self, error: TandemError) -> None:
        assert not self.ended.is_set(), "two ends"
        self.error = error
        self.ended.set()

    def check_prefix(self) -> None:
        """Whatever came is the beginning of the truth."""
        for sequence, tokens in self.tokens.items():
            assert tuple(tokens) == true_tokens(self.generation.seed, sequence, len(tokens))

    def check_whole(self) -> None:
        """Exactly the truth came, once, and the text of it."""
        assert self.error is None, self.error
        assert self.usage is not None
        counts = {each: self.world.last_position(each, self.generation.stopping) for each in self.tokens}
        for sequence, tokens in self.tokens.items():
            truth = true_tokens(self.generation.seed, sequence, counts[sequence])
            assert tuple(tokens) == truth
            assert self.text[sequence] == text_of((*truth, 1))[: -len(" 1")]
        assert self.usage.completion_tokens == sum(counts.values())


class Spans:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Span]] = {}
        self.tenants: dict[str, set[str]] = {}

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        self.kept.setdefault(request_id, []).extend(spans)
        self.tenants.setdefault(request_id, set()).add(tenant)

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        assert tenant is None, "it does not keep tenants apart"
        return tuple(self.kept.get(request_id, ()))


class World:
    """One router and its scripted workers."""

    def __init__(
        self,
        loop: VirtualLoop,
        settings: RouterSettings | None = None,
        seed: int = 0,
        *,
        canaries: bool = False,
        meter: Meter | None = None,
        shared: SharedIndex | None = None,
    ) -> None:
        """Without `canaries` every pair of workers is trusted; without `shared` only links tell of blocks."""
        self.loop = loop
        self.clock = LoopClock(loop)
        self.settings = settings or RouterSettings()
        self.links = MemoryLinks()
        self.index = MemoryIndex()
        self.recorder = Spans()
        self.workers: dict[str, ScriptedWorker] = {}
        deadlines = self.settings.deadlines
        meter, entropy = meter or NullMeter(), SeededEntropy(seed, "pairs")
        pairs = self.settings.fleet.pairs
        prober = PairProber(pairs, KEYRING, self.clock, entropy, deadlines, meter) if canaries else None
        dialer, fleet = self.links.dialer("router"), self.settings.fleet
        self.fleet = Fleet(dialer, self.clock, deadlines, self.index, meter, fleet, prober, shared)
        self.tools = DispatchDeps(
            loop=loop,
            clock=self.clock,
            entropy=SeededEntropy(seed, "router"),
            keyring=KEYRING,
            settings=self.settings,
            costs=CostModel(self.settings.priors),
            recorder=self.recorder,
            meter=meter,
        )
        self.dispatcher = Dispatcher(self.fleet, self.tools)
        self.ends: dict[int, int] = {}
        """The last position of a sequence, where it is not `max_tokens`."""
        self._firsts: dict[str, asyncio.Event] = {}
        self._count = 0
        self.task: asyncio.Task[None] | None = None

    def worker(self, worker_id: str, role: str) -> ScriptedWorker:
        self.workers[worker_id] = ScriptedWorker(self, worker_id, role)
        return self.workers[worker_id]

    async def start(self) -> None:
        """Start workers and router, and let them meet."""
        for worker in self.workers.values():
            await worker.start()
        self.fleet.set_members(self.workers)
        self.task = self.loop.create_task(self.fleet.run(self.dispatcher))
        self.loop.after_step = self.dispatcher.check
        await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """No request may be left; after the wait for late reports no handle either."""
        await asyncio.sleep(self.settings.report_wait_s + 0.1)
        self.dispatcher.check()
        assert all(not peer.targets() for peer in self.fleet.peers()), "handles are left"
        assert all(peer.view.sequences_in_flight == 0 for peer in self.fleet.peers())
        assert all(peer.view.prompt_tokens_in_flight == 0 for peer in self.fleet.peers())
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def last_position(self, sequence: int, stopping: Stopping) -> int:
        return min(stopping.max_tokens, self.ends.get(sequence, stopping.max_tokens))

    def first_known(self, lease_id: str) -> None:
        self.when_first(lease_id).set()

    def when_first(self, lease_id: str) -> asyncio.Event:
        return self._firsts.setdefault(lease_id, asyncio.Event())

    def generation(
        self, *, tokens: int = 20, max_tokens: int = 8, n: int = 1, timeout_s: float = 600.0
    ) -> Generation:
        self._count += 1
        return Generation(
            request_id=f"req-{self._count}",
            model="demo",
            tenant="t",
            tenant_salt="",
            prompt=pack_tokens(tuple(range(self._count, self._count + tokens))),
            n=n,
            seed=1000 + self._count,
            sampling=Sampling(),
            stopping=Stopping(max_tokens=max_tokens),
            timeout_s=timeout_s,
            received=self.clock.now(),
            received_wall=self.clock.wall(),
            trace=TraceContext("a" * 32, "b" * 16),
        )

    def ask(self, *, tokens: int = 20, max_tokens: int = 8, n: int = 1, timeout_s: float = 600.0) -> Client:
        client = Client(self, self.generation(tokens=tokens, max_tokens=max_tokens, n=n, timeout_s=timeout_s))
        self.dispatcher.start(client.generation, client)
        return client
