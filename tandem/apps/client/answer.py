"""What an OpenAI server answers, of either endpoint, streamed or whole, and the errors it answers with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

_SHOWN: Final = 200
_NO_TIERS: Final[Mapping[str, int]] = MappingProxyType({})


class Content(msgspec.Struct, frozen=True):
    """The message of a chat, or what a stream adds to it."""

    content: str | None = None


class AnswerChoice(msgspec.Struct, frozen=True):
    """A choice, or what one event adds to it; only what clients of ours read."""

    index: int = 0
    text: str | None = None
    delta: Content | None = None
    message: Content | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        """The choice's text, under whichever name its endpoint has it."""
        if self.text is not None:
            return self.text
        said = self.delta or self.message
        return (said.content or "") if said is not None else ""


class TokenDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed; by tier where the server is Tandem."""

    cached_tokens: int | None = None
    cached_tokens_by_tier: dict[str, int] | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in a cache."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0

    @property
    def cached_by_tier(self) -> Mapping[str, int]:
        """Prompt tokens found in a cache, by the tier that had them; empty where the server does not say."""
        details = self.prompt_tokens_details
        return (details.cached_tokens_by_tier if details else None) or _NO_TIERS


class ErrorBody(msgspec.Struct, frozen=True):
    """An OpenAI error object."""

    message: str = ""
    code: str | int | None = None
    type: str | None = None

    @property
    def kind(self) -> str:
        """The error's code, or its type, or `unknown`."""
        return str(self.code or self.type or "unknown")


class Piece(msgspec.Struct):
    """One event of an answer, or the whole; other fields are skipped. `time_s` is when it arrived, in seconds of the
    event loop's clock. `error` is None in every piece that `read_piece` gives."""

    id: str = ""
    choices: tuple[AnswerChoice, ...] = ()
    usage: TokenUsage | None = None
    error: ErrorBody | None = None
    time_s: float = 0.0


_PIECE: Final = msgspec.json.Decoder(Piece)


class AnswerFailed(Exception):
    """An answer that is a typed error. `kind` is the error's code (or type), `unknown` where it has neither."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RequestRefused(AnswerFailed):
    """The answer has another status than 200. `retry_after_s` is how long the server asks the client to wait, in
    seconds; None where it does not."""

    def __init__(self, status: int, body: bytes, retry_after_s: int | None = None) -> None:
        error = error_of(body)
        told = f"{error.kind}: {error.message}" if error else body[:_SHOWN].decode("utf-8", "replace")
        super().__init__(error.kind if error else "unknown", f"{status} {told}")
        self.status = status
        self.retry_after_s = retry_after_s


class StreamFailed(AnswerFailed):
    """The stream ended with an error event."""


def error_of(body: bytes) -> ErrorBody | None:
    """The error object in a body; None for a body that has none."""
    try:
        return _PIECE.decode(body).error
    except msgspec.DecodeError:
        return None


def read_piece(data: bytes, time_s: float) -> Piece:
    """An event's data, or the body of a whole answer. Raises `StreamFailed` where it is an error, and
    `msgspec.DecodeError` where it is no part of an answer."""
    piece = _PIECE.decode(data)
    if piece.error is not None:
        raise StreamFailed(piece.error.kind, f"{piece.error.kind}: {piece.error.message}")
    piece.time_s = time_s
    return piece
