"""Peers' policies at work in a simulated fleet: one for each pool, with the figures their routers would have."""

from collections.abc import Callable, Sequence

from tandem.fleetsim.peers.ask import Peer, PeerAsk, Seen
from tandem.fleetsim.router import Knowledge
from tandem.fleetsim.workload import Request

Pool = Callable[[int], Peer]
"""A policy over so many candidates."""
LocalRule = Callable[[int], bool]
"""Whether a decode worker computes so many uncached prompt tokens itself."""


def _never(uncached: int) -> bool:
    return False


class PeerDecider:
    """`tandem.fleetsim.router.Decider`. Where there are prefill workers every prompt goes through one of them, unless
    `local` says that what the decode worker lacks is too little."""

    def __init__(self, knowledge: Knowledge, computing: Pool, generating: Pool, local: LocalRule = _never) -> None:
        """`computing` is the policy where prompts are computed, `generating` that of workers that only decode."""
        self._knowledge = knowledge
        roles = [worker.role for worker in knowledge.workers]
        self._prefills = [number for number, role in enumerate(roles) if role == "prefill"]
        self._decodes = [number for number, role in enumerate(roles) if role != "prefill"]
        self._local = local
        self._in_flight = [0] * len(roles)
        self._prefill_tokens = [0] * len(roles)
        self._uncached: dict[int, tuple[int, int]] = {}
        """By request whose prompt is not computed yet: where, how many tokens."""
        self._computing = computing(len(self._prefills)) if self._prefills else None
        self._generating = (generating if self._prefills else computing)(len(self._decodes))

    def place(self, request: Request, now: float) -> tuple[int, int]:
        held = self._held(request)
        decode_ask = self._ask(request, self._decodes, held, now)
        position = self._generating.choose(decode_ask)
        decode, prefill = self._decodes[position], -1
        uncached = request.input_tokens - decode_ask.seen[position].cached
        if self._computing is not None and not self._local(uncached):
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
        if request.prefill >= 0:
            self._in_flight[request.prefill] -= 1
            assert self._computing is not None
            position = self._prefills.index(request.prefill)
            self._computing.first_token(request.number, position)
            self._computing.finished(request.number, position)

    def finished(self, request: Request, now: float) -> None:
        if request.first_s < 0:
            self._prompt_over(request)
        self._in_flight[request.decode] -= 1
        self._generating.finished(request.number, self._decodes.index(request.decode))

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
    ) -> PeerAsk:
        seen = [self._seen(number, held.get(number, (0, 0, 0))) for number in pool]
        return PeerAsk(request.number, request.blocks, request.block_tokens, request.input_tokens, seen, now)

    def _seen(self, number: int, held: tuple[int, int, int]) -> Seen:
        worker = self._knowledge.workers[number]
        load = worker.load
        usage = 1.0 - load.blocks_free / worker.blocks
        return Seen(self._in_flight[number], load.waiting, usage, self._prefill_tokens[number], *held)
