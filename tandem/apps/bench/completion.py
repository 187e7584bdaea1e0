"""One streaming completion: the request body, and the answer's deltas turned into an `Outcome`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

from tandem.apps.bench.outcome import UNFINISHED, Outcome
from tandem.apps.client.http import Client, Response
from tandem.apps.client.wire import BadResponse, Events

_BODY_MAX: Final = 4096


@dataclass(frozen=True)
class Style:
    """The form of request that a server understands. `chat` implies text prompts."""

    model: str
    chat: bool = False
    token_ids: bool = True
    ignore_eos: bool = True
    usage: bool = True

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


def request_body(style: Style, prompt: str | list[int], output_tokens: int) -> bytes:
    """The JSON body of a streaming request for exactly `output_tokens`, as far as the server allows a request to fix
    that number."""
    body: dict[str, Any] = {"model": style.model, "stream": True, "max_tokens": output_tokens, "temperature": 0.0}
    if style.chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if style.ignore_eos:
        body["ignore_eos"] = True
    if style.usage:
        body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body)


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.text) or bool(self.delta and self.delta.content)


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Event(msgspec.Struct):
    """One event of a stream, of either endpoint; fields we have no use for are skipped."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class ErrorBody(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    type: str | None = None

    @property
    def kind(self) -> str:
        return str(self.code or self.type or "unknown")


class ErrorResponse(msgspec.Struct):
    error: ErrorBody


@dataclass
class CompletionStream:
    """What a client has received of one answer so far."""

    times_s: list[float] = field(default_factory=list)
    usage: Usage | None = None
    finished: bool = False
    error: str | None = None

    def take(self, data: bytes, now_s: float) -> None:
        """One event's data. Raises `msgspec.DecodeError` when it is not what a completion sends."""
        if data == b"[DONE]":
            return
        event = _EVENT.decode(data)
        if event.error:
            self.error = f"stream:{_ERROR.decode(bytes(event.error)).kind}"
        finished = any(choice.finish_reason for choice in event.choices)
        # An answer of special tokens only has no text; its end is then the one time there is.
        if any(choice.has_text for choice in event.choices) or (finished and not self.times_s):
            self.times_s.append(now_s)
        self.finished = self.finished or finished
        self.usage = event.usage or self.usage

    def outcome(self, scheduled_s: float, sent_s: float, end_s: float, error: str | None) -> Outcome:
        times, usage = self.times_s, self.usage or Usage()
        details = usage.prompt_tokens_details
        return Outcome(
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            # The stream's tail (usage, end marker) is not part of the answer's latency.
            end_s=times[-1] if times and error is None else end_s,
            first_s=times[0] if times else None,
            gaps_s=tuple(after - before for before, after in pairwise(times)),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            output_tokens=usage.completion_tokens or len(times),
            error=error,
        )


_EVENT: Final = msgspec.json.Decoder(Event)
_ERROR: Final = msgspec.json.Decoder(ErrorBody)
_ANSWER: Final = msgspec.json.Decoder(ErrorResponse)


def _nothing(_outcome: Outcome) -> None:
    pass


async def complete(
    client: Client,
    style: Style,
    body: bytes,
    scheduled_s: float,
    begin: float,
    timeout_s: float,
    on_cancel: Callable[[Outcome], None] = _nothing,
) -> Outcome:
    """Run one request to its end and never raise for what the server did. `begin` is loop time 0 of the replay.

    A cancelled call closes its connection and gives `on_cancel` what had arrived until then.
    """
    loop = asyncio.get_running_loop()
    reading = CompletionStream()
    sent_s = loop.time() - begin
    error: str | None
    try:
        async with asyncio.timeout(timeout_s), await client.exchange("POST", style.path, body) as answer:
            error = await _read(answer, reading, begin)
    except TimeoutError:
        error = "timeout"
    except asyncio.CancelledError:
        on_cancel(reading.outcome(scheduled_s, sent_s, loop.time() - begin, UNFINISHED))
        raise
    except ConnectionRefusedError:
        error = "refused"
    except OSError as failure:
        error = f"connection:{type(failure).__name__}"
    except (BadResponse, msgspec.DecodeError) as failure:
        error = f"bad_answer:{type(failure).__name__}"
    return reading.outcome(scheduled_s, sent_s, loop.time() - begin, error)


async def _read(answer: Response, reading: CompletionStream, begin: float) -> str | None:
    """Read the stream into `reading`; gives the kind of error or None."""
    if answer.status != 200:
        return f"http_{answer.status}:{error_kind(await answer.read())}"
    loop = asyncio.get_running_loop()
    events = Events()
    async for piece in answer.pieces():
        now_s = loop.time() - begin
        for data in events.feed(piece):
            reading.take(data, now_s)
    if reading.error:
        return reading.error
    return None if reading.finished else "no_finish"


def error_kind(body: bytes) -> str:
    """The code (or type) of an OpenAI error object, `unknown` for anything else."""
    try:
        return _ANSWER.decode(body[:_BODY_MAX]).error.kind
    except msgspec.DecodeError:
        return "unknown"
