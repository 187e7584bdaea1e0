"""Resumable requests at the front door: what another router needs to write the same answer, and where to go on."""

import re
from typing import Final, Protocol

import msgspec

from router.api.openai.answer import ChatFormat, CompletionFormat, Format, Label
from router.api.openai.logprobs import Vocabulary
from router.api.openai.parsed import ParsedChatFormat
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.parsers.output import ParserSpec
from router.generation import Generation, Resumed, Running, Sink
from tandem.core.errors import TandemError

LAST_EVENT_ID: Final = "Last-Event-ID"
_PLACE: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10}){0,255}")


class ResumeContext(msgspec.Struct, frozen=True):
    """The part of a request that is not about tokens. It travels with the request as `Generation.resume`."""

    chat: bool
    model: str
    created: int
    include_usage: bool
    speech: ParserSpec | None = None


def encode_resume_context(
    request: ChatRequest | CompletionRequest, received_wall: float, speech: ParserSpec | None = None
) -> bytes | None:
    """The encoded context for `Generation.resume`; None when the client did not ask for a resumable stream."""
    if not request.resumable:
        return None
    usage = bool(request.stream_options is not None and request.stream_options.include_usage)
    chat = isinstance(request, ChatRequest)
    return msgspec.msgpack.encode(ResumeContext(chat, request.model, int(received_wall), usage, speech))


def decode_resume_context(generation: Generation) -> ResumeContext:
    """The resume context of a resumable request."""
    assert generation.resume is not None, f"{generation.request_id} is not resumable"
    return msgspec.msgpack.decode(generation.resume, type=ResumeContext)


def form_of(facts: ResumeContext, request_id: str, vocabulary: Vocabulary, source: str) -> Format:
    """The format of the first router and of every later one; `source` as `source_of` gives it."""
    label = Label(request_id, facts.created, facts.model, facts.include_usage)
    if facts.speech is not None:
        return ParsedChatFormat(label, vocabulary, facts.speech, source)
    return ChatFormat(label, vocabulary) if facts.chat else CompletionFormat(label, vocabulary)


def source_of(generation: Generation) -> str:
    """The string from which the ids of a request's tool calls are drawn: the request's own, and the same on every
    router."""
    return f"{generation.trace.span_id}\x00{generation.trace.trace_id}"


def place_bytes(positions: list[int]) -> bytes:
    """A place in an answer as event id: how many tokens of each sequence have been sent."""
    return b".".join(b"%d" % position for position in positions)


def place_of(event_id: str | None, sequences: int) -> tuple[int, ...]:
    """The place that an event id names; the start when there is none. Raises `invalid_request`."""
    if not event_id:
        return (0,) * sequences
    if not _PLACE.fullmatch(event_id):
        shown = event_id if len(event_id) <= 40 else f"{event_id[:40]}…"
        raise TandemError("invalid_request", f"{LAST_EVENT_ID}: {shown!r} is no event id", param=LAST_EVENT_ID)
    return tuple(int(position) for position in event_id.split("."))


class Gathers(Protocol):
    """An answer that can take much output at once. One that parses its output sets `from_start` to receive it from
    the beginning, and leaves out what its client already has."""

    from_start: bool

    def gather(self) -> None:
        """Hold back what comes."""
        ...

    def flush(self) -> None:
        """Send what was held back, in one piece."""
        ...


class ResumedStarter:
    """Starts an exchange in the middle of an answer: its generation runs already."""

    def __init__(self, resumed: Resumed, after: tuple[int, ...], answer: Gathers) -> None:
        self._resumed = resumed
        self._after = after
        self._answer = answer

    def start(self, generation: Generation, sink: Sink) -> Running:
        """`router.api.response.Starter.start`. Raises `invalid_request` when the place is none of this answer."""
        self._answer.gather()
        after = (0,) * len(self._after) if self._answer.from_start else self._after
        running = self._resumed.listen(sink, after)
        self._answer.flush()
        return running
