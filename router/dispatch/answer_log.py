"""The answer of a resumable request as far as it is known, for a client that listens now, later, or again.

The log stands between dispatch and the client's sink. A listener joins after the positions that it already has, gets
what came since, and then whatever comes. There is one listener at a time; the next one ends the one before.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from router.generation import Generation, Sink, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

_MERGED_TOKENS: Final = 256
"""Tokens of one sequence that a joining listener gets at once; it need not see them one by one."""


class AnswerLog:
    """A `router.generation.Sink` that keeps everything. Bounded by the request's own `n` and `max_tokens`."""

    def __init__(self, generation: Generation, listener: Sink | None = None) -> None:
        self._outputs: tuple[list[SequenceOutput], ...] = tuple([] for _ in range(generation.n))
        self._most = generation.stopping.max_tokens
        self._end: Usage | TandemError | None = None
        self._listener = listener
        self._sink = listener
        self.on_end: Callable[[TandemError | None], None] = lambda error: None
        """Told of the end after the listener."""
        self.whole = True
        """Whether all that was ever sent is here. It is not when the worker that generated it was lost together with
        the router that sent it; then it is being generated again."""

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def listened_to(self) -> bool:
        return self._listener is not None

    def kept(self) -> tuple[SequenceOutput, ...]:
        """Every output so far, for a worker to keep."""
        return tuple(output for outputs in self._outputs for output in outputs)

    # ---- router.generation.Sink ----

    def output(self, output: SequenceOutput) -> None:
        self._outputs[output.sequence].append(output)
        if self._sink is not None:
            self._sink.output(output)

    def done(self, usage: Usage) -> None:
        self._end = usage
        if self._sink is not None:
            self._sink.done(usage)
        self.on_end(None)

    def failed(self, error: TandemError) -> None:
        self._end = error
        if self._sink is not None:
            self._sink.failed(error)
        self.on_end(error)

    # ---- listening ----

    def chars(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """The length of each sequence's text after `after` tokens of it. Raises `invalid_request` when the stream has
        no such place."""
        if len(after) != len(self._outputs):
            raise _no_place(f"{len(self._outputs)} positions are needed, one for each sequence, not {len(after)}")
        certain = self.whole or isinstance(self._end, Usage)
        for sequence, (outputs, count) in enumerate(zip(self._outputs, after, strict=True)):
            sent = _count(outputs)
            if count > (sent if certain or (outputs and outputs[-1].finish) else self._most):
                raise _no_place(f"sequence {sequence} has {sent} tokens so far, not {count}")
        return tuple(_chars(outputs, count) for outputs, count in zip(self._outputs, after, strict=True))

    def listen(self, sink: Sink, after: tuple[int, ...]) -> None:
        """Send `sink` everything beyond `after` tokens of each sequence, now and from now on. An earlier listener
        fails with `taken_over`. Raises `invalid_request` as `chars` does."""
        self.chars(after)
        before, self._listener, self._sink = self._sink, None, None
        if before is not None:
            before.failed(TandemError("taken_over", "the answer goes on over a newer connection"))
        for outputs, count in zip(self._outputs, after, strict=True):
            for one in _merged(output for output in outputs if output.position > count):
                sink.output(one)
        if isinstance(self._end, Usage):
            sink.done(self._end)
        elif self._end is not None:
            sink.failed(self._end)
        else:
            behind = any(_count(outputs) < count for outputs, count in zip(self._outputs, after, strict=True))
            self._listener, self._sink = sink, Beyond(sink, after) if behind else sink

    def leave(self, sink: Sink) -> bool:
        """Send nothing more to `sink`; False when `sink` is not the current listener."""
        if self._listener is not sink:
            return False
        self._listener = self._sink = None
        return True


class Beyond:
    """A sink from `after` tokens of each sequence on: its client has those before from a router that was further."""

    def __init__(self, sink: Sink, after: tuple[int, ...]) -> None:
        self._sink = sink
        self._after = after
        self.done = sink.done
        self.failed = sink.failed

    def output(self, output: SequenceOutput) -> None:
        if output.position > self._after[output.sequence]:
            self._sink.output(output)


def _merged(outputs: Iterable[SequenceOutput]) -> Iterator[SequenceOutput]:
    """The same outputs in fewer pieces; an output that has logprobs or ends a sequence stays a piece of its own."""
    run: list[SequenceOutput] = []
    for output in outputs:
        plain = not output.logprobs and output.finish is None
        if run and (not plain or len(run) == _MERGED_TOKENS):
            yield _joined(run)
            run = []
        if plain:
            run.append(output)
        else:
            yield output
    if run:
        yield _joined(run)


def _joined(run: list[SequenceOutput]) -> SequenceOutput:
    first = run[0]
    tokens = tuple(token for output in run for token in output.tokens)
    text = "".join(output.text for output in run)
    return SequenceOutput(0, first.sequence, first.position, tokens, text, first.offset)


def _count(outputs: list[SequenceOutput]) -> int:
    return outputs[-1].position + len(outputs[-1].tokens) - 1 if outputs else 0


def _chars(outputs: list[SequenceOutput], count: int) -> int:
    for output in outputs:
        if output.position > count:
            return output.offset
        if output.position + len(output.tokens) - 1 > count:
            raise _no_place(f"position {count} is inside of an event")
    return outputs[-1].offset + len(outputs[-1].text) if outputs else 0


def _no_place(problem: str) -> TandemError:
    return TandemError("invalid_request", f"the stream cannot be resumed there: {problem}", param="Last-Event-ID")
