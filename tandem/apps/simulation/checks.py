"""The checks that every simulated client makes while it listens: order, exactly-once, the right tokens, one end."""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.generation import Usage
from tandem.apps.simulation.truth import Truth
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput


class Violation(AssertionError):
    """A broken promise: the message gives the request, the promise, and the observation."""

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


@dataclass
class Outcome:
    """The outcome of one request, for the report. Times are virtual seconds since the router was asked.

    `end` is `done`, `cancelled`, `failed` with a typed `error`, or `disconnected` when its router died.
    """

    request_id: str
    end: str = "running"
    error: str = ""
    reason: str = ""
    asked_s: float = 0.0
    """The virtual time at which the router was asked."""
    tokens: int = 0
    ttft_s: float | None = None
    longest_pause_s: float = 0.0
    away_s: float = 0.0
    """Seconds for which the request's client had no connection."""
    ended_s: float | None = None
    routers: list[str] = field(default_factory=list)
    """The routers that were asked, in order."""


@dataclass
class _Seen:
    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish: str | None = None


class CheckingSink:
    """A `router.generation.Sink` that compares everything it receives with the truth, as it arrives."""

    def __init__(self, request_id: str, truths: tuple[Truth, ...], now: Callable[[], float], arrived: float) -> None:
        self.outcome = Outcome(request_id, asked_s=arrived)
        self._truths = truths
        self._seen = tuple(_Seen() for _ in truths)
        self._now = now
        self._arrived = arrived
        self._last = arrived
        self.ended: Callable[[], None] = lambda: None
        self.cut: Callable[[], None] | None = None
        """Told when the router dies, by a client that comes back; its request is not over then."""
        self.broken: Callable[[Violation], None] = _raise
        """Told of a broken promise. The world notes it and stops; raising here would blame the router's tasks."""

    def output(self, output: SequenceOutput) -> None:
        if self.outcome.end == "disconnected":
            return
        seen, truth = self._seen[output.sequence], self._truths[output.sequence]
        came = len(seen.tokens)
        # Asked for every token: what is wrong is only worded when something is.
        if self.outcome.end != "running" or seen.finish is not None or output.position != came + 1:
            self._misplaced(output.sequence, output.position, seen)
        seen.tokens.extend(output.tokens)
        seen.text.append(output.text)
        if truth.tokens[came : came + len(output.tokens)] != output.tokens:
            wrong = _first_difference(seen.tokens, truth.tokens) + 1
            self._expect(False, f"sequence {output.sequence} wrong tokens from position {wrong}")
        self._note_time(len(output.tokens))
        if output.finish is not None:
            self._finish(seen, truth, output.sequence, output.finish)

    def _misplaced(self, sequence: int, position: int, seen: _Seen) -> None:
        self._expect(self.outcome.end == "running", f"output after the end ({self.outcome.end})")
        self._expect(seen.finish is None, f"sequence {sequence} goes on after finish={seen.finish}")
        came = len(seen.tokens)
        self._expect(position == came + 1, f"sequence {sequence} position {position} came after {came} tokens")

    def done(self, usage: Usage) -> None:
        if self.outcome.end == "disconnected":
            return
        self._expect(all(seen.finish is not None for seen in self._seen), "done before every sequence had finished")
        counted = sum(len(seen.tokens) for seen in self._seen)
        self._expect(
            usage.completion_tokens == counted,
            f"usage says {usage.completion_tokens} tokens, {counted} were delivered",
        )
        self._end("done", "")

    def failed(self, error: TandemError) -> None:
        if self.outcome.end == "disconnected":
            return
        self.outcome.reason = error.message
        self._end("failed", error.code)

    def disconnected(self) -> None:
        """The router died, and the connection with it."""
        if self.cut is not None:
            self.cut()
        else:
            self._end("disconnected", "")

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of tokens of each sequence that have arrived."""
        return tuple(len(seen.tokens) for seen in self._seen)

    def resumed(self) -> None:
        """The client has a connection again; what it waited until now was its own."""
        self._last = self._now()

    def cancelled(self) -> None:
        """The client went away; nothing may come after this."""
        self._end("cancelled", "")

    def _finish(self, seen: _Seen, truth: Truth, sequence: int, finish: str) -> None:
        seen.finish = finish
        self._expect(
            tuple(seen.tokens) == truth.tokens,
            f"sequence {sequence} finished after {len(seen.tokens)} of {len(truth.tokens)} tokens",
        )
        self._expect(finish == truth.finish, f"sequence {sequence} finish={finish}, the truth says {truth.finish}")
        text = "".join(seen.text)
        self._expect(text == truth.text, f"sequence {sequence} text {text!r}, the truth is {truth.text!r}")

    def _note_time(self, tokens: int) -> None:
        now = self._now()
        if self.outcome.ttft_s is None:
            self.outcome.ttft_s = now - self._arrived
        else:
            self.outcome.longest_pause_s = max(self.outcome.longest_pause_s, now - self._last)
        self.outcome.tokens += tokens
        self._last = now

    def _end(self, end: str, error: str) -> None:
        self._expect(self.outcome.end == "running", f"ended twice: {self.outcome.end}, then {end}")
        self.outcome.end = end
        self.outcome.error = error
        self.outcome.ended_s = self._now() - self._arrived
        self.ended()

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken(Violation(f"{self.outcome.request_id}: {what}", self.outcome.request_id))


def _raise(violation: Violation) -> None:
    raise violation


def _first_difference(seen: list[int], right: tuple[int, ...]) -> int:
    for index, (ours, theirs) in enumerate(zip(seen, right, strict=False)):
        if ours != theirs:
            return index
    return min(len(seen), len(right))
