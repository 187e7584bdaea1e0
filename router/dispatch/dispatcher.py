"""Dispatch: `router.generation.Generator` over the fleet. Admits, places, and keeps what waits moving."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from router.dispatch.admission import Admission, Admitted, Refused
from router.dispatch.answer_log import AnswerLog
from router.dispatch.books import check_legs
from router.dispatch.context import Tools
from router.dispatch.endings import never_fits
from router.dispatch.hand_over import handed_over, hands_over, holds_now
from router.dispatch.mover import Mover
from router.dispatch.phase import Phase
from router.dispatch.resumables import Listening, Resumable, Resumables
from router.dispatch.retry_budget import RetryBudget
from router.dispatch.returns import Returns
from router.dispatch.running import RunningRequest
from router.dispatch.takeover import Takeover
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import Generation, Resumed, Running, ServedModel, Sink
from router.placement import Placement, Unplaced, place
from tandem.core.errors import TandemError
from tandem.core.kv import chain_names, tenant_root
from tandem.core.messages import Load

_NOTHING_CACHED: Mapping[str, int] = MappingProxyType({})


class Dispatcher:
    """Owns all requests between admission and their end. Give it to `Fleet.run` as the listener."""

    def __init__(self, fleet: Fleet, tools: Tools) -> None:
        self._fleet = fleet
        self._tools = tools
        self._admission = Admission(tools.settings.admission)
        self._retries = RetryBudget(tools.settings.retry)
        self._mover = Mover(tools, self)
        self._resumables = Resumables(tools)
        self._returns = Returns(fleet, tools, self._resumables, self)
        self._reserved = 0
        self._requests: dict[int, RunningRequest] = {}
        self._stranded: dict[int, RunningRequest] = {}
        self._next_key = 1
        self._pump_due = False
        self._proved = False
        """It was decided once whether prompts can be handed off."""
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- router.generation.Generator ----

    def start(self, generation: Generation, sink: Sink) -> Running:
        """Admit and dispatch.

        Raises `queue_full`, `draining`, `no_workers`, `model_not_found`, `context_length_exceeded`.
        """
        self._check_model(generation.model)
        key = self._next_key
        self._next_key += 1
        decision = self._admission.arrive(
            key, generation.model, generation.priority, self._has_room(generation.model)
        )
        if isinstance(decision, Refused):
            raise TandemError(decision.code, decision.reason, retry_after_s=decision.retry_after_s)
        log = AnswerLog(generation, sink) if generation.resume is not None else None
        request = RunningRequest(self, self._tools, generation, log or sink, key)
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

    def models(self) -> tuple[ServedModel, ...]:
        """Models that can be asked for: those of all members that were ever reached. While no worker of one is
        alive its requests wait for one."""
        return tuple(
            ServedModel(hello.model, hello.context_tokens, hello.eos_token_ids)
            for hello in self._fleet.known_models()
        )

    def ready(self) -> str | None:
        """None when a request could be served now, otherwise why not, in one sentence."""
        if self._admission.draining:
            return "the router is draining"
        if any(self._has_room(hello.model) for hello in self._fleet.known_models()):
            # Only at first: later, pairs that break leave a router that serves, and must not take it out of use.
            unproven = None if self._proved else self._fleet.unproven()
            self._proved = unproven is None
            return unproven
        problems = "; ".join(f"{address}: {reason}" for address, reason in list(self._fleet.problems().items())[:3])
        return f"no decode or unified worker can take a request{f' ({problems})' if problems else ''}"

    # ---- life of the process ----

    def drain(self) -> None:
        """Refuse new requests; those that are held run to their end."""
        self._admission.drain()

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
        """End every request with `error`, typed, and let go of all handles. Resumable ones stay with the workers."""
        self._returns.close()
        for request in tuple(self._requests.values()):
            if request.generation.resume is None:
                request.fail(error)
            else:
                request.let_go(error)

    # ---- router.fleet.peer.PeerListener ----

    def joined(self, peer: Peer) -> None:
        self._returns.joined(peer)
        self._pump_soon()

    def left(self, peer: Peer, reason: str) -> None:
        self._mover.gone(peer)
        self._tools.costs.forget(peer.worker_id)

    def drains(self, peer: Peer) -> None:
        self._mover.drains(peer)

    def loaded(self, peer: Peer, load: Load) -> None:
        self._tools.costs.observe_load(peer.worker_id, load)
        self._pump_soon()

    def pair_opened(self, prefill: str, decode: str, reason: str) -> None:
        for request in tuple(self._requests.values()):
            request.pair_opened(prefill, decode, reason)

    # ---- router.dispatch.context.Host ----

    def place_again(self, request: RunningRequest) -> None:
        if request.phase is Phase.WAITING:
            self._stranded[request.key] = request
            self._try_stranded(request)

    def place_beside(self, request: RunningRequest, avoid: tuple[str, int]) -> bool:
        found = self._find(request, (avoid,))
        if isinstance(found, Unplaced) or not self._retries.spend():
            return False
        request.begin_beside(found, *self._chosen(found))
        return True

    def may_retry(self) -> bool:
        return self._retries.spend()

    def freed(self) -> None:
        self._pump_soon()

    def obstacle(self, request: RunningRequest) -> Unplaced | None:
        found = self._find(request)
        return found if isinstance(found, Unplaced) else None

    def holders(self, name: bytes) -> Collection[str]:
        return self._fleet.leading((name,))

    def retry_after_s(self, model: str) -> float:
        return self._admission.retry_after_s(model)

    def over(self, request: RunningRequest) -> None:
        self._stranded.pop(request.key, None)
        self._admission.ended(request.key, self._tools.clock.now())
        self._tools.meter.set("tandem_requests_running", self._admission.held)
        if self._admission.held == 0:
            self._idle.set()
        self._pump_soon()

    def forgotten(self, request: RunningRequest) -> None:
        del self._requests[request.key]

    # ---- router.dispatch.mover.Streams ----

    def generated_on(self, peer: Peer) -> Iterable[RunningRequest]:
        return [request for request in self._requests.values() if request.generated_on is peer]

    def move(self, key: int, reason: str) -> None:
        request = self._requests[key]
        found, leaving = self._find(request), request.generated_on
        if isinstance(found, Unplaced) or leaving is None:
            return
        decode, prefill = self._chosen(found)
        asked = request.placement_request(_NOTHING_CACHED)
        if not holds_now(decode.view, asked):
            return
        if leaving.hello.addresses and hands_over(leaving.view, decode.view, asked):
            found, prefill = handed_over(found, leaving.view, asked), leaving
        request.move(reason, found, decode, prefill)

    def moving(self) -> int:
        return sum(request.under_way for request in self._requests.values())

    # ---- router.dispatch.returns.Adopter ----

    def reserve(self) -> int:
        key = self._next_key
        self._next_key += 1
        refused = self._admission.reserve(key)
        if refused is not None:
            raise TandemError(refused.code, refused.reason, retry_after_s=refused.retry_after_s)
        self._reserved += 1
        return key

    def give_back(self, key: int) -> None:
        self._reserved -= 1
        self._admission.ended(key, self._tools.clock.now())

    def adopt(self, key: int, takeover: Takeover) -> Resumable:
        self._reserved -= 1
        log = AnswerLog(takeover.generation)
        log.whole = takeover.decode is not None
        self._requests[key] = request = RunningRequest(self, self._tools, takeover.generation, log, key)
        self._idle.clear()
        resumable = self._resumables.add(request, log)
        request.carry_on(takeover)
        return resumable

    # ---- placing ----

    def _check_model(self, model: str) -> None:
        if self._fleet.knows(model):
            return
        if self._fleet.problems() or not self._fleet.peers():
            raise TandemError("no_workers", f"no worker that serves {model!r} is connected", retry_after_s=1.0)
        raise TandemError("model_not_found", f"the model {model!r} does not exist here", param="model")

    def _has_room(self, model: str) -> bool:
        most = self._tools.settings.placement.sequences_per_worker_max
        return any(
            view.role != "prefill" and view.ready and not view.draining and view.sequences < most
            for view in self._fleet.views(model)
        )

    def _begin_or_wait(self, request: RunningRequest) -> None:
        """Place a request that was just admitted; when that fails it waits in line after all."""
        obstacle = self._try(request)
        if obstacle is None:
            self._retries.earn()
        elif obstacle.code == "out_of_blocks":
            request.discard()
            raise never_fits(obstacle)
        else:
            self._admission.wait_again(request.key, request.generation.priority)
            request.unplaced(obstacle)
            request.wait_in_line()

    def _try(self, request: RunningRequest) -> Unplaced | None:
        """Begin an attempt, or say why not."""
        found = self._find(request)
        if isinstance(found, Unplaced):
            return found
        if found.unproved:
            self._fleet.want(found.unproved)
        request.begin(found, *self._chosen(found))
        return None

    def _find(self, request: RunningRequest, avoid: tuple[tuple[str, int], ...] = ()) -> Placement | Unplaced:
        model = request.generation.model
        asked = request.placement_request(self._cached_tokens(request.generation), avoid)
        settings, pairs = self._tools.settings.placement, self._fleet.pairs
        return place(asked, self._fleet.views(model), self._tools.costs, settings, pairs)

    def _chosen(self, placement: Placement) -> tuple[Peer, Peer | None]:
        decode = self._fleet.peer(placement.decode)
        prefill = None if placement.prefill is None else self._fleet.peer(placement.prefill)
        assert decode is not None, f"{placement.decode} was placed on but is gone"
        assert placement.prefill is None or prefill is not None, f"{placement.prefill} was placed on but is gone"
        return decode, prefill

    def _cached_tokens(self, generation: Generation) -> Mapping[str, int]:
        """Leading prompt tokens each worker has, by its whole blocks."""
        cached: dict[str, int] = {}
        for root, block_tokens in self._fleet.roots(generation.model):
            if generation.prompt_tokens < block_tokens:
                continue
            names = chain_names(tenant_root(root, generation.tenant_salt), generation.prompt, block_tokens)
            for worker_id, count in self._fleet.leading(names).items():
                cached[worker_id] = count * block_tokens
        return cached or _NOTHING_CACHED

    def _try_stranded(self, request: RunningRequest) -> None:
        if self._tools.clock.now() < request.retry_at:
            return
        obstacle = self._try(request)
        if obstacle is None:
            self._stranded.pop(request.key, None)
        else:
            request.unplaced(obstacle)

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
        for model in self._admission.models_waiting():
            self._serve_line(model)

    def _serve_line(self, model: str) -> None:
        while (key := self._admission.next(model)) is not None:
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
        """Raise `AssertionError` when the books do not fit; cheap enough for every step of a simulation."""
        live = [request for request in self._requests.values() if request.phase is not Phase.OVER]
        held = self._admission.held
        assert held == len(live) + self._reserved, f"{held} are held, {len(live)} are live, {self._reserved} to come"
        settings = self._tools.settings.admission
        assert len(live) <= settings.requests_max, f"{len(live)} requests are held"
        self._retries.check()
        self._admission.check()
        check_legs([leg for request in self._requests.values() for leg in request.legs], self._fleet.peers())
        for request in self._requests.values():
            request.check()
