"""Peers' policies at work in a simulated fleet: one for each pool, with the figures their routers would have."""

from collections.abc import Callable, Sequence

from benchmarks.fleet.peers.policy import CandidateView, Peer, PeerContext, PoolFacts
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.step_time import attended
from benchmarks.fleet.worker import Worker
from benchmarks.fleet.workload import Request

Pool = Callable[[PoolFacts], Peer]
"""A policy over such candidates."""


class PeerDecider:
    """`benchmarks.fleet.router.Decider`. Where there are prefill workers every prompt goes through one of them,
    unless the policy of the others has its choice keep it."""

    def __init__(self, knowledge: Knowledge, unified: Pool, prefill: Pool, decode: Pool) -> None:
        """`unified` is the policy where there are no prefill workers, `prefill` and `decode` are those of the two
        pools where there are."""
        self._knowledge = knowledge
        for worker in knowledge.workers:
            worker.tell_no_fit()
        workers = knowledge.workers
        self._prefills = [number for number, worker in enumerate(workers) if worker.role == "prefill"]
        self._decodes = [number for number, worker in enumerate(workers) if worker.role != "prefill"]
        self._positions = {
            number: position for pool in (self._prefills, self._decodes) for position, number in enumerate(pool)
        }
        self._in_flight = [0] * len(workers)
        self._prefill_tokens = [0] * len(workers)
        self._uncached: dict[int, tuple[int, int]] = {}
        """By request whose prompt is not computed yet: where, how many tokens."""
        self._computing = prefill(_facts(workers, self._prefills)) if self._prefills else None
        self._generating = (decode if self._prefills else unified)(_facts(workers, self._decodes))

    def place(self, request: Request, now: float) -> tuple[int, int]:
        held = self._held(request)
        decode_ask = self._ask(request, self._decodes, held, now)
        position = self._generating.choose(decode_ask)
        decode, prefill = self._decodes[position], -1
        uncached = request.input_tokens - decode_ask.seen[position].cached
        if self._computing is not None and not self._generating.local(decode_ask, position):
            ask = self._ask(request, self._prefills, held, now)
            chosen = self._computing.choose(ask)
            prefill = self._prefills[chosen]
            uncached = request.input_tokens - ask.seen[chosen].cached
            self._in_flight[prefill] += 1
        self._in_flight[decode] += 1
        where = decode if prefill < 0 else prefill
        self._prefill_tokens[where] += uncached
        self._uncached[request.number] = where, uncached
        return decode, prefill

    def first_token(self, request: Request, now: float) -> None:
        self._prompt_over(request)

    def _prompt_over(self, request: Request) -> None:
        where, uncached = self._uncached.pop(request.number)
        self._prefill_tokens[where] -= uncached
        if request.prefill < 0:
            self._generating.first_token(request.number, self._positions[where])
            return
        assert self._computing is not None
        self._computing.first_token(request.number, self._positions[where])
        if not self._computing.in_flight_to_end:
            self._prefilled(self._computing, request)

    def finished(self, request: Request, now: float) -> None:
        if request.number in self._uncached:
            self._prompt_over(request)
        if request.prefill >= 0 and self._computing is not None and self._computing.in_flight_to_end:
            self._prefilled(self._computing, request)
        self._in_flight[request.decode] -= 1
        self._generating.finished(request.number, self._positions[request.decode])

    def _prefilled(self, computing: Peer, request: Request) -> None:
        self._in_flight[request.prefill] -= 1
        computing.finished(request.number, self._positions[request.prefill])

    def transferred(self, request: Request, tokens: int, seconds: float) -> None:
        """None of them learns from it."""

    def _held(self, request: Request) -> dict[int, tuple[int, int, int]]:
        """Leading tokens by worker and tier."""
        knowledge, found = self._knowledge, {}
        for worker, held in knowledge.index.longest(knowledge.names(request)).items():
            hbm, total = request.leading(held.hbm), request.leading(held.total)
            nvme = min(total - hbm, held.nvme * request.block_tokens)
            found[knowledge.numbers[worker]] = hbm, total - hbm - nvme, nvme
        return found

    def _ask(
        self, request: Request, pool: Sequence[int], held: dict[int, tuple[int, int, int]], now: float
    ) -> PeerContext:
        seen = [self._seen(number, held.get(number, (0, 0, 0))) for number in pool]
        return PeerContext(request.number, request.blocks, request.block_tokens, request.input_tokens, seen, now)

    def _seen(self, number: int, held: tuple[int, int, int]) -> CandidateView:
        worker = self._knowledge.workers[number]
        load = worker.load
        usage = 1.0 - load.blocks_free / worker.blocks
        return CandidateView(self._in_flight[number], load.waiting, usage, self._prefill_tokens[number], *held)


def _facts(workers: Sequence[Worker], pool: Sequence[int]) -> PoolFacts:
    """Of workers that are all alike."""
    settings = workers[pool[0]].settings
    chunk, time = settings.max_batched_tokens, settings.step_time
    chunk_s = time.mixed(0, 0, chunk, attended(0, chunk))
    return PoolFacts(len(pool), settings.kv_tokens, chunk / chunk_s)
