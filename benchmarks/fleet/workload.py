"""What a simulated fleet is asked: requests whose prompts are named block by block."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from benchmarks.fleet.gaps import Gaps


@dataclass(slots=True, eq=False)
class Request:
    """One request and what became of it. Times are in virtual seconds.

    `blocks` names the prompt in blocks of `block_tokens` (the last may be shorter): equal names at the head of two
    prompts are a shared prefix. `answer` names the whole blocks that the answer adds behind a prompt of whole blocks,
    so that a later prompt can begin with them; an answer without names is found by nobody.
    """

    number: int
    arrival_s: float
    blocks: tuple[int, ...]
    block_tokens: int
    input_tokens: int
    output_tokens: int
    max_tokens: int
    """What the client asked for at most: all that a router knows of the answer's length."""
    answer: tuple[int, ...] = ()
    priority: int = 0
    """Workers take the higher first."""
    deadline_s: float = inf
    """Counted from its arrival: when its answer is not whole by then, it is ended as a miss."""
    patience_s: float = inf
    """Counted from its arrival: the client goes away then, unless its answer is whole."""
    cancelled_s: float = -1.0
    """When its deadline or its client ended it; negative for never."""
    decode: int = -1
    prefill: int = -1
    """Which workers it was placed on; `prefill` is -1 where one worker does both."""
    adapter: str = ""
    """The LoRA adapter that it asks for, by name; blocks that are computed with it have names of their own."""
    retried: int = 0
    """How often it was placed again because a worker of it was lost."""
    sources: tuple[tuple[int, int], ...] = ()
    """Who else has leading blocks that the worker may fetch: (worker, blocks), the best first."""
    held_back_s: float = 0.0
    """How long its client kept it after it was due, because of `Workload.in_flight_max`."""
    begun_s: float = -1.0
    """When its prompt was admitted."""
    first_s: float = -1.0
    end_s: float = -1.0
    emitted: int = 0
    computed: int = 0
    """Prompt tokens that had to be computed, again after a preemption included."""
    chunks: int = 0
    """Steps in which some of its prompt was computed."""
    fetched: int = 0
    """Prompt tokens read from a tier below the pool or from another worker."""
    reused: int = 0
    """Prompt tokens found in the pool at first admission."""
    preempted: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    """Between its tokens, those after a hand-over and a preemption included."""

    def leading(self, blocks: int) -> int:
        """Tokens in the first so many blocks."""
        return min(blocks * self.block_tokens, self.input_tokens)

    @property
    def due_s(self) -> float:
        """When it would have arrived with a client that holds nothing back."""
        return self.arrival_s - self.held_back_s

    @property
    def ended(self) -> bool:
        """Whether its whole answer has come; never of one that was refused."""
        return self.end_s >= 0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time between its tokens; 0 for an answer of one."""
        return (self.end_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def itl_p50_s(self) -> float:
        """Median gap between its tokens; 0 for none."""
        return self.gaps.quantile(0.5)

    @property
    def itl_p99_s(self) -> float:
        """The gap that 99 of 100 do not exceed; 0 for none."""
        return self.gaps.quantile(0.99)

    @property
    def itl_max_s(self) -> float:
        """The longest gap between its tokens; 0 for none."""
        return self.gaps.longest_s


class Source(Protocol):
    """Where a stage's requests come from, one after the other. Times are relative to the begin of the stage."""

    @property
    def next_s(self) -> float | None:
        """When the next request arrives; None while none will before one of those under way has ended, or ever."""
        ...

    def take(self) -> Request:
        """That request."""
        ...

    def ended(self, request: Request, now_s: float) -> None:
        """One of them is over: answered in full, refused or cancelled."""
        ...


class Listed:
    """An open loop, `Source`: requests that come when they come, whatever becomes of those before them."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = iter(requests)
        self._next = next(self._requests, None)

    @property
    def next_s(self) -> float | None:
        return None if self._next is None else self._next.arrival_s

    def take(self) -> Request:
        taken = self._next
        assert taken is not None, "every request of the list has been taken"
        self._next = next(self._requests, None)
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Nothing waits for it."""


@dataclass(frozen=True)
class Stage:
    """A stretch of a workload, reported by itself. `rate` labels it: requests per second, or how many times faster
    than recorded. A warm-up is not reported. With a `source` (a closed loop) `requests` is what it has made so far:
    all of them once the stage has been played."""

    rate: float
    duration_s: float
    requests: Sequence[Request]
    warm_up: bool = False
    source: Source | None = None


@dataclass(frozen=True)
class Workload:
    """Stages one after the other: the next begins `pause_s` after the last request of the one before has ended.

    Arrivals of requests are relative to their stage. A workload is used up by one run: it is built anew for the
    next, by `name` and seed.
    """

    name: str
    stages: tuple[Stage, ...]
    pause_s: float = 1.0
    in_flight_max: int = 1 << 30
    """The client's bound: a request that would exceed it is sent when another has ended, and arrives only then."""

    @property
    def requests(self) -> Sequence[Request]:
        return [request for stage in self.stages for request in stage.requests]
