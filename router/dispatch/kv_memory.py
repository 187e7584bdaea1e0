"""When the workers of a placement have KV memory for its request: from their figures and this router's own requests.

What runs on a decode worker gives its blocks back when its answer is expected to end; what was sent there and has
brought no token of its own may still wait for blocks, in the order in which it came. On a prefill worker prompts hold
their share of exported blocks until they have been computed and fetched.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from router.dispatch.admission import Expected
from router.dispatch.attempt import Leg
from router.dispatch.context import Tools
from router.dispatch.kv_pool import Claim, Room, room_after
from router.dispatch.running import RunningRequest
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Placement

_FETCHED_S: Final = 0.5
"""For how long a prompt that has been computed is taken to be held for its fetch."""


class _Known(NamedTuple):
    """What was worked out of a worker, and the figures that it holds for."""

    state: tuple[object, ...]
    room: Room


class KvMemory:
    """Looks at the fleet for the dispatcher. What follows from a worker's figures is worked out once per change."""

    def __init__(self, fleet: Fleet, tools: Tools) -> None:
        self._fleet = fleet
        self._tools = tools
        self._known: dict[str, _Known] = {}

    def gone(self, worker_id: str) -> None:
        """A worker is lost."""
        self._known.pop(worker_id, None)

    def expected(self, generation: Generation, placement: Placement) -> Expected:
        """What a request that is placed like this waits for on its workers."""
        decode = self._fleet.peer(placement.decode)
        prefill = None if placement.prefill is None else self._fleet.peer(placement.prefill)
        assert decode is not None, f"{placement.decode} was placed on but is gone"
        memory_s, holder = self._decode_s(decode, generation, placement.decode_cached_tokens), placement.decode
        export_s = 0.0 if prefill is None else self._export_s(prefill, generation)
        queue_s, first_s = 0.0, placement.first_ms / 1e3
        computing = prefill or decode
        if computing.view.queued_prompt_tokens > 0 and first_s > 0.0:
            queue_s = placement.costs[0][1].queue_ms / 1e3
        if prefill is not None:
            # Decode's memory is wanted when the prompt has been computed.
            memory_s = max(0.0, memory_s - first_s)
        if export_s > memory_s:
            memory_s, holder = export_s, computing.worker_id
        return Expected(memory_s, holder, queue_s, computing.worker_id, first_s - queue_s)

    def line(self, generation: Generation) -> tuple[Expected, float]:
        """What the first of those that wait in the router waits for, and how often one of them leaves, in seconds, by
        the length of answers and what runs: one for each answer that ends."""
        peers = list(self._generating(generation.model))
        if not peers:
            return Expected(), 0.0
        waits = [(self._decode_s(peer, generation, 0), peer.worker_id) for peer in peers]
        memory_s, holder = min(waits)
        running = sum(peer.view.sequences for peer in peers)
        token_s = sum(self._token_s(peer) for peer in peers) / len(peers)
        answer_s = self._answer_tokens(generation, 0.0) * token_s
        return Expected(memory_s, holder), answer_s / running if running else 0.0

    def _generating(self, model: str) -> Iterable[Peer]:
        for view in self._fleet.views(model):
            if view.ready and not view.draining and view.role not in ("prefill", "store"):
                peer = self._fleet.peer(view.worker_id)
                if peer is not None and not view.takes_prompts:
                    yield peer

    # ---- decode ----

    def _decode_s(self, peer: Peer, generation: Generation, cached_tokens: int) -> float:
        """When there are blocks for the prompt and the first tokens of its answers."""
        view, size = peer.view, peer.view.block_tokens
        needed = _blocks(generation.prompt_tokens - cached_tokens, size) + generation.n - 1
        load = view.load
        if load is None or view.sequences == 0:
            return 0.0
        begun = [] if load.waiting == 0 and view.blocks_free >= view.blocks // 2 else self._begun(peer)
        if load.waiting == 0 and view.blocks_free >= needed + sum(claim.blocks for claim in begun):
            return 0.0
        state = (load, view.sequences_in_flight, view.prompts, view.streams_in_flight)
        known = self._known.get(peer.worker_id)
        if known is None or known.state != state:
            known = self._known[peer.worker_id] = _Known(state, self._room(peer))
        return known.room.free_in_s(min(needed, view.blocks))

    def _begun(self, peer: Peer) -> list[Claim]:
        """What was sent there and has brought no token of its own."""
        return [self._claim(peer, request, leg)[0] for request, leg in _legs(peer) if leg.watched]

    def _room(self, peer: Peer) -> Room:
        """Of a worker's pool, behind all that waits there. Where prompts share blocks, what is held is less than what
        each holds by itself: the worker's own count is right."""
        view, load, now = peer.view, peer.view.load, self._tools.clock.now()
        held, unstarted, growth, unseen = list[Claim](), list[Claim](), 0.0, 0
        for request, leg in _legs(peer):
            claim, grows = self._claim(peer, request, leg)
            if leg.watched:
                unstarted.append(claim)
                unseen += leg.sent_at > now - self._tools.settings.fleet.load_lag_s
            else:
                held.append(claim)
                growth += grows
        assert load is not None, "a worker with a queue has told of it"
        seen = len(unstarted) - unseen
        # The latest wait: whoever came before them has its blocks by now.
        waiting = min(load.waiting, seen) + unseen
        entered, queued = unstarted[: len(unstarted) - waiting], unstarted[len(unstarted) - waiting :]
        held += entered
        used, own = view.blocks - view.blocks_free, sum(claim.blocks for claim in held)
        others = load.running - len(held)
        if own > used:
            held = [Claim(claim.blocks * used / own, claim.lasts_s) for claim in held]
        elif others > 0:
            half_s = self._token_s(peer) * self._tools.settings.placement.expected_output_tokens / 2
            held += [Claim((used - own) / others, half_s)] * others
        strangers = load.waiting - seen
        if strangers > 0:
            lasts_s = self._token_s(peer) * self._tools.settings.placement.expected_output_tokens
            queued = [Claim(used / max(1, load.running), lasts_s)] * strangers + queued
        # They grow evenly until they end: half of it is gone on average.
        return room_after(view.blocks_free - growth / 2, held, queued)

    def _claim(self, peer: Peer, request: RunningRequest, leg: Leg) -> tuple[Claim, float]:
        """What a request holds there until it ends, with half of its growth, and by how much it still grows."""
        generation, size = request.generation, peer.view.block_tokens
        sequences = max(1, leg.sequences_held)
        age = request.accepted / generation.n
        left = self._answer_tokens(generation, age)
        tails = sequences * _blocks(age + 1, size)
        grows = sequences * _blocks(age + 1 + left, size) - tails if not leg.watched else 0
        blocks = generation.prompt_tokens // size + tails + grows / 2
        return Claim(blocks, left * self._token_s(peer)), grows

    def _answer_tokens(self, generation: Generation, age: float) -> float:
        """That an answer of so many tokens is expected to get."""
        otherwise = self._tools.settings.placement.expected_output_tokens
        return self._tools.costs.answers.expected_left(generation.stopping.max_tokens, age, otherwise)

    def _token_s(self, peer: Peer) -> float:
        view = peer.view
        expected_ms = self._tools.costs.step_ms(peer.worker_id, view.sequences, view.attended_tokens)
        return max(expected_ms, view.steps_ms) / 1e3

    # ---- prefill ----

    def _export_s(self, peer: Peer, generation: Generation) -> float:
        """When exported blocks leave room for the prompt's."""
        view, size = peer.view, peer.view.block_tokens
        needed = _blocks(generation.prompt_tokens, size)
        share = view.export_blocks or view.blocks
        most = share if needed <= share else view.blocks
        computed = view.load.blocks_exported if view.load is not None else 0
        left = [leg for _, leg in _legs(peer) if leg.prompt_tokens_left]
        if most >= needed + computed + _blocks(view.prompt_tokens_in_flight, size) + len(left):
            return 0.0
        at_s, held = 0.0, [Claim(computed, _FETCHED_S)] if computed else []
        for leg in left:
            at_s += self._tools.costs.prefill_ms(peer.worker_id, leg.prompt_tokens_left) / 1e3
            held.append(Claim(_blocks(leg.prompt_tokens_left, size), at_s + _FETCHED_S))
        free = most - sum(claim.blocks for claim in held)
        return room_after(free, held, ()).free_in_s(needed)


def _legs(peer: Peer) -> Iterable[tuple[RunningRequest, Leg]]:
    """This router's live requests on a worker, in the order in which they were sent."""
    for _, target in peer.targets():
        if isinstance(target, Leg) and target.live and isinstance(target.owner, RunningRequest):
            yield target.owner, target


def _blocks(tokens: float, block_tokens: int) -> int:
    return int(-(-max(0.0, tokens) // block_tokens))
