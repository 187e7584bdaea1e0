"""Agents: a closed loop of sessions that think between an answer and their next prompt.

A session's next prompt is all that was said before and something new, a tool's result for instance, so most of it
lies where the turn before was answered. So many sessions are under way at a time: where one is over the next begins.
The seed draws the medians, every session its own lengths and pauses, by its place and not by when it begins: two
policies see the same sessions, however fast they answer.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fleet.scenarios.draws import Range, Surge, between, length, log_normal
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.entropy import Entropy, SeededEntropy, below, unit

NAME: Final = "agents"
_HEADS: Final = 1 << 60
"""Names of blocks below it are of sessions, from it on of what sessions of an application have in common."""
_PATIENT: Final = 4
"""A loop that answers slowly is ended after so many times its length, with however few requests."""


@dataclass(frozen=True)
class Agents:
    """Ranges from which a seed draws: medians in tokens and seconds, `spread` the standard deviation of their
    logarithms, `turns` a session's at least and at most, `head` what all sessions of one of `applications` begin
    with. A session whose next prompt would exceed `prompt_max` is over."""

    head: Range = (1_000, 6_000)
    applications: tuple[int, int] = (3, 12)
    task: Range = (200, 2_000)
    new: Range = (300, 2_000)
    answer: Range = (80, 400)
    think_s: Range = (2, 10)
    spread: Range = (0.4, 0.9)
    turns: tuple[int, int] = (4, 20)
    prompt_max: int = 28_000
    answer_max: int = 4_096
    block_tokens: int = 64


@dataclass(frozen=True)
class _Drawn:
    """The seed's own figures."""

    heads: tuple[int, ...]
    task: float
    new: float
    answer: float
    think_s: float
    spread: float


@dataclass(slots=True)
class _Session:
    """`known` tokens have been said so far, of which `head` are its application's."""

    slot: int
    number: int
    entropy: Entropy
    application: int
    head: int
    known: int
    turns: int


@dataclass
class Sessions:
    """`benchmarks.fleet.workload.Source`: `count` sessions at a time, for `duration_s` and until `requests_min` have
    been made. Within the surge there are `factor` times as many."""

    seed: int
    count: int
    duration_s: float
    requests_min: int = 0
    surge: Surge | None = None
    agents: Agents = field(default_factory=Agents)
    requests: list[Request] = field(default_factory=list)
    """All that were made so far."""

    def __post_init__(self) -> None:
        self._entropy = SeededEntropy(self.seed, NAME)
        self._drawn = _drawn(self.agents, self._entropy.fork("kinds"))
        self._begun: dict[int, int] = {}
        self._coming: list[tuple[float, int, _Session]] = []
        """(when, slot, whose next turn comes)."""
        self._waiting: dict[int, _Session] = {}
        """By request under way."""
        for slot in range(self.count):
            self._begin(slot, self._drawn.think_s * (slot + 0.5) / self.count)
        if self.surge is not None:
            extra = max(0, round(self.count * (self.surge.factor - 1)))
            for place in range(extra):
                spread_s = self._drawn.think_s * (place + 0.5) / extra
                self._begin(self.count + place, self.surge.begin_s + spread_s)

    @property
    def next_s(self) -> float | None:
        if not self._coming:
            return None
        at_s = self._coming[0][0]
        enough = at_s >= self.duration_s and len(self.requests) >= self.requests_min
        return None if enough or at_s >= _PATIENT * self.duration_s else at_s

    def take(self) -> Request:
        at_s, _, session = heapq.heappop(self._coming)
        request = self._turn(session, len(self.requests), at_s)
        self.requests.append(request)
        self._waiting[request.number] = session
        return request

    def ended(self, request: Request, now_s: float) -> None:
        """The session thinks and goes on; where it is over, or got no answer, another begins in its place."""
        session = self._waiting.pop(request.number)
        at_s = now_s + log_normal(session.entropy, self._drawn.think_s, self._drawn.spread)
        if session.slot >= self.count and self.surge is not None and at_s >= self.surge.end_s:
            return
        session.known = request.input_tokens + request.output_tokens
        session.turns -= 1
        if session.turns > 0 and request.ended and session.known < self.agents.prompt_max:
            heapq.heappush(self._coming, (at_s, session.slot, session))
        else:
            self._begin(session.slot, at_s)

    def _begin(self, slot: int, at_s: float) -> None:
        """The next session of a slot."""
        turn = self._begun.get(slot, 0)
        self._begun[slot] = turn + 1
        entropy = self._entropy.fork(f"session {slot}/{turn}")
        application = below(entropy, len(self._drawn.heads))
        head = self._drawn.heads[application]
        low, high = self.agents.turns
        turns = low + below(entropy, high - low + 1)
        number = slot << 12 | turn
        heapq.heappush(self._coming, (at_s, slot, _Session(slot, number, entropy, application, head, head, turns)))

    def _turn(self, session: _Session, number: int, at_s: float) -> Request:
        """Its prompt is filled up to whole blocks with what is new, so that names stay those of whole blocks."""
        drawn, size, entropy = self._drawn, self.agents.block_tokens, session.entropy
        median = drawn.task if session.known == session.head else drawn.new
        new = length(entropy, median, drawn.spread, self.agents.prompt_max)
        blocks = -(-min(session.known + new, self.agents.prompt_max + size) // size)
        output = length(entropy, drawn.answer, drawn.spread, self.agents.answer_max)
        names = tuple(_name(session, block, size) for block in range(blocks + output // size))
        return Request(
            number,
            at_s,
            names[:blocks],
            size,
            blocks * size,
            output,
            self.agents.answer_max,
            answer=names[blocks:],
        )


def _drawn(agents: Agents, entropy: Entropy) -> _Drawn:
    low, high = agents.applications
    size = agents.block_tokens
    heads = tuple(
        round(between(entropy, agents.head) / size) * size for _ in range(low + below(entropy, high - low + 1))
    )
    return _Drawn(
        heads=heads,
        task=between(entropy, agents.task),
        new=between(entropy, agents.new),
        answer=between(entropy, agents.answer),
        think_s=between(entropy, agents.think_s),
        spread=agents.spread[0] + (agents.spread[1] - agents.spread[0]) * unit(entropy),
    )


def _name(session: _Session, block: int, size: int) -> int:
    if block * size < session.head:
        return _HEADS | session.application << 32 | block
    return (session.number + 1) << 16 | block


def agents(seed: int, count: int, duration_s: float, requests_min: int = 0, surge: Surge | None = None) -> Workload:
    """`count` sessions at a time, which is also what labels its one stage."""
    sessions = Sessions(seed, count, duration_s, requests_min, surge)
    return Workload(NAME, (Stage(float(count), duration_s, sessions.requests, source=sessions),))
