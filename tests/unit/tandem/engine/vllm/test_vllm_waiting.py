"""What works wait for, against a model of vLLM's scheduler: a token budget, few places, few blocks, priorities,
requests whose KV comes from elsewhere, preemption, and messages that come late but in order."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandem.core.kv import Layout, pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import NO_CHANGE, EngineInfo, EngineRequest
from tandem.engine.scheduler.request_deadlines import Wait
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.ledger import Ledger
from tandem.engine.vllm.requests import VllmRequest
from tandem.engine.vllm.settings import RunnerKind
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.staged_request import Sources
from tandem.engine.vllm.step_reports import StepReporter, VllmTypes

QUEUE_S = 5.0
KV_S = 3.0
BUDGET = 8
PLACES = 2
BLOCKS = 10
BLOCK = 4
AWAITS_KV = "awaits kv"
EOS = 1
INFO = EngineInfo(
    model="m", model_hash="h", vocab_size=100, context_tokens=1000, eos_token_ids=(EOS,), blocks=1000,
    layout=Layout("e", "p", "float32", 4, 1, BLOCK, 1, 1, 1, 1),
)  # fmt: skip


@dataclass
class Asked:
    """A request inside the model of vLLM."""

    request_id: str
    prompt: int
    priority: int
    order: int
    kv: bool
    status: str = "waiting"
    num_computed_tokens: int = 0
    drawn: int = 0

    @property
    def num_tokens(self) -> int:
        return self.prompt + self.drawn

    @property
    def blocks(self) -> int:
        return -(-(self.num_tokens + 1) // BLOCK)


class Model:
    """vLLM's scheduler as far as places go. `schedule` begins a step, `finish` ends it and gives what it drew."""

    def __init__(self) -> None:
        self.requests: dict[str, Asked] = {}
        self.connector: object | None = object()
        self.finished_recving_kv_req_ids: set[str] = set()
        self.step: Any = None

    @property
    def kv_holding_waiting(self) -> list[Asked]:
        """Requests that wait with blocks of their own."""
        return [each for each in self.requests.values() if each.status == AWAITS_KV]

    def held(self) -> int:
        return sum(each.blocks for each in self.requests.values() if each.status != "waiting")

    def running(self) -> list[Asked]:
        return [each for each in self.requests.values() if each.status == "running"]

    def schedule(self) -> Any:
        budget, counts, preempted = BUDGET, dict[str, int](), list[str]()
        new, cached = list[tuple[str, int]](), list[tuple[str, int]]()
        for each in sorted(self.running(), key=_urgent):
            while each.status == "running" and self.held() > BLOCKS and len(self.running()) > 1:
                victim = max(self.running(), key=_urgent)
                if victim.request_id in counts:
                    budget += counts.pop(victim.request_id)
                    cached = [entry for entry in cached if entry[0] != victim.request_id]
                victim.status, victim.num_computed_tokens = "waiting", 0
                preempted.append(victim.request_id)
            count = min(each.num_tokens - each.num_computed_tokens, budget)
            if each.status == "running" and count:
                counts[each.request_id] = count
                cached.append((each.request_id, each.num_computed_tokens))
                budget -= count
        for each in sorted(self.looked_at(), key=_urgent):
            if preempted or not budget or len(self.running()) >= PLACES:
                break
            if each.status == AWAITS_KV:
                self.finished_recving_kv_req_ids.remove(each.request_id)
                each.num_computed_tokens = each.prompt - 1
            elif self.held() + each.blocks > BLOCKS:
                break
            elif each.kv:
                each.kv, each.status = False, AWAITS_KV
                continue
            each.status = "running"
            count = min(each.num_tokens - each.num_computed_tokens, budget)
            (cached if each.drawn else new).append((each.request_id, each.num_computed_tokens))
            counts[each.request_id] = count
            budget -= count
        self.step = SimpleNamespace(
            preempted_req_ids=set(preempted),
            scheduled_new_reqs=[SimpleNamespace(req_id=one, num_computed_tokens=start) for one, start in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[one for one, _ in cached], num_computed_tokens=[start for _, start in cached]
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
        )
        return self.step

    def looked_at(self) -> list[Asked]:
        """Requests that may get a place."""
        came = self.finished_recving_kv_req_ids
        return [e for e in self.requests.values() if e.status == "waiting" or e.request_id in came]

    def finish(self) -> list[str]:
        """Requests that drew a token in the step that is over."""
        step, self.step = self.step, None
        drew = []
        for request_id, count in step.num_scheduled_tokens.items():
            each = self.requests.get(request_id)
            if each is not None and each.status == "running":
                each.num_computed_tokens += count
                if each.num_computed_tokens == each.num_tokens:
                    each.drawn += 1
                    drew.append(request_id)
        return drew


def _urgent(each: Asked) -> tuple[int, int]:
    return each.priority, each.order


class FakeStage:
    """What the ledger asks of a stage. Fetches run as the test says."""

    def __init__(self) -> None:
        self.fetching: dict[int, None] = {}

    def open(self, work: EngineRequest, computed_here: bool) -> None:
        if work.mode == "decode":
            self.fetching[work.work_id] = None

    def moved(self, lease_ids: list[str], now: float) -> None:
        """Nothing of a lease is here."""

    def fetches(self, work_id: int) -> bool:
        return work_id in self.fetching

    def sources(self, work_id: int) -> Sources:
        return Sources()

    def sample_first(self, work_id: int) -> None:
        """What is being fetched may still come."""

    def close(self, work_id: int) -> None:
        self.fetching.pop(work_id, None)


class Maker:
    """Requests are sent as they are."""

    def prepare(self, request: VllmRequest) -> VllmRequest:
        return request

    def attach(self, prepared: Any, transfer: Mapping[str, object]) -> None:
        """Parameters do not matter here."""


def record(request_id: str, new_token_ids: list[int], kv_transfer_params: Any = None) -> Any:
    return SimpleNamespace(
        request_id=request_id, new_token_ids=new_token_ids, kv_transfer_params=kv_transfer_params, events=None,
        prefill_stats=None, new_logprobs=None, finish_reason=None,
    )  # fmt: skip


class Waiting(RuleBasedStateMachine):
    """Works go through ledger, model and teller. `truth` is what the model says, `heard` what the ledger may know."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.stage = FakeStage()
        scheduler = SchedulerSettings(queue_s=QUEUE_S, kv_wait_s=KV_S)
        self.ledger = Ledger(INFO, scheduler, Maker(), cast(Stage, self.stage), RunnerKind())
        self.model = Model()
        self.wire: deque[Any] = deque()
        self.rows = self.prompt_tokens = self.said = 0
        self.teller = StepReporter(
            self.model, lambda sent: self.wire.append(sent[1]), self, VllmTypes(record, list_of, AWAITS_KV)
        )
        self.works: dict[str, int] = {}
        self.with_kv: set[str] = set()
        """Requests that the last step left out although their KV had come."""
        self.truth: dict[int, tuple[Wait, float]] = {}
        """What each work waits for as told by delivered messages, and since when."""
        self.elsewhere: set[int] = set()
        """Works whose prompt another worker computes, as far as is known."""
        self.moved = self.looked = float("-inf")
        self.count = 0

    def scheduled(self, rows: int, prompt_tokens: int) -> None:
        self.rows, self.prompt_tokens = rows, prompt_tokens

    def says(self) -> None:
        self.said += 1

    @rule(prompt=st.integers(1, 30), priority=st.integers(0, 2), kv=st.booleans())
    def submit(self, prompt: int, priority: int, kv: bool) -> None:
        self.count += 1
        work = EngineRequest(
            work_id=self.count,
            mode="decode" if kv else "local",
            prompt=pack_tokens(range(2, 2 + prompt)),
            branches=(ChildRequest(0, 1),),
            sampling=Sampling(),
            stopping=Stopping(6, ignore_eos=True),
            root=bytes(16),
            deadline=self.now + 60.0,
            priority=priority,
        )
        self.ledger.submit(work, self.now)
        self.ledger.admitted(self.count, {} if kv else None)
        self.truth[self.count] = Wait.PLACE, self.now
        if kv:
            self.elsewhere.add(self.count)
        for order in self.ledger.to_send:
            order.branch.sent = self.now
            request = order.request
            self.works[request.request_id] = self.count
            # vLLM's own order: a lower number is more urgent.
            self.model.requests[request.request_id] = Asked(
                request.request_id, prompt, request.priority, self.count, kv
            )
        self.ledger.to_send.clear()

    @rule()
    def step_begins(self) -> None:
        if self.model.step is None:
            scheduled = self.model.schedule()
            assert self.rows + self.prompt_tokens == scheduled.total_num_scheduled_tokens
            self.with_kv = set(self.model.finished_recving_kv_req_ids)

    @rule()
    def step_ends(self) -> None:
        if self.model.step is not None and (drew := self.model.finish()):
            self.wire.append(list_of([record(each, [7]) for each in drew]))

    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        while self.wire and count:
            count -= 1
            outputs = self.wire.popleft().outputs
            for output in outputs:
                self._expect(output)
            self.ledger.hear(outputs, self.now)
        self._ended()

    def _expect(self, output: Any) -> None:
        work_id = self.works[output.request_id]
        if work_id not in self.truth:
            return
        kind = output.kv_transfer_params["tandem_step"][0] if output.kv_transfer_params else "computes"
        wait = {"computes": Wait.NOTHING, "awaits_kv": Wait.KV, "has_kv": Wait.PLACE, "preempted": Wait.PLACE}[kind]
        if kind == "computes" and output.kv_transfer_params:
            self.moved = self.now
        if self.truth[work_id][0] is not wait:
            self.truth[work_id] = wait, self.now

    @rule()
    def kv_comes(self) -> None:
        for each in self.model.requests.values():
            if each.status == AWAITS_KV and each.request_id not in self.model.finished_recving_kv_req_ids:
                self.stage.fetching.pop(self.works[each.request_id], None)
                self.model.finished_recving_kv_req_ids.add(each.request_id)
                return

    @rule(which=st.integers(0, 9))
    def prefill_ends(self, which: int) -> None:
        """What a hand-off waits for here counts from then on."""
        if waiting := sorted(self.elsewhere & set(self.truth)):
            work_id = waiting[which % len(waiting)]
            self.elsewhere.discard(work_id)
            self.ledger.sample_first(work_id, self.now)
            self.truth[work_id] = self.truth[work_id][0], self.now

    @rule(seconds=st.sampled_from((0.1, 1.0, 2.0, 6.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        alive = {run.work_id: run for run in self.ledger.runs}
        self._news()
        due = {work_id for work_id, run in alive.items() if self._may_end(work_id, run)}
        self.ledger.look(self.now, self.said)
        ended = set(alive) - {run.work_id for run in self.ledger.runs}
        for work_id in ended:
            self._was_right(alive[work_id])
        assert ended <= due, "a work was ended that got on, or whose time was not over"
        unkept = {work_id for work_id in due - ended if self.truth[work_id][0] is Wait.PLACE}
        assert not unkept, "works stood still for longer than they may"
        self._ended()

    def _news(self) -> None:
        """What has been said and not delivered may be that any of them got on."""
        if any(output.kv_transfer_params for message in self.wire for output in message.outputs):
            self.moved = self.now

    def _was_right(self, run: Any) -> None:
        """Whoever was ended for its wait has no place in vLLM, whatever has been heard of it."""
        if self.now < run.work.deadline and run.wait is Wait.PLACE:
            asked = self.model.requests[run.root.request_id]
            assert asked in self.model.looked_at()

    def _may_end(self, work_id: int, run: Any) -> bool:
        wait, since = self.truth[work_id]
        if self.now >= run.work.deadline:
            return True
        if work_id in self.elsewhere:
            return False
        if wait is Wait.PLACE:
            return self.now >= max(since, self.moved) + QUEUE_S
        kv_over = self.now >= max(since, self.moved) + KV_S
        return wait is Wait.KV and work_id not in self.stage.fetching and kv_over

    @rule(stepping=st.booleans())
    def the_engine_looks(self, stepping: bool) -> None:
        """As it does several times a second: what gets on is told of, and nothing else is."""
        runs = {run.work_id: run for run in self.ledger.runs}
        self._news()
        self.ledger.tell_progress(self.now, stepping=stepping, said=self.said)
        report = self.ledger.outbox.take(NO_CHANGE)
        for work_id, _ in report.progressed if report is not None else ():
            if work_id not in runs:
                continue
            wait, _ = self.truth[work_id]
            if wait is Wait.KV:
                assert work_id in self.stage.fetching
                self.truth[work_id] = wait, self.now
            assert wait is not Wait.NOTHING or stepping
        computing = any(run.wait is Wait.NOTHING and run.prefilled is None for run in runs.values())
        if (stepping and computing) or self.moved > self.looked:
            self.moved = self.now
        self.looked = self.now

    def _ended(self) -> None:
        """vLLM is told of what has ended here."""
        for request_id in self.ledger.to_abort:
            self.model.requests.pop(request_id, None)
            self.model.finished_recving_kv_req_ids.discard(request_id)
            self.with_kv.discard(request_id)
        self.ledger.to_abort.clear()
        for work_id in set(self.truth) - {run.work_id for run in self.ledger.runs}:
            del self.truth[work_id]

    @invariant()
    def what_is_known_is_what_was_told(self) -> None:
        for run in self.ledger.runs if hasattr(self, "ledger") else ():
            assert (run.wait, run.waits_since) == self.truth[run.work_id]

    @invariant()
    def what_was_told_is_what_is_so(self) -> None:
        """Once everything has been delivered and no step is open."""
        if not hasattr(self, "model") or self.wire or self.model.step is not None:
            return
        for request_id, each in self.model.requests.items():
            run = next((run for run in self.ledger.runs if run.work_id == self.works[request_id]), None)
            if run is None:
                continue
            if each.status == "running":
                assert run.wait is Wait.NOTHING
            elif request_id in self.with_kv:
                assert run.wait is Wait.PLACE
            elif each.status == AWAITS_KV:
                assert run.wait is Wait.KV
            else:
                assert run.wait is Wait.PLACE


def list_of(outputs: list[Any]) -> Any:
    return SimpleNamespace(outputs=outputs)


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_who_has_its_kv_and_no_seat_waits_for_a_place() -> None:
    """vLLM does not look at a request while its batch is full, and lets it keep its status."""
    world = Waiting()
    world.begin()
    for kv in (True, False, False):
        world.submit(prompt=4, priority=0, kv=kv)
    world.step_begins()
    world.step_ends()
    world.deliver(4)
    run = world.ledger.runs[0]
    assert run.wait is Wait.KV
    world.time_passes(seconds=1.0)
    assert run.stats(world.now).kv_waits == ((0.0, 1.0),)
    world.kv_comes()
    world.step_begins()
    world.deliver(4)
    assert run.wait is Wait.PLACE
    assert run.admitted == 0.0
    world.time_passes(seconds=2.0)
    assert run.stats(world.now).kv_waits == ((0.0, 1.0),)


def test_nobody_is_ended_for_want_of_a_place_while_there_is_news() -> None:
    world = Waiting()
    world.begin()
    world.submit(prompt=30, priority=0, kv=False)
    world.step_begins()
    world.time_passes(seconds=6.0)
    assert len(world.ledger.runs) == 1
    world.deliver(1)
    world.submit(prompt=30, priority=0, kv=False)
    world.time_passes(seconds=6.0)
    (left,) = world.ledger.runs
    assert left.wait is Wait.NOTHING


def heard(ledger: Ledger, now: float, tokens: list[int], kind: str = "") -> None:
    notice = {"tandem_step": [kind, 0, 1 if kind == "computes" else 0]} if kind else None
    ledger.hear([record("1.0", tokens, notice)], now)


def test_a_token_of_the_step_before_a_preemption_gives_nobody_his_place_back() -> None:
    """vLLM schedules a step ahead, and delivers what the last one drew after it has said who lost his place."""
    stage = cast(Stage, FakeStage())
    ledger = Ledger(INFO, SchedulerSettings(queue_s=QUEUE_S), Maker(), stage, RunnerKind())
    work = EngineRequest(
        work_id=1,
        mode="local",
        prompt=pack_tokens((5, 6)),
        branches=(ChildRequest(0, 1),),
        sampling=Sampling(),
        stopping=Stopping(9, ignore_eos=True),
        root=bytes(16),
        deadline=60.0,
    )
    ledger.submit(work, 0.0)
    ledger.admitted(1, None)
    (run,) = ledger.runs
    heard(ledger, 1.0, [], "computes")
    heard(ledger, 2.0, [7])
    assert run.wait is Wait.NOTHING
    ledger.tell_progress(2.5, stepping=True, said=1)
    heard(ledger, 3.0, [], "preempted")
    heard(ledger, 3.1, [7])
    assert (run.wait, run.waits_since) == (Wait.PLACE, 3.0)
    ledger.outbox.take(NO_CHANGE)
    ledger.tell_progress(4.0, stepping=True, said=2)
    report = ledger.outbox.take(NO_CHANGE)
    assert report is None or not report.progressed
    # It goes on where its blocks were found again: nothing says so but what is drawn.
    heard(ledger, 5.0, [7])
    assert run.wait is Wait.NOTHING
    heard(ledger, 6.0, [], "preempted")
    heard(ledger, 6.1, [], "computes")
    heard(ledger, 6.2, [7])
    assert run.wait is Wait.NOTHING
    heard(ledger, 7.0, [], "preempted")
    heard(ledger, 7.1, [7])
    assert (run.wait, run.waits_since) == (Wait.PLACE, 7.0)
    # Its client has some of the answer: it keeps its turn until its request ends.
    ledger.look(7.0 + QUEUE_S, 5)
    report = ledger.outbox.take(NO_CHANGE)
    assert report is None or not report.failed
    ledger.look(work.deadline, 6)
    report = ledger.outbox.take(NO_CHANGE)
    assert report is not None
    assert [each.code for each in report.failed] == ["deadline_exceeded"]
