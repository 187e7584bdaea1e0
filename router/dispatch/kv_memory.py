"""Forecasts when a worker has KV blocks for a request, from the worker's load and this router's requests on it.

A generating request returns its blocks when its answer is expected to end. A request without a token of its own may
still wait for blocks, in order of arrival: from now on, or from the moment its prefill on another worker is expected
to end.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from router.dispatch.attempt import WorkerStream
from router.dispatch.deps import DispatchDeps
from router.dispatch.kv_pool import BlockDemand, PoolForecast, forecast
from router.dispatch.prefill_rebalance import PrefillRebalancer
from router.dispatch.request_state import RequestState
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Placement
from router.placement.filters.workers import sequences_max

_PACKED: Final = 0.8
"""The share of a pool that requests of many sizes fill, one after the other."""
_BETWEEN_S: Final = 0.5
"""Seconds from the end of an answer to the first token of the next answer in its place."""
_SNAPSHOT_S: Final = 0.05
"""A snapshot walks over all requests of a worker, so it is reused for this long."""
_MANY: Final = 64
"""The number of requests from which on a snapshot is reused although the worker's load has changed."""


class _Snapshot(NamedTuple):
    """The forecast for one worker's pool at time `at`, its inputs, and the number of `requests` it covers.
    `unstarted` counts the blocks of requests without a token of their own, `attended` the positions of all."""

    at: float
    inputs: tuple[object, ...]
    requests: int
    pool: PoolForecast
    unstarted: float
    attended: int

    def sent_since(self, peer: Peer) -> float:
        """Blocks of the requests that were sent to the worker after the snapshot."""
        return max(0.0, (peer.view.attended_in_flight - self.attended) / peer.view.block_tokens)


class KvMemory:
    """Reads the fleet for the dispatcher and caches one snapshot per worker."""

    def __init__(self, fleet: Fleet, tools: DispatchDeps, relief: PrefillRebalancer) -> None:
        self._fleet = fleet
        self._tools = tools
        self._prefill_rebalancer = relief
        self._snapshots: dict[str, _Snapshot] = {}

    def gone(self, worker_id: str) -> None:
        """A worker is lost."""
        self._snapshots.pop(worker_id, None)

    def wait_s(self, generation: Generation, placement: Placement) -> float:
        """The time for which a request with this placement waits for blocks once it needs them, in seconds."""
        decode = self._fleet.peer(placement.decode)
        assert decode is not None, f"{placement.decode} was placed on but is gone"
        # Decode's memory is wanted when the prompt has been computed.
        from_s = 0.0 if placement.prefill is None else placement.first_ms / 1e3
        return self._wait_s(decode, generation, placement.decode_cached_tokens, from_s)

    def turn_s(self, generation: Generation) -> float:
        """The time until a worker has blocks for a request like this one, in seconds. 0 where there is no worker."""
        return min(
            (self._wait_s(peer, generation, 0, 0.0) for peer in self._generating(generation.model)), default=0.0
        )

    def interval_s(self, generation: Generation) -> float:
        """The expected seconds from the end of one request to the end of the next. As many answers are taken to be
        under way as run now, or as the pools hold of requests like this one. 0 when there is no worker."""
        peers = list(self._generating(generation.model))
        if not peers:
            return 0.0
        tokens = self._answer_tokens(generation, 0.0)
        size, context = peers[0].view.block_tokens, generation.prompt_tokens + tokens / 2
        answers_s = running = 0.0
        for peer in peers:
            view = peer.view
            fits = _PACKED * view.blocks / (max(1, _blocks(context, size)) * generation.n)
            most = sequences_max(view, self._tools.settings.placement)
            sequences = min(most, max(1.0, fits, view.load.running if view.load is not None else 0))
            step_ms = self._tools.costs.step_ms(peer.worker_id, round(sequences), round(sequences * context))
            answers_s += tokens * max(step_ms, view.steps_ms) / 1e3
            running += sequences
        return (answers_s / len(peers) + _BETWEEN_S) / running

    def _generating(self, model: str) -> Iterable[Peer]:
        for view in self._fleet.views(model):
            if view.ready and not view.draining and view.role not in ("prefill", "store"):
                peer = self._fleet.peer(view.worker_id)
                if peer is not None and not view.takes_prompts:
                    yield peer

    def _wait_s(self, peer: Peer, generation: Generation, cached_tokens: int, from_s: float) -> float:
        """The time for which a request that needs its blocks in `from_s` seconds waits for those of its prompt and of
        its first tokens, in seconds."""
        view, size = peer.view, peer.view.block_tokens
        needed = _blocks(generation.prompt_tokens - cached_tokens, size) + generation.n - 1
        # A worker that reports no waiting request has its free blocks for the requests that it has not seen yet: at
        # most all requests in flight, precisely those without a token.
        nobody_waits = view.load is None or view.load.waiting == 0
        if nobody_waits and view.blocks_free >= needed + view.attended_in_flight // size + view.sequences_in_flight:
            return 0.0
        snapshot = self._snapshot(peer)
        wanted = needed + snapshot.sent_since(peer)
        if nobody_waits and view.blocks_free >= wanted + snapshot.unstarted:
            return 0.0
        return snapshot.pool.wait_s(min(wanted, view.blocks), from_s)

    def _snapshot(self, peer: Peer) -> _Snapshot:
        view, now = peer.view, self._tools.clock.now()
        inputs = (view.load, view.sequences_in_flight, view.prompts, view.streams_in_flight)
        snapshot = self._snapshots.get(peer.worker_id)
        # A first token changes none of the inputs, so a snapshot also expires.
        if (
            snapshot is None
            or now - snapshot.at >= _SNAPSHOT_S
            or (snapshot.inputs != inputs and snapshot.requests < _MANY)
        ):
            snapshot = self._snapshots[peer.worker_id] = self._forecast(peer, now, inputs)
        return snapshot

    def _forecast(self, peer: Peer, now: float, inputs: tuple[object, ...]) -> _Snapshot:
        """The snapshot of one worker. Requests with a common prefix share blocks, so demands are scaled to the count
        of the worker."""
        view, load = peer.view, peer.view.load
        held, unstarted, coming = list[BlockDemand](), list[BlockDemand](), list[BlockDemand]()
        growth, unseen = 0.0, 0
        prefill_eta_s = self._prefill_eta_s(peer)
        for request, leg in _worker_streams(peer):
            demand, grows = self._demand(peer, request, leg, prefill_eta_s.get(request.key, 0.0))
            if demand.from_s > 0.0:
                coming.append(demand)
            elif leg.watched:
                unstarted.append(demand)
                unseen += leg.sent_at > now - self._tools.settings.fleet.load_lag_s
            else:
                held.append(demand)
                growth += grows
        coming.sort(key=lambda demand: demand.from_s)
        blocks = sum(demand.blocks for demand in unstarted + coming)
        requests = len(held) + len(unstarted) + len(coming)
        if load is None:
            pool = forecast(view.blocks_free - sum(demand.blocks for demand in unstarted), unstarted, coming)
            return _Snapshot(now, inputs, requests, pool, blocks, view.attended_in_flight)
        seen = len(unstarted) - unseen
        # The latest requests wait: the worker serves them in order of arrival.
        waiting = min(load.waiting, seen) + unseen
        entered, queued = unstarted[: len(unstarted) - waiting], unstarted[len(unstarted) - waiting :]
        held += entered
        used, own = view.blocks - view.blocks_free, sum(demand.blocks for demand in held)
        others, expected = load.running - len(held), self._tools.settings.placement.expected_output_tokens
        answer_s = self._token_s(peer) * expected
        if own > used:
            held = [BlockDemand(demand.blocks * used / own, demand.lasts_s) for demand in held]
        elif others > 0:
            held += [BlockDemand((used - own) / others, answer_s / 2)] * others
        strangers = load.waiting - seen
        if strangers > 0:
            queued = [BlockDemand(used / max(1, load.running), answer_s)] * strangers + queued
        # Answers grow evenly until they end, so on average half of the growth is allocated.
        pool = forecast(view.blocks_free - growth / 2, held, queued + coming)
        return _Snapshot(now, inputs, requests, pool, blocks, view.attended_in_flight)

    def _prefill_eta_s(self, peer: Peer) -> dict[int, float]:
        """The seconds until other workers are expected to have computed prompts for this worker, by request key."""
        prefill_eta_s = dict[int, float]()
        for other in self._fleet.peers():
            if other is not peer and other.view.takes_prompts:
                prefill_eta_s |= self._prefill_rebalancer.prefill_eta_s(other)
        return prefill_eta_s

    def _demand(
        self, peer: Peer, request: RequestState, leg: WorkerStream, from_s: float
    ) -> tuple[BlockDemand, float]:
        """The blocks that a request holds on the worker until it ends, with half of its growth; and that growth."""
        generation, size = request.generation, peer.view.block_tokens
        sequences = max(1, leg.sequences_held)
        age = request.accepted / generation.n
        left = self._answer_tokens(generation, age)
        tails = sequences * _blocks(age + 1, size)
        grows = sequences * _blocks(age + 1 + left, size) - tails if not leg.watched else 0
        blocks = generation.prompt_tokens // size + tails + grows / 2
        return BlockDemand(blocks, left * self._token_s(peer), from_s), grows

    def _answer_tokens(self, generation: Generation, age: float) -> float:
        """The tokens that an answer of `age` tokens is expected to gain."""
        otherwise = self._tools.settings.placement.expected_output_tokens
        return self._tools.costs.answers.expected_left(generation.stopping.max_tokens, age, otherwise)

    def _token_s(self, peer: Peer) -> float:
        view = peer.view
        expected_ms = self._tools.costs.step_ms(peer.worker_id, view.sequences, view.attended_tokens)
        return max(expected_ms, view.steps_ms) / 1e3


def _worker_streams(peer: Peer) -> Iterable[tuple[RequestState, WorkerStream]]:
    """This router's live requests on a worker and their legs, in the order in which they were sent."""
    for _, target in peer.targets():
        if isinstance(target, WorkerStream) and target.live and isinstance(target.owner, RequestState):
            yield target.owner, target


def _blocks(tokens: float, block_tokens: int) -> int:
    return int(-(-max(0.0, tokens) // block_tokens))
