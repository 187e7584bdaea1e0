"""The simulation: requests arrive, are placed, prefilled, handed over, decoded; events in order of virtual time.

Deterministic: events of the same instant keep the order in which they were scheduled.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from benchmarks.fleet.adapters import Adapters, AdapterSettings
from benchmarks.fleet.handoff import Network, Transfers
from benchmarks.fleet.metrics import RunMetrics, StageMetrics, run_metrics, stage_metrics
from benchmarks.fleet.router import Decider, Knowledge
from benchmarks.fleet.worker import Worker
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import Listener, WorkerSettings
from benchmarks.fleet.workload import Listed, Request, Source, Stage, Workload


@dataclass(frozen=True)
class FleetSettings:
    """`roles` by worker: `unified`, `prefill`, `decode` or `auto`. Blocks travel at `transfer_tokens_per_s` between
    any two workers, each having one way in and one way out; `transfer_s` is what a hand-off takes besides. `paces`
    are (from when in seconds of the run, worker, pace): from then on steps of that worker take `pace` times as long.
    `seed` is what the noise of steps is drawn from. A placed request reaches its workers `front_s` later: what
    gateway, tokenizer and connections take of its TTFT. `unlike` are workers with settings of their own. `joins` and
    `losses` are (when in seconds of the run, worker): before its join a worker takes no requests; when it is lost,
    all that it had is placed again, with what was generated as part of the prompt. `adapters` is how workers hold
    LoRA adapters, where requests ask for some."""

    roles: tuple[str, ...]
    worker: WorkerSettings
    transfer_tokens_per_s: float = 150_000.0
    transfer_s: float = 0.002
    event_s: float = 0.002
    paces: tuple[tuple[float, int, float], ...] = ()
    seed: int = 0
    front_s: float = 0.0
    unlike: tuple[tuple[int, WorkerSettings], ...] = ()
    joins: tuple[tuple[float, int], ...] = ()
    losses: tuple[tuple[float, int], ...] = ()
    adapters: AdapterSettings | None = None


DeciderOf = Callable[[Knowledge], Decider]
WorkerOf = Callable[[int, str, WorkerSettings, Listener, int], Worker]


class Fleet:
    """One run. `run` may be called once."""

    def __init__(self, settings: FleetSettings, decider_of: DeciderOf, worker_of: WorkerOf = Worker) -> None:
        """`worker_of` makes a worker of its number, role, settings, listener, and the seed of its noise."""
        self._settings = settings
        unlike = dict(settings.unlike)
        self.workers = tuple(
            worker_of(number, role, unlike.get(number, settings.worker), self, settings.seed)
            for number, role in enumerate(settings.roles)
        )
        self.adapters = None if settings.adapters is None else Adapters(settings.adapters, len(self.workers))
        self.knowledge = Knowledge(self.workers, settings.event_s)
        self.decider = decider_of(self.knowledge)
        self._heap: list[tuple[float, int, int, Callable[[float], None] | None]] = []
        self._scheduled: list[float | None] = [None] * len(self.workers)
        self._order = 0
        self._in_flight = 0
        self._source: Source = Listed(())
        self._began_s = 0.0
        """Of the stage that is played: where its requests come from, and when it began."""
        network = Network(settings.transfer_tokens_per_s, settings.transfer_s, settings.worker.max_batched_tokens)
        self.transfers = Transfers(network, self.workers, self.wake_at, self.decider.transferred)
        self._jobs: dict[int, list[tuple[int, WorkerRequest]]] = {}
        """By request number: where it is, its jobs."""
        for from_s, number, pace in settings.paces:
            run_at = partial(self.workers[number].run_at, pace)
            if from_s > 0:
                self.wake_at(number, from_s, run_at)
            else:
                run_at(0.0)
        for at_s, number in settings.joins:
            self.knowledge.away.add(number)
            self._at(at_s, partial(self._join, number))
        for at_s, number in settings.losses:
            self._at(at_s, partial(self._lose, number))

    def run(self, workload: Workload, check_every: int = 0) -> RunMetrics:
        """Play all stages. With `check_every` the books are checked after so many events."""
        now, told, reported = 0.0, list[StageMetrics](), list[Request]()
        for stage in workload.stages:
            end_s = self._play(stage, now, workload.in_flight_max, check_every)
            if not stage.warm_up:
                told.append(stage_metrics(stage, now))
                reported += [request for request in stage.requests if request.ended]
            now = end_s + workload.pause_s
        work_s = {
            role: [worker.work_s for worker in self.workers if worker.role == role]
            for role in dict.fromkeys(self._settings.roles)
        }
        return run_metrics(told, reported, work_s, sum(worker.preemptions for worker in self.workers), now)

    def check(self) -> None:
        """Assert every worker's invariants."""
        for worker in self.workers:
            worker.check([job for job in self.transfers.kept if job.request.prefill == worker.index])

    # ---- the loop ----

    def _play(self, stage: Stage, begin_s: float, in_flight_max: int, check_every: int) -> float:
        """Until the source has no more requests and all that came have ended or were refused; gives when."""
        heap, events, now = self._heap, 0, begin_s
        source = stage.source or Listed(stage.requests)
        self._source, self._began_s = source, begin_s
        while True:
            next_s = source.next_s
            if next_s is None and not self._in_flight:
                return now
            due = inf if next_s is None or self._in_flight >= in_flight_max else begin_s + next_s
            at = max(now, due)
            if due < inf and (not heap or at <= heap[0][0]):
                now = at
                request = source.take()
                request.held_back_s = now - due
                self._arrive(request, now)
            else:
                now = self._next_event()
            events += 1
            if check_every and events % check_every == 0:
                self.check()

    def _next_event(self) -> float:
        at, _, number, action = heapq.heappop(self._heap)
        if action is not None:
            action(at)
        elif self._scheduled[number] == at:
            worker = self.workers[number]
            self._scheduled[number] = None
            if worker.due == at:
                worker.advance()
            self._schedule(worker)
        return at

    def _schedule(self, worker: Worker) -> None:
        due = worker.due
        if due is not None and self._scheduled[worker.index] != due:
            self._scheduled[worker.index] = due
            self._order += 1
            heapq.heappush(self._heap, (due, self._order, worker.index, None))

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, -1, action))

    # ---- the life of a request ----

    def _arrive(self, request: Request, now: float) -> None:
        """It is placed or refused."""
        request.arrival_s = now
        self._in_flight += 1
        self._place(request, now)
        allowed_s = min(request.deadline_s, request.patience_s)
        if allowed_s < inf and request.number in self._jobs:
            self._at(now + allowed_s, partial(self._cancel, request))

    def _place(self, request: Request, now: float) -> None:
        self.knowledge.renew(now)
        placed = self.decider.place(request, now)
        if placed is None:
            self._in_flight -= 1
            self._jobs.pop(request.number, None)
            self._source.ended(request, now - self._began_s)
            return
        assert self.knowledge.away.isdisjoint(placed), f"{placed} was chosen, of which one is away"
        request.decode, request.prefill = placed
        decode = WorkerRequest(request, prefill_only=False, handed_over=request.prefill >= 0)
        self._jobs[request.number] = []
        jobs = [(request.decode, decode)]
        if request.prefill >= 0:
            prefill = WorkerRequest(request, prefill_only=True, handed_over=False)
            self.transfers.begin(prefill, decode)
            jobs.insert(0, (request.prefill, prefill))
        if request.emitted:
            for _, job in jobs:
                job.told_s = now
        if self._settings.front_s > 0:
            self._at(now + self._settings.front_s, partial(self._submit, request, jobs))
        else:
            self._submit(request, jobs, now)

    def _submit(self, request: Request, jobs: list[tuple[int, WorkerRequest]], now: float) -> None:
        """Unless it was cancelled on its way. Where a worker has to load its adapter first, it waits for that."""
        if not self.knowledge.away.isdisjoint(number for number, _ in jobs):
            self._place_again(request, now)
            return
        for number, job in jobs:
            ready_s = now if self.adapters is None else self.adapters.ready_s(number, request.adapter, now)
            begin = partial(self._begin, request, request.retried, number, job)
            if ready_s > now:
                self._at(ready_s, begin)
            else:
                begin(now)

    def _begin(self, request: Request, attempt: int, number: int, job: WorkerRequest, now: float) -> None:
        """Unless it has been cancelled or placed again since."""
        if request.cancelled_s < 0 and request.retried == attempt:
            self._jobs[request.number].append((number, job))
            self.workers[number].submit(job, now)
            self._schedule(self.workers[number])

    def _join(self, number: int, now: float) -> None:
        self.knowledge.came(number)

    def _lose(self, number: int, now: float) -> None:
        """Who was there is placed again when the steps that are under way end."""
        self.knowledge.lost(number)
        here = [jobs for jobs in self._jobs.values() if any(at == number and not job.over for at, job in jobs)]
        at_s = now
        for jobs in here:
            self.transfers.end(jobs[0][1].request)
            for at, job in jobs:
                self.workers[at].cancel(job, now)
                self._schedule(self.workers[at])
                at_s = max(at_s, self.workers[at].due or now)
        for jobs in here:
            self._at(at_s, partial(self._place_again, jobs[0][1].request))

    def _place_again(self, request: Request, now: float) -> None:
        """A worker of it is lost: it goes on elsewhere, unless its client has gone."""
        if request.cancelled_s < 0:
            self.decider.finished(request, now)
            request.retried += 1
            # The last token was not delivered, or there would be nothing left to do.
            request.emitted = min(request.emitted, request.output_tokens - 1)
            self._place(request, now)

    def _cancel(self, request: Request, now: float) -> None:
        """Unless it has ended, a request ends without the rest of its answer, wherever it is."""
        if request.number in self._jobs:
            request.cancelled_s = now
            self._over(request, now)

    def _over(self, request: Request, now: float) -> None:
        """The request has ended: nothing of it stays on any worker."""
        self.transfers.end(request)
        for number, job in self._jobs.pop(request.number):
            self.workers[number].cancel(job, now)
            self._schedule(self.workers[number])
        self._in_flight -= 1
        self.decider.finished(request, now)
        self._source.ended(request, now - self._began_s)

    # ---- benchmarks.fleet.worker.Listener ----

    def first_token(self, job: WorkerRequest, now: float) -> None:
        if job.request.first_s < 0:
            job.request.first_s = now
        self.decider.first_token(job.request, now)

    def finished(self, job: WorkerRequest, now: float) -> None:
        request = job.request
        if job.left == 0:
            request.end_s = now
            self._jobs[request.number] = [each for each in self._jobs[request.number] if each[1] is not job]
            self._over(request, now)
        elif job.prefill_only:
            self.transfers.computed(job, now)
            self._schedule(self.workers[request.decode])

    def reserved(self, job: WorkerRequest, now: float) -> None:
        self.transfers.reserved(job, now)

    def withdrawn(self, job: WorkerRequest, now: float) -> None:
        self.transfers.withdrawn(job)

    def blocks(self, worker: int, tier: str, stored: tuple[int, ...], removed: tuple[int, ...], now: float) -> None:
        self.knowledge.heard(worker, tier, stored, removed, now)

    def wake_at(self, worker: int, at: float, action: Callable[[float], None]) -> None:
        def then(now: float) -> None:
            action(now)
            self._schedule(self.workers[worker])

        self._at(at, then)

    def offer(self, worker: int, request: Request, blocks: int, now: float) -> tuple[int, float]:
        return self.transfers.offer(worker, request, blocks, now)

    def fetch(self, worker: int, request: Request, blocks: int, now: float) -> None:
        self.transfers.fetch(worker, request, blocks, now)


def simulate(settings: FleetSettings, decider_of: DeciderOf, workload: Workload) -> RunMetrics:
    """Play a workload through a fleet once."""
    return Fleet(settings, decider_of).run(workload)


def roles(unified: int = 0, prefill: int = 0, decode: int = 0, auto: int = 0) -> tuple[str, ...]:
    """So many workers of each kind. Those of `auto` compute prompts for others or answer, as the router says: it is
    up to the decider whom it sends what."""
    return ("unified",) * unified + ("prefill",) * prefill + ("decode",) * decode + ("auto",) * auto
