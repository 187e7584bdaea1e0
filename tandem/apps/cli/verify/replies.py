"""An OpenAI answer with log-probabilities, of either interface, as what is compared of it. Pure."""

from typing import Any

import msgspec

from tandem.core.errors import TandemError


class Reply(msgspec.Struct, frozen=True):
    """The greedy continuation of one prompt.

    `tokens` are named by their text (completions) or their bytes in hex (chat); `top` has, per token, the natural
    logarithms of the reported probabilities by such a name. Ids are None where the server does not report them.
    """

    prompt_tokens: int
    tokens: tuple[str, ...]
    top: tuple[dict[str, float], ...]
    text: str
    finish: str | None
    prompt_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    as_bytes: bool = False
    """Tokens are known by their bytes."""

    def name(self, position: int) -> str | int:
        """A token as exactly as it is known; positions count from 0."""
        return self.tokens[position] if self.ids is None else self.ids[position]

    def shown(self, position: int) -> str:
        """A token as text."""
        token = self.tokens[position]
        return bytes.fromhex(token).decode("utf-8", "replace") if self.as_bytes else token


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _ChatAlternative(msgspec.Struct):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return bytes(self.bytes).hex() if self.bytes is not None else self.token


class _ChatToken(_ChatAlternative):
    top_logprobs: tuple[_ChatAlternative, ...] = ()


class _Logprobs(msgspec.Struct):
    """The log-probabilities of both interfaces: completions have parallel lists, chats one list of entries."""

    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None
    content: tuple[_ChatToken, ...] | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class _Answer(msgspec.Struct):
    choices: tuple[_Choice, ...]
    usage: _Usage
    prompt_token_ids: tuple[int, ...] | None = None


def read_reply(body: bytes) -> Reply:
    """Raises `engine_failed` for an answer without what is to be compared."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        raise TandemError("engine_failed", f"the answer is no completion: {error}") from error
    if len(answer.choices) != 1 or answer.choices[0].logprobs is None:
        raise TandemError("engine_failed", "the answer has no log-probabilities")
    choice, logprobs = answer.choices[0], answer.choices[0].logprobs
    tokens, top = _of_chat(logprobs.content) if logprobs.content is not None else _of_completion(logprobs)
    text = choice.text if choice.text is not None else choice.message.content if choice.message is not None else None
    exact = choice.token_ids is not None and len(choice.token_ids) == len(tokens)
    prompt_ids = choice.prompt_token_ids if choice.prompt_token_ids is not None else answer.prompt_token_ids
    ids = choice.token_ids if exact else None
    as_bytes = logprobs.content is not None and all(entry.bytes is not None for entry in logprobs.content)
    return Reply(answer.usage.prompt_tokens, tokens, top, text or "", choice.finish_reason, prompt_ids, ids, as_bytes)


def _of_chat(entries: tuple[_ChatToken, ...]) -> tuple[tuple[str, ...], tuple[dict[str, float], ...]]:
    top: list[dict[str, float]] = []
    for entry in entries:
        reported: dict[str, Any] = {}
        for other in (*entry.top_logprobs, entry):
            reported.setdefault(other.name, other.logprob)
        top.append(reported)
    return tuple(entry.name for entry in entries), tuple(top)


def _of_completion(logprobs: _Logprobs) -> tuple[tuple[str, ...], tuple[dict[str, float], ...]]:
    tops = logprobs.top_logprobs if logprobs.top_logprobs is not None else (None,) * len(logprobs.tokens)
    drawn = zip(tops, logprobs.tokens, logprobs.token_logprobs, strict=True)
    return logprobs.tokens, tuple({token: logprob, **(top or {})} for top, token, logprob in drawn)
