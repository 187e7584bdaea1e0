"""Answers of the OpenAI REST interface: whole bodies, and the events of a stream.

A stream's events differ only in a few characters. Everything before and after a piece of text is written once per
sequence (`Format.head`, `Format.tail`); a token then costs one JSON string and one concatenation.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Final, Protocol

import msgspec

from router.api.openai.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    Vocabulary,
    chat_logprobs,
    completion_logprobs,
)
from router.api.openai.scoring import Scoring, echoed_logprobs, prompt_entries, scored
from router.generation import Usage
from tandem.core.kv import unpack_tokens
from tandem.core.messages import PromptLogprob, TokenLogprob
from tandem.core.tiers import TIERS, summed

encode: Final = msgspec.json.Encoder().encode

DONE: Final = b"data: [DONE]\n\n"
_NOTHING_CACHED: Final = dict.fromkeys(TIERS, 0)


class Label(msgspec.Struct, frozen=True, gc=False):
    """The fields that every part of one answer repeats. `usage_follows` adds the empty `usage` field that clients
    then expect."""

    id: str
    created: int
    model: str
    usage_follows: bool = False
    prompts: tuple[bytes, ...] = ()
    """The prompts (packed token ids), when the answer is to have token ids; otherwise empty."""
    scoring: Scoring | None = None
    """What the answer shows of its prompts besides their token ids."""

    def prompt_ids(self, index: int, choices: int) -> tuple[int, ...]:
        """The prompt's tokens of one of so many choices, which are numbered prompt by prompt."""
        return unpack_tokens(self.prompts[index * len(self.prompts) // choices])


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One finished sequence."""

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: str
    stop_reason: str | int | None


class Format(Protocol):
    """Writes the answers of one flavour of the interface."""

    @property
    def tail(self) -> bytes:
        """Bytes that follow a piece of text (a JSON string)."""
        ...

    def head(self, index: int) -> bytes:
        """Bytes that precede a piece of text of one sequence."""
        ...

    def opening(self, index: int) -> bytes:
        """The event that announces a sequence; empty when there is none."""
        ...

    def piece(self, index: int, text: str, logprobs: Any, finish: str | None, stop_reason: str | int | None) -> bytes:
        """An event with more than text."""
        ...

    def logprobs(self, tokens: Sequence[int], drawn: Sequence[TokenLogprob], offset: int) -> Any:
        """Log-probabilities as this flavour shows them; `offset` is where the first token's text starts."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The event that closes a stream with its counts."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class ChatFormat:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, label: Label, vocabulary: Vocabulary) -> None:
        self._label = label
        self._vocabulary = vocabulary

    @cached_property
    def _open(self) -> bytes:
        return _opening(self._label, "chat.completion.chunk")

    @cached_property
    def _close(self) -> bytes:
        return _closing(self._label)

    @cached_property
    def tail(self) -> bytes:
        return _tail(b"}", self._close)

    def head(self, index: int) -> bytes:
        return self._open + b'{"index":%d,"delta":{"content":' % index

    def opening(self, index: int) -> bytes:
        return self._open + b'{"index":%d,"delta":{"role":"assistant","content":""' % index + self.tail

    def piece(self, index: int, text: str, logprobs: Any, finish: str | None, stop_reason: str | int | None) -> bytes:
        delta = {"content": text} if text or logprobs is not None else {}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._open + encode(with_reason(choice, stop_reason)) + b"]" + _closing(self._label)

    def logprobs(self, tokens: Sequence[int], drawn: Sequence[TokenLogprob], offset: int) -> ChatLogprobs:
        return chat_logprobs(tokens, drawn, self._vocabulary)

    def usage(self, usage: Usage) -> bytes:
        return self._open + b'],"usage":' + encode(usage_object(usage)) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        more: dict[str, Any] = {"prompt_token_ids": self._label.prompt_ids(0, 1)} if self._label.prompts else {}
        scoring = self._label.scoring
        if scoring is not None and scoring.prompt_logprobs is not None:
            of_prompt, prompt = scored(choices[0].logprobs), unpack_tokens(scoring.prompts[0])
            more["prompt_logprobs"] = prompt_entries(prompt, of_prompt, self._vocabulary, scoring.prompt_logprobs)
            if scoring.logprobs is None:
                choices = [msgspec.structs.replace(choice, logprobs=()) for choice in choices]
        shown = [self._with_ids(self._choice(choice), choice) for choice in choices]
        return _whole(self._label, "chat.completion", shown, usage, more)

    def _with_ids(self, entry: dict[str, Any], choice: Choice) -> dict[str, Any]:
        return {**entry, "token_ids": choice.tokens} if self._label.prompts else entry

    def _choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = self.logprobs(choice.tokens, choice.logprobs, 0) if choice.logprobs else None
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        entry = {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}
        return with_reason(entry, choice.stop_reason)


class CompletionFormat:
    """`text_completion`, whole and streamed."""

    def __init__(self, label: Label, vocabulary: Vocabulary) -> None:
        self._label = label
        self._vocabulary = vocabulary

    @cached_property
    def _open(self) -> bytes:
        return _opening(self._label, "text_completion")

    @cached_property
    def tail(self) -> bytes:
        return _tail(b"", _closing(self._label))

    def head(self, index: int) -> bytes:
        return self._open + b'{"index":%d,"text":' % index

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, text: str, logprobs: Any, finish: str | None, stop_reason: str | int | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return self._open + encode(with_reason(choice, stop_reason)) + b"]" + _closing(self._label)

    def logprobs(self, tokens: Sequence[int], drawn: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
        return completion_logprobs(tokens, drawn, self._vocabulary, offset)

    def usage(self, usage: Usage) -> bytes:
        return self._open + b'],"usage":' + encode(usage_object(usage)) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        scoring = self._label.scoring
        shown = [self._choice(choice, len(choices)) for choice in choices]
        if scoring is not None:
            of_prompts = [scored(choice.logprobs) for choice in choices[:: len(choices) // len(scoring.prompts)]]
            for entry, choice in zip(shown, choices, strict=True):
                number = scoring.number(choice.index, len(choices))
                entry |= self._with_prompt(scoring, number, choice, of_prompts[number])
            if not scoring.generates:
                usage = msgspec.structs.replace(usage, completion_tokens=0)
        return _whole(self._label, "text_completion", shown, usage, {})

    def _with_prompt(
        self, scoring: Scoring, number: int, choice: Choice, of_prompt: Sequence[PromptLogprob]
    ) -> dict[str, Any]:
        """The fields of a choice whose prompt is shown too."""
        prompt, vocabulary = unpack_tokens(scoring.prompts[number]), self._vocabulary
        text, tokens, drawn = choice.text, choice.tokens, choice.logprobs
        if not scoring.generates:
            text, tokens, drawn = "", (), ()
        entry: dict[str, Any] = {"text": scoring.text(number, vocabulary) + text if scoring.echo else text}
        if self._label.prompts:
            entry["token_ids"] = tokens
        if scoring.logprobs is None:
            entry["logprobs"] = None
        elif scoring.echo:
            entry["logprobs"] = echoed_logprobs(prompt, of_prompt, tokens, drawn, vocabulary, scoring.logprobs)
        if scoring.prompt_logprobs is not None:
            entry["prompt_logprobs"] = prompt_entries(prompt, of_prompt, vocabulary, scoring.prompt_logprobs)
        return entry

    def _choice(self, choice: Choice, choices: int) -> dict[str, Any]:
        logprobs = self.logprobs(choice.tokens, choice.logprobs, 0) if choice.logprobs else None
        entry = {"index": choice.index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish}
        if self._label.prompts:
            entry["token_ids"] = choice.tokens
            entry["prompt_token_ids"] = self._label.prompt_ids(choice.index, choices)
        return with_reason(entry, choice.stop_reason)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage` object. The tiers in which cached tokens were found are left out when no worker has reported
    them."""
    details: dict[str, Any] = {"cached_tokens": usage.cached_tokens}
    if usage.by_tier is not None:
        found = usage.by_tier
        details["cached_tokens_by_tier"] = {t: found.get(t, 0) for t in TIERS} if found else _NOTHING_CACHED
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
    }


def total(usages: Sequence[Usage]) -> Usage:
    """The sum over the prompts of a request."""
    if len(usages) == 1:
        return usages[0]
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        summed(usage.by_tier for usage in usages),
        tuple(kept for usage in usages for kept in usage.kept),
    )


def _opening(label: Label, kind: str) -> bytes:
    """An event up to and including the bracket that opens `choices`."""
    fields = {"id": label.id, "object": kind, "created": label.created, "model": label.model}
    return b"data: " + encode(fields)[:-1] + b',"choices":['


@cache
def _tail(text_end: bytes, closing: bytes) -> bytes:
    """Bytes that follow a piece of text: the same object for all streams, so that it stays in the processor's
    cache."""
    return text_end + b',"logprobs":null,"finish_reason":null}]' + closing


def _closing(label: Label) -> bytes:
    """An event after its choices."""
    return b',"usage":null}\n\n' if label.usage_follows else b"}\n\n"


def with_reason(choice: dict[str, Any], stop_reason: str | int | None) -> dict[str, Any]:
    """Add `stop_reason` to a choice: the stop string or token that ended the sequence, for which OpenAI has no
    field."""
    if stop_reason is not None:
        choice["stop_reason"] = stop_reason
    return choice


def _whole(label: Label, kind: str, choices: Sequence[dict[str, Any]], usage: Usage, more: dict[str, Any]) -> bytes:
    return encode(
        {
            "id": label.id,
            "object": kind,
            "created": label.created,
            "model": label.model,
            "choices": choices,
            "usage": usage_object(usage),
            **more,
        }
    )
