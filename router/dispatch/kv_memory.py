"""When a worker has KV memory for a request: from its own figures and this router's requests on it.

What runs there gives its blocks back when its answer is expected to end; what was sent there and has brought no token
may still wait for blocks, in the order in which it came. A request asks for them once its prompt has been computed
elsewhere, or at once.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from router.dispatch.attempt import Leg
from router.dispatch.context import Tools
from router.dispatch.kv_pool import Claim, Room, room_after
from router.dispatch.relief import Relief
from router.dispatch.running import RunningRequest
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Placement

_PACKED: Final = 0.8
"""The share of a pool that requests of many sizes fill, one after the other."""
_BETWEEN_S: Final = 0.5
"""From the end of an answer to the first token of the next one in its place."""
_KNOWN_S: Final = 0.05
"""A look walks over all requests of a worker: what it found holds so long,"""
_MANY: Final = 64
"""and where there are so many even while figures change."""


class _Known(NamedTuple):
    """What was worked out of a worker at `at` from its `figures`, by a look at so many `requests`: its room, the
    blocks of what had been sent there and had brought no token, and the positions that all of them attended to."""

    at: float
    figures: tuple[object, ...]
    requests: int
    room: Room
    unstarted: float
    attended: int

    def sent_since(self, peer: Peer) -> float:
        """Blocks of what has been sent there since."""
        return max(0.0, (peer.view.attended_in_flight - self.attended) / peer.view.block_tokens)


class KvMemory:
    """Looks at the fleet for the dispatcher. What follows from a worker's figures is worked out once per change, or
    more seldom where that takes long."""

    def __init__(self, fleet: Fleet, tools: Tools, relief: Relief) -> None:
        self._fleet = fleet
        self._tools = tools
        self._relief = relief
        self._known: dict[str, _Known] = {}

    def gone(self, worker_id: str) -> None:
        """A worker is lost."""
        self._known.pop(worker_id, None)

    def wait_s(self, generation: Generation, placement: Placement) -> float:
        """How long a request that is placed like this waits for blocks once it needs them, in seconds."""
        decode = self._fleet.peer(placement.decode)
        assert decode is not None, f"{placement.decode} was placed on but is gone"
        # Decode's memory is wanted when the prompt has been computed.
        from_s = 0.0 if placement.prefill is None else placement.first_ms / 1e3
        return self._wait_s(decode, generation, placement.decode_cached_tokens, from_s)

    def interval_s(self, generation: Generation) -> float:
        """How often a request is expected to end, in seconds: as many answers are under way as run now, or as pools
        hold of requests like this one. 0 where there is no worker."""
        peers = list(self._generating(generation.model))
        if not peers:
            return 0.0
        tokens = self._answer_tokens(generation, 0.0)
        size, context = peers[0].view.block_tokens, generation.prompt_tokens + tokens / 2
        most = self._tools.settings.placement.sequences_per_worker_max
        answers_s = running = 0.0
        for peer in peers:
            view = peer.view
            fits = _PACKED * view.blocks / (max(1, _blocks(context, size)) * generation.n)
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
        """How long it would wait for blocks for the prompt and the first tokens of its answers, when it asks for them
        in `from_s`; in seconds."""
        view, size = peer.view, peer.view.block_tokens
        needed = _blocks(generation.prompt_tokens - cached_tokens, size) + generation.n - 1
        # Where nobody waits by the worker's own word, what it has free is for those that it has not seen yet, and at
        # most for all that was sent there.
        nobody_waits = view.load is None or view.load.waiting == 0
        if nobody_waits and view.blocks_free >= needed + view.attended_in_flight // size + view.sequences_in_flight:
            return 0.0
        known = self._looked(peer)
        wanted = needed + known.sent_since(peer)
        if nobody_waits and view.blocks_free >= wanted + known.unstarted:
            return 0.0
        return known.room.wait_s(min(wanted, view.blocks), from_s)

    def _looked(self, peer: Peer) -> _Known:
        view, now = peer.view, self._tools.clock.now()
        figures = (view.load, view.sequences_in_flight, view.prompts, view.streams_in_flight)
        known = self._known.get(peer.worker_id)
        # Who has brought a token since a look changes none of the figures.
        if known is None or now - known.at >= _KNOWN_S or (known.figures != figures and known.requests < _MANY):
            known = self._known[peer.worker_id] = self._look(peer, now, figures)
        return known

    def _look(self, peer: Peer, now: float, figures: tuple[object, ...]) -> _Known:
        """Where prompts share blocks, what is held is less than what each holds by itself: the worker's count is
        right."""
        view, load = peer.view, peer.view.load
        held, unstarted, coming, growth, unseen = list[Claim](), list[Claim](), list[Claim](), 0.0, 0
        due_s = self._due_s(peer)
        for request, leg in _legs(peer):
            claim, grows = self._claim(peer, request, leg, due_s.get(request.key, 0.0))
            if claim.from_s > 0.0:
                coming.append(claim)
            elif leg.watched:
                unstarted.append(claim)
                unseen += leg.sent_at > now - self._tools.settings.fleet.load_lag_s
            else:
                held.append(claim)
                growth += grows
        coming.sort(key=lambda claim: claim.from_s)
        blocks, requests = sum(claim.blocks for claim in unstarted + coming), len(held) + len(unstarted) + len(coming)
        if load is None:
            room = room_after(view.blocks_free - sum(claim.blocks for claim in unstarted), unstarted, coming)
            return _Known(now, figures, requests, room, blocks, view.attended_in_flight)
        seen = len(unstarted) - unseen
        # The latest wait: whoever came before them has its blocks by now.
        waiting = min(load.waiting, seen) + unseen
        entered, queued = unstarted[: len(unstarted) - waiting], unstarted[len(unstarted) - waiting :]
        held += entered
        used, own = view.blocks - view.blocks_free, sum(claim.blocks for claim in held)
        others, expected = load.running - len(held), self._tools.settings.placement.expected_output_tokens
        answer_s = self._token_s(peer) * expected
        if own > used:
            held = [Claim(claim.blocks * used / own, claim.lasts_s) for claim in held]
        elif others > 0:
            held += [Claim((used - own) / others, answer_s / 2)] * others
        strangers = load.waiting - seen
        if strangers > 0:
            queued = [Claim(used / max(1, load.running), answer_s)] * strangers + queued
        # They grow evenly until they end: half of it is gone on average.
        room = room_after(view.blocks_free - growth / 2, held, queued + coming)
        return _Known(now, figures, requests, room, blocks, view.attended_in_flight)

    def _due_s(self, peer: Peer) -> dict[int, float]:
        """When prompts are expected to be computed that others compute for this worker."""
        due_s = dict[int, float]()
        for other in self._fleet.peers():
            if other is not peer and other.view.takes_prompts:
                due_s |= self._relief.due_s(other)
        return due_s

    def _claim(self, peer: Peer, request: RunningRequest, leg: Leg, from_s: float) -> tuple[Claim, float]:
        """What a request holds there until it ends, with half of its growth, and by how much it still grows."""
        generation, size = request.generation, peer.view.block_tokens
        sequences = max(1, leg.sequences_held)
        age = request.accepted / generation.n
        left = self._answer_tokens(generation, age)
        tails = sequences * _blocks(age + 1, size)
        grows = sequences * _blocks(age + 1 + left, size) - tails if not leg.watched else 0
        blocks = generation.prompt_tokens // size + tails + grows / 2
        return Claim(blocks, left * self._token_s(peer), from_s), grows

    def _answer_tokens(self, generation: Generation, age: float) -> float:
        """That an answer of so many tokens is expected to get."""
        otherwise = self._tools.settings.placement.expected_output_tokens
        return self._tools.costs.answers.expected_left(generation.stopping.max_tokens, age, otherwise)

    def _token_s(self, peer: Peer) -> float:
        view = peer.view
        expected_ms = self._tools.costs.step_ms(peer.worker_id, view.sequences, view.attended_tokens)
        return max(expected_ms, view.steps_ms) / 1e3


def _legs(peer: Peer) -> Iterable[tuple[RunningRequest, Leg]]:
    """This router's live requests on a worker, in the order in which they were sent."""
    for _, target in peer.targets():
        if isinstance(target, Leg) and target.live and isinstance(target.owner, RunningRequest):
            yield target.owner, target


def _blocks(tokens: float, block_tokens: int) -> int:
    return int(-(-max(0.0, tokens) // block_tokens))
