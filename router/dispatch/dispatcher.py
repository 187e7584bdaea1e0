"""Dispatch: `router.generation.Generator` over the fleet. Admits, places, and keeps what waits moving."""

import asyncio
from collections.abc import Collection, Iterable
from math import inf
from typing import Final

from router.dispatch.admission import Admission, Admitted, FirstToken, Queued, QueueWait, Refused, refusal
from router.dispatch.answer_log import AnswerLog
from router.dispatch.deps import DispatchDeps
from router.dispatch.drain import DrainMigrator
from router.dispatch.errors import never_fits
from router.dispatch.failover import Failover
from router.dispatch.invariants import check_worker_streams
from router.dispatch.kv_memory import KvMemory
from router.dispatch.kv_migration import can_migrate_kv, holds_now, with_migrated_kv
from router.dispatch.phase import Phase
from router.dispatch.placing import PlacementResult, Placing
from router.dispatch.prefill_rebalance import PrefillRebalancer
from router.dispatch.request_state import RequestState
from router.dispatch.resumables import Listening, Resumable, Resumables
from router.dispatch.resume import ResumeManager
from router.dispatch.retry_budget import RetryBudget
from router.dispatch.serving import Serving
from router.dispatch.serving_status import ServingStatus, serving_status
from router.dispatch.tallies import Tallies
from router.fleet.fleet import Fleet
from router.fleet.orphaned_holders import OrphanedHolder
from router.fleet.peer import Peer
from router.fleet.split_listing import FleetOutlook
from router.fleet.split_manager import SplitManager
from router.generation import Generation, Resumed, Running, ServedModel, Sink
from router.placement import Placement, Unplaced
from tandem.core.errors import TandemError
from tandem.core.messages import Load, SplitPublished

_NO_EVIDENCE: Final = 4.0
"""How many times faster than expected a line is taken to be while no pace of it has been seen. Where no objective is
at stake, a guess then refuses no request that might have had its turn."""
_AHEAD_S: Final = 1.0
"""Seconds by which a request is sent to a worker before the worker has memory for it: figures are late, and the
worker should have something to begin with."""


class Dispatcher:
    """Owns all requests between admission and their end. Give it to `Fleet.run` as the listener."""

    def __init__(self, fleet: Fleet, tools: DispatchDeps) -> None:
        self._fleet = fleet
        self._tools = tools
        self._admission = Admission(tools.settings.admission)
        self._retries = RetryBudget(tools.settings.retry)
        self._drain_migrator = DrainMigrator(tools, self)
        self._placing = Placing(fleet, tools)
        self._prefill_rebalancer = PrefillRebalancer(tools, fleet, self._placing)
        self._memory = KvMemory(fleet, tools, self._prefill_rebalancer)
        self._first: dict[str, FirstToken] = {}
        """The expected time to first token of recently placed requests, by line."""
        self._resumables = Resumables(tools)
        self._returns = ResumeManager(fleet, tools, self._resumables, self)
        self._reserved = 0
        self._requests: dict[int, RequestState] = {}
        self._stranded: dict[int, RequestState] = {}
        self._next_key = 1
        self._pump_due = False
        self._again: asyncio.TimerHandle | None = None
        self._serving = Serving(fleet, tools.settings.placement)
        self._tallies = Tallies()
        self._splits = SplitManager(
            fleet, tools.costs, tools.settings, tools.loop, tools.clock, tools.entropy, tools.meter, tools.planner
        )
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- router.generation.Generator ----

    def start(self, generation: Generation, sink: Sink) -> Running:
        """Admit and dispatch.

        Raises `queue_full`, `draining`, `no_workers`, `model_not_found`, `context_length_exceeded`.
        """
        self._serving.check_model(generation.model)
        self._tallies.arrived(generation.model)
        key = self._next_key
        self._next_key += 1
        room = self._fleet.reconnect_holdoff(generation.model) is None and self._serving.has_room(generation.model)
        decision = self._admission.arrive(key, generation.line, generation.priority, room)
        if isinstance(decision, Queued) and (late := self._late_in_line(generation, decision.ahead)) is not None:
            self._admission.ended(key, self._tools.clock.now())
            decision = late
        if isinstance(decision, Refused):
            if generation.pin is None:
                self._splits.ended(generation, decision.code, placed=False)
            raise _error(decision)
        log = AnswerLog(generation, sink) if generation.resume is not None else None
        request = RequestState(self, self._tools, generation, log or sink, key)
        self._requests[key] = request
        self._idle.clear()
        self._tools.meter.set("tandem_requests_running", self._admission.held)
        if isinstance(decision, Admitted):
            self._begin_or_wait(request)
        else:
            request.wait_in_line()
        return request if log is None else Listening(self._resumables.add(request, log), sink)

    async def resume(self, request_id: str, tenant: str) -> Resumed:
        """`router.generation.Resumer.resume`."""
        return await self._returns.resume(request_id, tenant)

    async def seek(self, generation: Generation) -> None:
        """`router.generation.Seeker.seek`."""
        await self._placing.seek(generation)

    def models(self) -> tuple[ServedModel, ...]:
        """Models that can be asked for: those of all members that were ever reached. While no worker of one is
        alive its requests wait for one."""
        return self._fleet.services.served

    def ready(self) -> str | None:
        """None when a request could be served now, otherwise why not, in one sentence."""
        return "the router is draining" if self._admission.draining else self._serving.problem()

    def standings(self) -> ServingStatus:
        """The outcomes of requests, per model and revision, and the requests that wait."""
        return serving_status(self._requests.values(), self._tallies, self._fleet.services, self._tools)

    def outlooks(self, models: Collection[str] = ()) -> tuple[FleetOutlook, ...]:
        """The outlooks of these models, or of all: which workers of role `auto` take prompts for others, and why."""
        return self._splits.outlooks(models)

    # ---- life of the process ----

    def drain(self) -> None:
        """Refuse new requests; those that are held run to their end. What others see of the traffic decides now."""
        self._admission.drain()
        self._splits.drain()

    @property
    def held(self) -> int:
        """Requests between admission and their end."""
        return self._admission.held

    async def idle(self, within_s: float) -> int:
        """Wait until no request is held, at most `within_s`; gives how many are left."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self._admission.held

    def close(self, error: TandemError) -> None:
        """End every request with `error`, typed, and release all handles. Resumable requests stay with the
        workers."""
        self._returns.close()
        for request in tuple(self._requests.values()):
            if request.generation.resume is None:
                request.fail(error)
            else:
                request.let_go(error)
        # Last: whatever comes of it, no request waits for it.
        self._splits.close()

    # ---- router.fleet.peer.PeerListener ----

    def joined(self, peer: Peer) -> None:
        self._returns.joined(peer)
        self._splits.joined(peer)
        self._pump_soon()

    def left(self, peer: Peer, reason: str) -> None:
        self._drain_migrator.gone(peer)
        self._placing.gone(peer.worker_id)
        self._memory.gone(peer.worker_id)
        self._splits.changed(peer)
        self._prefill_rebalancer.gone(peer.worker_id)

    def drains(self, peer: Peer) -> None:
        self._splits.changed(peer)
        self._drain_migrator.drains(peer)

    def loaded(self, peer: Peer, load: Load) -> None:
        self._tools.costs.observe_load(peer.worker_id, load, peer.view.attended_tokens, peer.view.kind)
        self._prefill_rebalancer.loaded(peer)
        self._pump_soon()

    def pair_opened(self, prefill: str, decode: str, reason: str) -> None:
        for request in tuple(self._requests.values()):
            request.pair_opened(prefill, decode, reason)

    def split_published(self, peer: Peer, published: SplitPublished) -> None:
        self._splits.published(peer, published)

    def services_changed(self) -> None:
        self._pump_soon()

    # ---- router.dispatch.deps.Host ----

    def place_again(self, request: RequestState) -> None:
        if request.phase is Phase.WAITING:
            self._stranded[request.key] = request
            self._try_stranded(request)

    def place_beside(self, request: RequestState, avoid: tuple[str, int]) -> bool:
        found = self._placing.find(request, (avoid,))
        if isinstance(found, Unplaced) or not self._retries.spend():
            return False
        request.begin_beside(found.placement, *self._chosen(found.placement))
        return True

    def may_retry(self) -> bool:
        return self._retries.spend()

    def freed(self) -> None:
        self._pump_soon()

    def obstacle(self, request: RequestState) -> Unplaced | None:
        found = self._placing.find(request)
        return found if isinstance(found, Unplaced) else self._held_back(request, found)

    def peer(self, worker_id: str, model: str) -> Peer | OrphanedHolder | None:
        return self._fleet.blocks.holder(worker_id, self._fleet.services.scope(model))

    def holders(self, name: bytes) -> Collection[str]:
        return self._fleet.leading((name,)).keys()

    def queue_s(self, model: str) -> float:
        return self._fleet.services.queue_s(model, self._tools.settings.deadlines.queue_s)

    def left_revision(self, request: RequestState, revision: str) -> None:
        self._tallies.left(request.generation.model, revision)

    def retry_after_s(self, model: str) -> float:
        return self._admission.retry_after_s(model)

    def over(self, request: RequestState) -> None:
        ended, generation = request.ended(), request.generation
        self._tallies.ended(ended, self._fleet.services.of(generation.model))
        if generation.pin is None:
            told = (ended.outcome, ended.times, ended.output_tokens)
            self._splits.ended(generation, *told, placed=bool(request.attempts))
        self._stranded.pop(request.key, None)
        self._placing.ended(request)
        self._admission.ended(request.key, self._tools.clock.now())
        self._tools.meter.set("tandem_requests_running", self._admission.held)
        if self._admission.held == 0:
            self._idle.set()
        self._pump_soon()

    def forgotten(self, request: RequestState) -> None:
        del self._requests[request.key]

    # ---- router.dispatch.drain.MigrationHost ----

    def generated_on(self, peer: Peer) -> Iterable[RequestState]:
        return [request for request in self._requests.values() if request.generated_on is peer]

    def move(self, key: int, reason: str) -> None:
        request = self._requests[key]
        found, leaving = self._placing.find(request), request.generated_on
        if isinstance(found, Unplaced) or leaving is None:
            return
        asked, placement = found
        decode, prefill = self._chosen(placement)
        if not holds_now(decode.view, asked):
            return
        if leaving.hello.addresses and can_migrate_kv(leaving.view, decode.view, asked):
            placement, prefill = with_migrated_kv(placement, leaving.view, asked), leaving
        request.move(reason, placement, decode, prefill)
        self._placing.begun(request, found._replace(placement=placement))

    def moving(self) -> int:
        return sum(request.under_way for request in self._requests.values())

    # ---- router.dispatch.resume.Adopter ----

    def reserve(self) -> int:
        key = self._next_key
        self._next_key += 1
        refused = self._admission.reserve(key)
        if refused is not None:
            raise _error(refused)
        self._reserved += 1
        return key

    def give_back(self, key: int) -> None:
        self._reserved -= 1
        self._admission.ended(key, self._tools.clock.now())

    def adopt(self, key: int, failover: Failover) -> Resumable:
        self._reserved -= 1
        log = AnswerLog(failover.generation)
        log.whole = failover.decode is not None
        self._requests[key] = request = RequestState(self, self._tools, failover.generation, log, key)
        self._idle.clear()
        resumable = self._resumables.add(request, log)
        request.carry_on(failover)
        return resumable

    # ---- placing ----

    def _begin_or_wait(self, request: RequestState) -> None:
        """Place a request that was just admitted; when that fails it waits in line after all, unless that is expected
        to be in vain."""
        found = self._find(request)
        late = None if isinstance(found, Unplaced) else self._late(request, found)
        if late is not None:
            request.discard()
            raise _error(late)
        obstacle = self._begin(request, found)
        if obstacle is None:
            self._retries.earn()
        elif obstacle.code == "out_of_blocks":
            request.discard()
            raise never_fits(obstacle)
        else:
            self._admission.wait_again(request.key, request.generation.priority)
            request.unplaced(obstacle)
            request.wait_in_line()

    def _late(self, request: RequestState, found: PlacementResult) -> Refused | None:
        """Why a request is refused whose workers have too many prompts to compute before it."""
        objective, placement = found.asked.objective, found.placement
        peer = self._fleet.peer(placement.computing)
        if objective is None or objective.ttft_ms is None or peer is None or peer.view.queued_prompt_tokens == 0:
            return None
        generation = request.generation
        before_ms = placement.costs[0][1].queue_ms if placement.first_ms > 0.0 else 0.0
        own_s = (placement.first_ms - before_ms) / 1e3 + self._memory.wait_s(generation, placement)
        ttft_s = objective.ttft_ms / 1e3
        if own_s >= ttft_s:
            # It misses it wherever it goes, and is served like others.
            return None
        ahead = max(
            1, peer.view.prompts_in_flight, peer.view.queued_prompt_tokens // max(1, generation.prompt_tokens)
        )
        return refusal(QueueWait(before_ms / 1e3, ahead), inf, FirstToken(own_s), ttft_s)

    def _late_in_line(self, generation: Generation, ahead: int) -> Refused | None:
        """Why one is refused that would have to stand in line behind so many."""
        facts, guess_s = self._fleet.services.of(generation.model), self._memory.interval_s(generation)
        now = self._tools.clock.now()
        if facts is not None and facts.slo.ttft_s is not None:
            wait = self._admission.wait(generation.line, ahead, guess_s, now, self._memory.turn_s(generation))
            first = self._first.get(generation.line, FirstToken(0.0))
            if late := refusal(wait, inf, first, facts.slo.ttft_s):
                return late
        wait = self._admission.wait(generation.line, ahead, guess_s / _NO_EVIDENCE, now)
        return refusal(wait, self.queue_s(generation.model), FirstToken(0.0), None)

    def _held_back(self, request: RequestState, found: PlacementResult) -> Unplaced | None:
        """Why a request that could be placed waits here instead of on its workers. One that was placed before does
        not: it keeps its turn."""
        if request.attempts:
            return None
        wait_s = self._memory.wait_s(request.generation, found.placement)
        if wait_s <= _AHEAD_S:
            return None
        reason = (
            f"{found.placement.decode} is expected to have KV memory for it only {wait_s:.1f} s after it needs some"
        )
        return Unplaced("queue_full", (reason,))

    def _try(self, request: RequestState) -> Unplaced | None:
        """Begin an attempt, or say why not."""
        return self._begin(request, self._find(request))

    def _find(self, request: RequestState) -> PlacementResult | Unplaced:
        regroup = self._fleet.reconnect_holdoff(request.generation.model)
        if regroup is not None:
            self._look_again(regroup.until)
            return regroup.obstacle
        return self._placing.find(request)

    def _begin(self, request: RequestState, found: PlacementResult | Unplaced) -> Unplaced | None:
        if isinstance(found, Unplaced):
            return found
        if (held_back := self._held_back(request, found)) is not None:
            return held_back
        placement = found.placement
        if placement.unproved:
            self._fleet.want(placement.unproved)
        if not request.attempts:
            generation = request.generation
            first_s = placement.first_ms / 1e3 + self._memory.wait_s(generation, placement)
            self._first[generation.line] = self._first.get(generation.line, FirstToken(first_s)).after(first_s)
            self._tallies.placed(generation.model, placement.prefill_tokens)
            if generation.pin is None:
                self._splits.seen(generation, found.asked, placement)
        request.begin(placement, *self._chosen(placement))
        self._placing.begun(request, found)
        return None

    def _chosen(self, placement: Placement) -> tuple[Peer, Peer | None]:
        decode = self._fleet.peer(placement.decode)
        prefill = None if placement.prefill is None else self._fleet.peer(placement.prefill)
        assert decode is not None, f"{placement.decode} was placed on but is gone"
        assert placement.prefill is None or prefill is not None, f"{placement.prefill} was placed on but is gone"
        return decode, prefill

    def _try_stranded(self, request: RequestState) -> None:
        if self._tools.clock.now() < request.retry_at:
            return
        obstacle = self._try(request)
        if obstacle is None:
            self._stranded.pop(request.key, None)
        else:
            request.unplaced(obstacle)

    def _look_again(self, at: float) -> None:
        """Look at what waits at this time, if nothing gives reason to before."""
        if self._again is not None:
            self._again.cancel()
        self._again = self._tools.loop.call_later(max(0.0, at - self._tools.clock.now()), self._pump_soon)

    def _pump_soon(self) -> None:
        """Look at what waits, once, after this turn of the loop."""
        if not self._pump_due and (self._stranded or self._admission.waiting):
            self._pump_due = True
            self._tools.loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Started requests first, then the lines of each model, until nothing more fits."""
        self._pump_due = False
        for request in tuple(self._stranded.values()):
            if request.key in self._stranded:
                self._try_stranded(request)
        for line in self._admission.models_waiting():
            self._serve_line(line)

    def _serve_line(self, line: str) -> None:
        while (key := self._admission.next(line)) is not None:
            request = self._requests[key]
            obstacle = self._try(request)
            if obstacle is None:
                self._admission.leave_line(key)
                self._retries.earn()
                continue
            request.unplaced(obstacle)
            if request.phase is not Phase.OVER:
                return

    # ---- invariants ----

    def check(self) -> None:
        """Raise `AssertionError` when the dispatcher's books are inconsistent. Cheap enough for every step of a
        simulation."""
        live = [request for request in self._requests.values() if request.phase is not Phase.OVER]
        held = self._admission.held
        assert held == len(live) + self._reserved, f"{held} are held, {len(live)} are live, {self._reserved} to come"
        settings = self._tools.settings.admission
        assert len(live) <= settings.requests_max, f"{len(live)} requests are held"
        self._retries.check()
        self._admission.check()
        check_worker_streams(
            [leg for request in self._requests.values() for leg in request.worker_streams], self._fleet.peers()
        )
        for request in self._requests.values():
            request.check()


def _error(refused: Refused) -> TandemError:
    return TandemError(refused.code, refused.reason, retry_after_s=refused.retry_after_s)
