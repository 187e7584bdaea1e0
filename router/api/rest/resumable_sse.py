"""A stream of server-sent events that can be resumed: every event carries its place in the answer as `id`."""

from collections.abc import Sequence

import msgspec

from router.api.errors import error_json, for_client
from router.api.openai.answer import DONE, Format
from router.api.response import PACE_EVERY, ApiResponse, Part
from router.api.rest.sse import StreamedAnswer
from router.api.resumption import place_bytes
from router.generation import Usage
from router.http_server.response_writer import Header, ResponseWriter
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

_encode = msgspec.json.Encoder().encode


class ResumableAnswer(StreamedAnswer):
    """A `StreamedAnswer` for one generation. It begins after `after` tokens of each sequence, whose texts are `chars`
    long."""

    from_start = False

    def __init__(
        self,
        outlet: ResponseWriter,
        form: Format,
        headers: Sequence[Header],
        include_usage: bool,
        after: tuple[int, ...],
        chars: tuple[int, ...],
    ) -> None:
        super().__init__(outlet, form, headers, len(after), include_usage)
        self._positions = list(after)
        self._chars = list(chars)
        self._gathered: list[bytes] | None = None

    def part(self, exchange: ApiResponse, number: int) -> Part:
        assert number == 0, "a resumable request has one prompt"
        return _ResumablePart(self, exchange, self._form, self._positions)

    def write(self, event: bytes) -> None:
        """Send events, now or with the others that are gathered."""
        if self._gathered is None:
            self._outlet.write(event)
        else:
            self._gathered.append(event)

    def gather(self) -> None:
        self._gathered = []

    def flush(self) -> None:
        self.begin()
        if events := self._taken():
            self._outlet.write(events)

    def finish(self, usage: Usage) -> None:
        self.begin()
        place = self._id()
        last = place + self._form.usage(usage) if self._include_usage else b""
        self._outlet.end(self._taken() + last + place + DONE)

    def fail(self, error: TandemError) -> None:
        events = self._taken()
        if self._outlet.started:
            self._outlet.end(events + self._id() + b"data: " + error_json(for_client(error)) + b"\n\n")
        else:
            super().fail(error)

    def _taken(self) -> bytes:
        gathered, self._gathered = self._gathered, None
        return b"".join(gathered) if gathered else b""

    def _id(self) -> bytes:
        return b"id: %b\n" % place_bytes(self._positions)


class _ResumablePart(Part):
    """The sink of the generation. A sequence's opening event carries the id of what was sent before it, so that it is
    not mistaken for the sequence's first token."""

    __slots__ = ("_answer", "_form", "_heads", "_positions", "_tail")

    def __init__(self, answer: ResumableAnswer, exchange: ApiResponse, form: Format, positions: list[int]) -> None:
        super().__init__(exchange, 0, len(positions))
        self._answer = answer
        self._form = form
        self._positions = positions
        self._heads = [form.head(sequence) for sequence in range(len(positions))]
        self._tail = form.tail

    def output(self, output: SequenceOutput) -> None:
        if self.exchange.ended:
            return
        self.delivered += len(output.tokens)
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(output.sequence, output.position)
        sequence, text, drawn = output.sequence, output.text, output.logprobs
        events = self._opening(sequence) if output.position == 1 else b""
        self._positions[sequence] = output.position + len(output.tokens) - 1
        if drawn or output.finish is not None:
            shown = self._form.logprobs(output.tokens, drawn, output.offset) if drawn else None
            events += self._id() + self._form.piece(sequence, text, shown, output.finish, output.stop_reason)
        elif text:
            events += self._id() + self._heads[sequence] + _encode(text) + self._tail
        self.exchange.first_output()
        self._answer.begin()
        if events:
            self._answer.write(events)

    def _opening(self, sequence: int) -> bytes:
        opening = self._form.opening(sequence)
        return self._id() + opening if opening else b""

    def _id(self) -> bytes:
        return b"id: %b\n" % place_bytes(self._positions)
