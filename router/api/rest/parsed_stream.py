"""Server-sent events of answers that are read for reasoning and tool calls, resumable or not."""

from collections.abc import Sequence

from router.api.openai.parsed import ParsedChatFormat
from router.api.parsed_output import GenerationParser
from router.api.response import PACE_EVERY, ApiResponse, Part
from router.api.rest.resumable_sse import ResumableAnswer
from router.api.rest.sse import StreamedAnswer
from router.api.resumption import place_bytes
from router.http_server.response_writer import Header, ResponseWriter
from tandem.core.messages import SequenceOutput


class ParsedStream(StreamedAnswer):
    """A `StreamedAnswer` with deltas of content, reasoning and tool calls."""

    def __init__(
        self,
        outlet: ResponseWriter,
        form: ParsedChatFormat,
        headers: Sequence[Header],
        sequences: int,
        include_usage: bool,
    ) -> None:
        super().__init__(outlet, form, headers, sequences, include_usage)
        self._spoken = form

    def part(self, exchange: ApiResponse, number: int) -> Part:
        return _ParsedPart(self, exchange, number, self._outlet, self._spoken, self._sequences)


class ResumableParsedStream(ResumableAnswer):
    """A `ResumableAnswer` whose sink receives the answer from its beginning (`from_start`)."""

    from_start = True

    def __init__(
        self,
        outlet: ResponseWriter,
        form: ParsedChatFormat,
        headers: Sequence[Header],
        include_usage: bool,
        after: tuple[int, ...],
        chars: tuple[int, ...],
    ) -> None:
        super().__init__(outlet, form, headers, include_usage, after, chars)
        self._spoken = form

    def part(self, exchange: ApiResponse, number: int) -> Part:
        assert number == 0, "a resumable request has one prompt"
        return _ResumableParsedPart(self, exchange, self._spoken, self._positions, self._chars)


class _ParsedPart(Part):
    """The sink of one generation of a stream."""

    __slots__ = ("_answer", "_begun", "_form", "_hearing", "_outlet")

    def __init__(
        self,
        answer: ParsedStream,
        exchange: ApiResponse,
        number: int,
        outlet: ResponseWriter,
        form: ParsedChatFormat,
        sequences: int,
    ) -> None:
        super().__init__(exchange, number, sequences)
        self._answer = answer
        self._outlet = outlet
        self._form = form
        self._hearing = GenerationParser(form.output_parser, self.base, (0,) * sequences)
        self._begun = [False] * sequences

    def output(self, output: SequenceOutput) -> None:
        if self.exchange.ended:
            return
        index, body = self.base + output.sequence, b""
        self.delivered += len(output.tokens)
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(index, output.position)
        if not self._begun[output.sequence]:
            self._begun[output.sequence] = True
            self.exchange.first_output()
            self._answer.begin()
            body = self._form.opening(index)
        heard = self._hearing.hear(output.sequence, output.position, len(output.tokens), output.text, output.finish)
        if heard is not None:
            shown = self._form.logprobs(output.tokens, output.logprobs, 0) if output.logprobs else None
            body += self._form.said(index, heard.said, shown, heard.finish, output.stop_reason)
        if body:
            self._outlet.write(body)


class _ResumableParsedPart(Part):
    """The sink of a resumable generation; every event has its place in the answer as id."""

    __slots__ = ("_answer", "_form", "_hearing", "_positions")

    def __init__(
        self,
        answer: ResumableParsedStream,
        exchange: ApiResponse,
        form: ParsedChatFormat,
        positions: list[int],
        chars: list[int],
    ) -> None:
        super().__init__(exchange, 0, len(positions))
        self._answer = answer
        self._form = form
        self._positions = positions
        self._hearing = GenerationParser(form.output_parser, 0, tuple(positions), tuple(chars))

    def output(self, output: SequenceOutput) -> None:
        if self.exchange.ended:
            return
        heard = self._hearing.hear(output.sequence, output.position, len(output.tokens), output.text, output.finish)
        if heard is None:
            return
        self.delivered += len(output.tokens) - heard.skipped
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(output.sequence, output.position)
        sequence, events = output.sequence, b""
        if output.position == 1 and not heard.skipped:
            events = self._numbered(self._form.opening(sequence))
        self._positions[sequence] = output.position + len(output.tokens) - 1
        drawn = output.logprobs[heard.skipped :]
        shown = self._form.logprobs(output.tokens[heard.skipped :], drawn, 0) if drawn else None
        events += self._numbered(self._form.said(sequence, heard.said, shown, heard.finish, output.stop_reason))
        self.exchange.first_output()
        self._answer.begin()
        if events:
            self._answer.write(events)

    def _numbered(self, event: bytes) -> bytes:
        return b"id: %b\n%b" % (place_bytes(self._positions), event) if event else b""
