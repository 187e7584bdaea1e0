"""One streaming completion: the request body, and the answer's deltas turned into an `Outcome`."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from tandem.apps.bench.outcome import UNFINISHED, Outcome
from tandem.apps.client.answer import Piece, RequestRefused, StreamFailed, TokenUsage
from tandem.apps.client.http import Client
from tandem.apps.client.stream import AnswerStream
from tandem.apps.client.wire import BadResponse


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


@dataclass
class CompletionStream:
    """What a client has received of one answer so far. `begin` is loop time 0 of its times, in seconds."""

    begin: float
    times_s: list[float] = field(default_factory=list)
    usage: TokenUsage | None = None
    finished: bool = False

    def take(self, piece: Piece) -> None:
        """The next piece of the answer."""
        finished = any(choice.finish_reason for choice in piece.choices)
        # An answer of special tokens only has no text; its end is then the one time there is.
        if any(choice.content for choice in piece.choices) or (finished and not self.times_s):
            self.times_s.append(piece.time_s - self.begin)
        self.finished = self.finished or finished
        self.usage = piece.usage or self.usage

    def outcome(self, scheduled_s: float, sent_s: float, end_s: float, error: str | None) -> Outcome:
        """The answer as the bench counts it. Times are seconds after `begin`."""
        times, usage = self.times_s, self.usage or TokenUsage()
        return Outcome(
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            # The stream's tail (usage, end marker) is not part of the answer's latency.
            end_s=times[-1] if times and error is None else end_s,
            first_s=times[0] if times else None,
            gaps_s=tuple(after - before for before, after in pairwise(times)),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens or len(times),
            error=error,
        )


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
    received, stream = CompletionStream(begin), AnswerStream(client, style.path, body)
    sent_s = loop.time() - begin
    error: str | None
    try:
        async with asyncio.timeout(timeout_s), aclosing(stream.pieces()) as pieces:
            async for piece in pieces:
                received.take(piece)
        error = None if received.finished else "no_finish"
    except RequestRefused as refused:
        error = f"http_{refused.status}:{refused.kind}"
    except StreamFailed as failure:
        error = f"stream:{failure.kind}"
    except TimeoutError:
        error = "timeout"
    except asyncio.CancelledError:
        on_cancel(received.outcome(scheduled_s, sent_s, loop.time() - begin, UNFINISHED))
        raise
    except ConnectionRefusedError:
        error = "refused"
    except OSError as failure:
        error = f"connection:{type(failure).__name__}"
    except (BadResponse, msgspec.DecodeError) as failure:
        error = f"bad_answer:{type(failure).__name__}"
    return received.outcome(scheduled_s, sent_s, loop.time() - begin, error)
