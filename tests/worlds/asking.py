"""Requests and answers as values, for comparing one way of serving a prompt with another."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from router.generation import Generation, Usage
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import SequenceOutput, TokenLogprob
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Ask:
    """A request before it has an identity. `about` says in a few words what it is there to try."""

    about: str
    prompt: tuple[int, ...]
    stopping: Stopping
    sampling: Sampling = GREEDY
    n: int = 1
    seed: int = 7

    def generation(self, request_id: str, model: str, now: float, wall: float) -> Generation:
        """The request as the front door would hand it to dispatch."""
        return Generation(
            request_id=request_id,
            model=model,
            tenant="tenant",
            tenant_salt="",
            prompt=pack_tokens(self.prompt),
            n=self.n,
            seed=self.seed,
            sampling=self.sampling,
            stopping=self.stopping,
            timeout_s=120.0,
            received=now,
            received_wall=wall,
            trace=TraceContext("ab" * 16, "cd" * 8),
        )


@dataclass(frozen=True)
class Spoken:
    """One sequence of an answer. `logprobs` are left out of comparisons: they are numbers, not tokens."""

    tokens: tuple[int, ...]
    text: str
    finish: str | None
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Answer:
    """What a client got. `error` is the code the request failed with."""

    sequences: tuple[Spoken, ...]
    error: str = ""
    usage: Usage | None = field(default=None, compare=False)


@dataclass
class _Heard:
    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None


class Listener:
    """A `router.generation.Sink` that insists on order and exactly-once, and keeps what it hears.

    `on_output` is called with the number of tokens heard so far, all sequences together.
    """

    def __init__(self, n: int, on_output: Callable[[int], None] = lambda _count: None) -> None:
        self.ended = asyncio.Event()
        self._heard = [_Heard() for _ in range(n)]
        self._on_output = on_output
        self._usage: Usage | None = None
        self._error = ""
        self._broken: list[str] = []

    @property
    def tokens(self) -> int:
        return sum(len(each.tokens) for each in self._heard)

    def output(self, output: SequenceOutput) -> None:
        heard = self._heard[output.sequence]
        if self.ended.is_set() or heard.finish is not None or output.position != len(heard.tokens) + 1:
            where = f"position {output.position} after {len(heard.tokens)} tokens"
            self._broken.append(f"sequence {output.sequence}: {where}")
        heard.tokens.extend(output.tokens)
        heard.text.append(output.text)
        heard.logprobs.extend(output.logprobs)
        heard.finish, heard.stop_reason = output.finish, output.stop_reason
        self._on_output(self.tokens)

    def done(self, usage: Usage) -> None:
        self._usage = usage
        self.ended.set()

    def failed(self, error: TandemError) -> None:
        self._error = error.code
        self.ended.set()

    def answer(self) -> Answer:
        """Everything heard. A stream that broke a promise on the way is an `AssertionError`."""
        assert not self._broken, "; ".join(self._broken)
        return Answer(tuple(_spoken(each) for each in self._heard), self._error, self._usage)


def _spoken(heard: _Heard) -> Spoken:
    return Spoken(tuple(heard.tokens), "".join(heard.text), heard.finish, heard.stop_reason, tuple(heard.logprobs))
