"""The two shapes of an HTTP answer: a stream of server-sent events, and one JSON body."""

from collections.abc import Sequence
from typing import Final

import msgspec

from router.api.errors import error_headers, error_json, for_client
from router.api.openai.answer import DONE, Choice, Format
from router.api.response import PACE_EVERY, ApiResponse, Part
from router.generation import Usage
from router.http_server.response_writer import Header, ResponseWriter
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput, TokenLogprob

_encode: Final = msgspec.json.Encoder().encode
_JSON: Final = (b"content-type", b"application/json")
_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def respond(outlet: ResponseWriter, status: int, body: bytes, headers: Sequence[Header]) -> None:
    """A whole JSON response."""
    outlet.whole(status, (_JSON, (b"content-length", b"%d" % len(body)), *headers), body)


def respond_error(outlet: ResponseWriter, error: TandemError, headers: Sequence[Header]) -> None:
    """An error as a whole response."""
    shown = for_client(error)
    respond(outlet, shown.kind.http, error_json(shown), [*error_headers(shown), *headers])


def begin_error(outlet: ResponseWriter, error: TandemError, headers: Sequence[Header]) -> None:
    """Like `respond_error`, but the response is left open for the caller to `end`."""
    body = error_json(for_client(error))
    outlet.start(error.kind.http, [_JSON, (b"content-length", b"%d" % len(body)), *headers])
    outlet.write(body)


class StreamedAnswer:
    """Server-sent events. The response starts with the first output, so that a failure before it has a status."""

    def __init__(
        self, outlet: ResponseWriter, form: Format, headers: Sequence[Header], sequences: int, include_usage: bool
    ) -> None:
        """`sequences` is n, the sequences of each generation."""
        self._outlet = outlet
        self._form = form
        self._headers = headers
        self._sequences = sequences
        self._include_usage = include_usage

    def part(self, exchange: ApiResponse, number: int) -> Part:
        return _StreamedPart(self, exchange, number, self._outlet, self._form, self._sequences)

    def begin(self) -> None:
        """Send status and headers unless they are sent."""
        if not self._outlet.started:
            self._outlet.start(200, [*_STREAM, *self._headers], streamed=True)

    def finish(self, usage: Usage) -> None:
        self.begin()
        self._outlet.end((self._form.usage(usage) if self._include_usage else b"") + DONE)

    def fail(self, error: TandemError) -> None:
        if self._outlet.started:
            self._outlet.end(b"data: " + error_json(for_client(error)) + b"\n\n")
        else:
            respond_error(self._outlet, error, self._headers)


class _StreamedPart(Part):
    """The sink of one generation of a stream: every output is one event, written in the same call."""

    __slots__ = ("_answer", "_form", "_heads", "_outlet", "_tail")

    def __init__(
        self,
        answer: StreamedAnswer,
        exchange: ApiResponse,
        number: int,
        outlet: ResponseWriter,
        form: Format,
        sequences: int,
    ) -> None:
        super().__init__(exchange, number, sequences)
        self._answer = answer
        self._form = form
        self._outlet = outlet
        self._heads = [b""] * sequences
        """The bytes before the text of each sequence; empty until its first event. A stream is visited once per step,
        when nothing of it is left in the processor's cache: the fewer objects a token needs, the better."""
        self._tail = form.tail

    def output(self, output: SequenceOutput) -> None:
        self.delivered += len(output.tokens)
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(self.base + output.sequence, output.position)
        head = self._heads[output.sequence]
        if head and output.finish is None and output.text and not output.logprobs:
            body, wire = head + _encode(output.text) + self._tail, self._outlet.wire
            if wire is None or not wire.write(body):
                self._outlet.write_on(body)
        else:
            self._more_than_text(output)

    def _more_than_text(self, output: SequenceOutput) -> None:
        if self.exchange.ended:
            return
        index = self.base + output.sequence
        body = b""
        if not self._heads[output.sequence]:
            self._heads[output.sequence] = self._form.head(index)
            self.exchange.first_output()
            self._answer.begin()
            body = self._form.opening(index)
        if output.logprobs or output.finish is not None:
            drawn = output.logprobs
            shown = self._form.logprobs(output.tokens, drawn, output.offset) if drawn else None
            body += self._form.piece(index, output.text, shown, output.finish, output.stop_reason)
        elif output.text:
            body += self._heads[output.sequence] + _encode(output.text) + self._tail
        if body:
            self._outlet.write(body)


class CollectedAnswer:
    """One JSON body with all choices."""

    def __init__(self, outlet: ResponseWriter, form: Format, headers: Sequence[Header], sequences: int) -> None:
        self._outlet = outlet
        self._form = form
        self._headers = headers
        self._sequences = sequences
        self._parts: list[_CollectedPart] = []

    def part(self, exchange: ApiResponse, number: int) -> Part:
        part = _CollectedPart(exchange, number, self._sequences)
        self._parts.append(part)
        return part

    def finish(self, usage: Usage) -> None:
        choices = [choice for part in self._parts for choice in part.choices()]
        self._parts.clear()
        respond(self._outlet, 200, self._form.whole(choices, usage), self._headers)

    def fail(self, error: TandemError) -> None:
        respond_error(self._outlet, error, self._headers)


class _Collected(msgspec.Struct):
    """The output collected from one sequence."""

    texts: list[str]
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish: str = "stop"
    stop_reason: str | int | None = None


class _CollectedPart(Part):
    """The sink of one generation whose output is wanted as a whole."""

    __slots__ = ("_collected",)

    def __init__(self, exchange: ApiResponse, number: int, sequences: int) -> None:
        super().__init__(exchange, number, sequences)
        self._collected = [_Collected([], [], []) for _ in range(sequences)]

    def output(self, output: SequenceOutput) -> None:
        self.delivered += len(output.tokens)
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(self.base + output.sequence, output.position)
        collected = self._collected[output.sequence]
        if not collected.tokens:
            self.exchange.first_output()
        collected.texts.append(output.text)
        collected.tokens.extend(output.tokens)
        collected.logprobs.extend(output.logprobs)
        if output.finish is not None:
            collected.finish, collected.stop_reason = output.finish, output.stop_reason

    def choices(self) -> list[Choice]:
        """The sequences in order."""
        return [
            Choice(self.base + number, "".join(one.texts), one.tokens, one.logprobs, one.finish, one.stop_reason)
            for number, one in enumerate(self._collected)
        ]
