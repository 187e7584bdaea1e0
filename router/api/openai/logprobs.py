"""Log-probabilities the way OpenAI's two interfaces show them."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from tandem.core.messages import TokenLogprob

_LOGPROB_MIN: Final = -9999.0
"""JSON has no infinities; this is what OpenAI shows for a token that cannot be drawn."""


class Vocabulary(Protocol):
    """The part of a renderer that log-probabilities need."""

    def token_bytes(self, token: int) -> bytes: ...


class _ChatAlternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class _ChatToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[_ChatAlternative, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a chat choice."""

    content: tuple[_ChatToken, ...]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a completion choice; `text_offset` counts characters from the start of the answer. A prompt's
    first token has no log-probability."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


def token_text(token: int, vocabulary: Vocabulary) -> str:
    """A token's bytes as text; what is not UTF-8 by itself shows as U+FFFD."""
    return vocabulary.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(tokens: Sequence[int], drawn: Sequence[TokenLogprob], vocabulary: Vocabulary) -> ChatLogprobs:
    """One entry per token, with its alternatives."""
    entries = []
    for token, logprob in zip(tokens, drawn, strict=True):
        top = tuple(
            _ChatAlternative(
                token_text(other.token, vocabulary),
                finite(other.logprob),
                tuple(vocabulary.token_bytes(other.token)),
            )
            for other in logprob.top
        )
        raw = tuple(vocabulary.token_bytes(token))
        entries.append(_ChatToken(token_text(token, vocabulary), finite(logprob.logprob), raw, top))
    return ChatLogprobs(tuple(entries))


def completion_logprobs(
    tokens: Sequence[int], drawn: Sequence[TokenLogprob], vocabulary: Vocabulary, offset: int
) -> CompletionLogprobs:
    """Four parallel lists. The drawn token is always among `top_logprobs`, as clients expect."""
    texts = tuple(token_text(token, vocabulary) for token in tokens)
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    tops = []
    for text, logprob in zip(texts, drawn, strict=True):
        top = {token_text(other.token, vocabulary): finite(other.logprob) for other in logprob.top}
        top.setdefault(text, finite(logprob.logprob))
        tops.append(top)
    values = tuple(finite(logprob.logprob) for logprob in drawn)
    return CompletionLogprobs(texts, values, tuple(tops), tuple(offsets))


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, _LOGPROB_MIN)
