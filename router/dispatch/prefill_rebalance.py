"""Looks at the prompts that wait on each prefill worker, and moves those that wait for a starved one."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from router.dispatch.attempt import WorkerStream
from router.dispatch.deps import DispatchDeps
from router.dispatch.errors import not_in_time
from router.dispatch.placing import Placing
from router.dispatch.request_state import RequestState
from router.dispatch.starvation import (
    AlternativeWorker,
    PrefillRate,
    PromptAction,
    WaitingPrompt,
    decide_last_resort,
    decide_move,
)
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.placement import Unplaced

_JUDGED_MAX: Final = 16
"""The number of prompts for which one look searches another place, at most twice each, however many wait. Placement
stands still meanwhile."""


class _Waiting(NamedTuple):
    """A prompt on a worker, and how many tokens are computed there until its first token comes."""

    request: RequestState
    leg: WorkerStream
    tokens: int


class PrefillRebalancer:
    """Owns what is known of how fast the prefill workers of one router compute what waits there."""

    def __init__(self, tools: DispatchDeps, fleet: Fleet, placing: Placing) -> None:
        self._tools = tools
        self._fleet = fleet
        self._placing = placing
        self._patience_s = tools.settings.deadlines.prefill_progress_s
        self._drains: dict[str, PrefillRate] = {}
        self._looked: dict[str, float] = {}
        self._under_way: dict[int, tuple[RequestState, float]] = {}
        """Prompts that are being moved, by their request's key, with the seconds that computing each takes: they are
        in no worker's figures."""
        self._queued: dict[str, int] = {}
        """Prompt tokens that wait on other prefill workers, of which each is walked over once a look."""
        self._passed: dict[str, int] = {}
        """The number of prompts at the end of each worker's queue that earlier looks left there. The next look begins
        with those ahead of them, so every prompt has its turn, however few are judged at once."""

    def loaded(self, peer: Peer) -> None:
        """A worker's figures are new: look at what waits there, once a heartbeat."""
        now, name = self._tools.clock.now(), peer.worker_id
        every_s = self._tools.settings.deadlines.heartbeat_every_s
        if not peer.view.takes_prompts:
            # Time in which it computed no prompts tells nothing of how fast it computes them.
            self.gone(name)
            return
        if now - self._looked.get(name, -every_s) < every_s:
            return
        self._looked[name] = now
        waiting = _waiting(peer)
        computed = peer.view.prompt_tokens_computed + sum(each.leg.computed for each in waiting)
        self._drains.setdefault(name, PrefillRate()).look(now, computed, len(waiting))
        self._under_way = {key: each for key, each in self._under_way.items() if each[0].prompt_moves}
        if len(waiting) > 1:
            self._queued.clear()
            self._relieve(peer, waiting, now)

    def gone(self, worker_id: str) -> None:
        """A worker is lost, or takes no prompts any more."""
        self._drains.pop(worker_id, None)
        self._looked.pop(worker_id, None)
        self._passed.pop(worker_id, None)

    def prefill_eta_s(self, peer: Peer) -> dict[int, float]:
        """The seconds until each prompt on a prefill worker is expected to be computed, by its request's key."""
        return {each.request.key: self._first_s(peer, each.tokens) for each in _waiting(peer)}

    def _relieve(self, peer: Peer, waiting: Sequence[_Waiting], now: float) -> None:
        """Judge the waiting prompts, the last in the queue first: these gain most by another place, and leaving takes
        no other prompt's place. A look costs a walk over the waiting prompts, and a bounded number of placements."""
        judged, passed = 0, self._passed.pop(peer.worker_id, 0)
        if passed >= len(waiting):
            passed = 0
        for each in reversed(waiting[: len(waiting) - passed]):
            if judged == _JUDGED_MAX:
                self._passed[peer.worker_id] = passed
                return
            ahead_s = self._first_s(peer, each.tokens - each.leg.prompt_tokens_left)
            waits = each.request.prompt_waits(each.leg, ahead_s, self._first_s(peer, each.tokens), now)
            if waits is not None and not waits.soon and (waits.starved(self._patience_s) or not waits.in_time):
                judged += 1
                if self._judge(peer, each.request, waits):
                    continue
            passed += 1

    def _judge(self, peer: Peer, request: RequestState, waits: WaitingPrompt) -> bool:
        """Whether the prompt leaves. It is refused only where neither other prefill workers nor decode have it in
        time."""
        avoid: tuple[tuple[str, int], ...] = ((peer.worker_id, peer.epoch),)
        there = self._elsewhere(request, avoid, forced=False)
        verdict = decide_move(waits, there, self._patience_s)
        if verdict.lot is PromptAction.STAY and not waits.in_time:
            verdict = decide_last_resort(waits, there)
            if verdict.lot is not PromptAction.MOVE:
                views = self._fleet.views(request.generation.model)
                beyond = tuple((view.worker_id, view.epoch) for view in views if view.takes_prompts)
                decode = self._elsewhere(request, beyond, forced=True)
                last = decide_last_resort(waits, decode)
                if last.lot is PromptAction.MOVE or verdict.lot is PromptAction.REFUSE:
                    verdict, there, avoid = last, decode, beyond
        if verdict.lot is PromptAction.MOVE:
            assert there is not None, "a prompt moves to somewhere"
            self._under_way[request.key] = request, there.computing_s
            request.move_prompt(verdict.reason, avoid)
            return True
        if verdict.lot is PromptAction.REFUSE and request.accepted == 0:
            self._tools.meter.add("tandem_starved_prompts_total", 1.0, "refused")
            request.fail(not_in_time(verdict.reason, waits.here_s - waits.left_s))
            return True
        return False

    def _elsewhere(
        self, request: RequestState, avoid: tuple[tuple[str, int], ...], *, forced: bool
    ) -> AlternativeWorker | None:
        """The best place but for workers in `avoid`; None where there is none, or, unless it is `forced`, none that
        the policy would take while there are prefill workers."""
        found = self._placing.find(request, avoid, moves=True)
        if isinstance(found, Unplaced):
            return None
        placement = found.placement
        if placement.prefill is None and not forced and self._tools.settings.placement.prefer == "disaggregated":
            return None
        cost = placement.costs[0][1]
        computing_s = (cost.fetch_ms + cost.prefill_ms) / 1e3
        first_s = cost.queue_ms / 1e3 + computing_s
        prefill = None if placement.prefill is None else self._fleet.peer(placement.prefill)
        if prefill is not None:
            queued = self._queued_on(prefill) + placement.prefill_tokens
            first_s = max(first_s, self._first_s(prefill, queued))
        first_s += cost.transfer_ms / 1e3 + sum(seconds for _, seconds in self._under_way.values())
        others_s = (cost.interference_ms + cost.misses_ms) / 1e3
        return AlternativeWorker(placement.computing, first_s, others_s, cost.decode_ms / 1e3, computing_s)

    def _queued_on(self, peer: Peer) -> int:
        """Prompt tokens that this router has waiting there."""
        queued = self._queued.get(peer.worker_id)
        if queued is None:
            queued = self._queued[peer.worker_id] = sum(each.leg.prompt_tokens_left for each in _waiting(peer))
        return queued

    def _first_s(self, peer: Peer, tokens: int) -> float:
        """Seconds until the worker has computed `tokens` tokens: as learned from its steps or as observed lately,
        whichever is longer."""
        drain = self._drains.get(peer.worker_id)
        seen_s = tokens * drain.token_s() if drain is not None else 0.0
        return max(self._tools.costs.prefill_ms(peer.worker_id, tokens) / 1e3, seen_s)


def _waiting(peer: Peer) -> list[_Waiting]:
    """The prompts that this router has on a worker, in the order in which it computes them: what it has begun, then
    by priority, and by when they were sent."""
    worker_streams = [
        (target.owner, target)
        for _, target in peer.targets()
        if isinstance(target, WorkerStream) and target.prompt_tokens_left and isinstance(target.owner, RequestState)
    ]
    worker_streams.sort(key=lambda each: (not each[1].computed, -each[0].generation.priority))
    tokens, waiting = 0, list[_Waiting]()
    for request, leg in worker_streams:
        tokens += leg.prompt_tokens_left
        waiting.append(_Waiting(request, leg, tokens))
    return waiting
