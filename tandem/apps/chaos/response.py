"""One answer as its client received it: its text, when it came, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from tandem.apps.chaos.drill.requests import DrillRequest

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
"""A typed error, as a status or as an event of the stream."""
BROKEN: Final = "broken"
"""The connection ended before the answer did."""
REFUSED: Final = "refused"
"""The connection was refused."""
WITHOUT_END: Final = "without end"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        return self.text or (self.delta.content if self.delta is not None else None) or ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Problem(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Event(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Problem | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)


@dataclass
class StreamedResponse:
    """One answer so far. Times are on the client's loop clock, seconds."""

    ask: DrillRequest
    request_id: str
    sent_s: float
    end: str = RUNNING
    ended_s: float | None = None
    reason: str = ""
    """The reason for an end that is not `done`."""
    tokens: int | None = None
    """Output tokens that the router counted; None until it has reported them."""
    times_s: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    last_event_id: str = ""
    came_back: bool = False
    """The connection broke and the client asked for the rest."""
    told_error: bool = False
    """The answer itself ended with an error event; there is nothing to come back for."""

    def take(self, data: bytes, now_s: float) -> None:
        """One event of the stream. Raises `msgspec.DecodeError` when it is not what an answer consists of."""
        if data == b"[DONE]":
            self.ended(DONE, now_s)
            return
        event = _EVENT.decode(data)
        if event.error is not None:
            self.told_error = True
            self.ended(FAILED, now_s, f"{event.error.code}: {event.error.message}")
        for choice in event.choices:
            if choice.said:
                self.texts[choice.index] = self.texts.get(choice.index, "") + choice.said
                self.times_s.append(now_s)
            if choice.finish_reason is not None:
                self.finishes[choice.index] = choice.finish_reason
        if event.usage is not None:
            self.tokens = event.usage.completion_tokens

    def ended(self, end: str, now_s: float, reason: str = "") -> None:
        """The first end counts."""
        if self.end == RUNNING:
            self.end, self.ended_s, self.reason = end, now_s, reason

    @property
    def resumed(self) -> bool:
        """Whether it was gone on with after its connection had broken, to its end."""
        return self.came_back and self.end == DONE

    def goes_on(self) -> None:
        """A broken answer is listened to again."""
        self.end, self.ended_s, self.reason = RUNNING, None, ""

    def longest_pause_s(self, since_s: float) -> float:
        """The longest silence that was not over at `since_s`. Waiting for the first token counts from then on only:
        what came before is what any request waits."""
        last = () if self.ended_s is None else (self.ended_s,)
        moments: Sequence[float] = (max(self.sent_s, since_s), *self.times_s, *last)
        return max((after - before for before, after in pairwise(moments) if after >= since_s), default=0.0)


def refusal_of(body: bytes) -> str:
    """Code and message of an error object, or the beginning of what there is instead."""
    try:
        error = _EVENT.decode(body).error
    except msgspec.DecodeError:
        error = None
    return f"{error.code}: {error.message}" if error is not None else body[:200].decode("utf-8", "replace")
