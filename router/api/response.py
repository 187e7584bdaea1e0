"""One client's request while it runs: its generations, their sinks, and the one answer they end in.

Both public interfaces share this; they differ in the `Answer` that gets the tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from router.api.openai.answer import total
from router.api.status import furthest_behind
from router.generation import Generation, RequestStatus, Running, Sink, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

PACE_EVERY: Final = 16
"""Gaps between tokens are measured after every so many tokens of a request's first sequence: often enough for a
histogram, seldom enough not to be noticed."""


class Starter(Protocol):
    """Starts a generation, or joins one (`router.generation.Generator`, in part)."""

    def start(self, generation: Generation, sink: Sink) -> Running: ...


class Answer(Protocol):
    """The destination of an exchange's output. Exactly one of `finish` and `fail` is called, once."""

    def part(self, exchange: "ApiResponse", number: int) -> "Part":
        """The sink of generation `number`."""
        ...

    def finish(self, usage: Usage) -> None:
        """All generations are done; `usage` is their sum."""
        ...

    def fail(self, error: TandemError) -> None:
        """The request ends here with an error."""
        ...


class Part(ABC):
    """The sink of one of an exchange's generations. `base` is the index of its first sequence in the answer."""

    __slots__ = ("base", "delivered", "exchange", "number")

    def __init__(self, exchange: "ApiResponse", number: int, sequences: int) -> None:
        self.exchange = exchange
        self.number = number
        self.base = number * sequences
        self.delivered = 0
        """Tokens handed on so far."""

    @abstractmethod
    def output(self, output: SequenceOutput) -> None:
        """`router.generation.Sink.output`."""

    def done(self, usage: Usage) -> None:
        """`router.generation.Sink.done`."""
        self.exchange.part_done(self.number, usage)

    def failed(self, error: TandemError) -> None:
        """`router.generation.Sink.failed`."""
        self.exchange.fail(error)


class ResponseEnd(msgspec.Struct, frozen=True):
    """The end of an exchange. `error` is None when the exchange was answered; times are on the router's clock."""

    error: TandemError | None
    usage: Usage | None
    delivered: int
    first_output: float | None
    at: float


class ResponseCallbacks(msgspec.Struct, frozen=True):
    """Callbacks of an exchange: `now` gives the time, `on_gap` receives sampled gaps between tokens, and `on_end`
    receives the end of the exchange, once."""

    now: Callable[[], float]
    on_gap: Callable[[float], None]
    on_end: Callable[[ResponseEnd], None]


class ApiResponse:
    """Starts generations, ends them together, and reports its end exactly once."""

    def __init__(self, generations: Sequence[Generation], answer: Answer, reports: ResponseCallbacks) -> None:
        self.generations = tuple(generations)
        self.ended = False
        self._answer = answer
        self._reports = reports
        self._parts: list[Part] = []
        self._running: list[Running] = []
        self._usages: list[Usage | None] = [None] * len(self.generations)
        self._first_output: float | None = None
        self._paced_at: float | None = None

    def start(self, generator: Starter) -> None:
        """Dispatch every generation. A refusal ends the exchange; it is not raised."""
        for number, generation in enumerate(self.generations):
            if self.ended:
                return
            part = self._answer.part(self, number)
            self._parts.append(part)
            try:
                running = generator.start(generation, part)
            except TandemError as error:
                self.fail(error)
                return
            self._running.append(running)

    def standing(self) -> RequestStatus:
        """The current status of the exchange, as long as it has not ended."""
        running = [one.standing() for one, usage in zip(self._running, self._usages, strict=False) if usage is None]
        return furthest_behind(running, sum(part.delivered for part in self._parts))

    def first_output(self) -> None:
        """Something is about to reach the client."""
        if self._first_output is None:
            self._first_output = self._reports.now()

    def pace(self, index: int, position: int) -> None:
        """Called at positions 0 and 1 modulo `PACE_EVERY`: their gap is a sample."""
        if index != 0:
            return
        now = self._reports.now()
        if position % PACE_EVERY == 0:
            self._paced_at = now
        elif self._paced_at is not None:
            self._reports.on_gap(now - self._paced_at)
            self._paced_at = None

    def part_done(self, number: int, usage: Usage) -> None:
        """One generation has finished; the last one finishes the answer."""
        if self.ended:
            return
        self._usages[number] = usage
        if None in self._usages:
            return
        self.ended = True
        if len(self._usages) > 1:
            usage = total([each for each in self._usages if each is not None])
        self._answer.finish(usage)
        self._report(None, usage)

    def fail(self, error: TandemError) -> None:
        """Stop every generation and report the error to the client. Does nothing once the exchange has ended."""
        if self.ended:
            return
        self.ended = True
        self._cancel(error.code)
        self._answer.fail(error)
        self._report(error, None)

    def abandon(self, reason: str) -> None:
        """Stop every generation when no client is left to answer."""
        if self.ended:
            return
        self.ended = True
        self._cancel(reason)
        self._report(TandemError("cancelled", reason), None)

    def _cancel(self, reason: str) -> None:
        for number, running in enumerate(self._running):
            if self._usages[number] is None:
                running.cancel(reason)

    def _report(self, error: TandemError | None, usage: Usage | None) -> None:
        delivered = 0
        for part in self._parts:
            delivered += part.delivered
        # They refer to this exchange as well: let go of them, and nobody has to look for what is left.
        self._parts, self._running = [], []
        self._reports.on_end(ResponseEnd(error, usage, delivered, self._first_output, self._reports.now()))
