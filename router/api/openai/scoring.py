"""Prompts in answers: `echo`, and log-probabilities of a prompt's tokens in OpenAI's and in vLLM's form.

An engine reports a prompt's log-probabilities with the first token of its first sequence (`TokenLogprob.prompt`).
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.api.openai.logprobs import CompletionLogprobs, Vocabulary, completion_logprobs, finite, token_text
from router.api.openai.schema import ChatRequest, CompletionRequest
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tandem.core.messages import PromptLogprob, TokenLogprob

SCORED_VALUES_MAX: Final = 1 << 18
"""Log-probabilities of prompt tokens in one answer: one per token and one per alternative."""


class Scoring(msgspec.Struct, frozen=True, gc=False):
    """The data that an answer shows of its prompts. `prompts` are packed token ids, `texts` the prompts that the
    client gave as text; `logprobs` and `prompt_logprobs` are counts of alternatives, None for nothing."""

    prompts: tuple[bytes, ...]
    texts: tuple[str | None, ...]
    echo: bool
    generates: bool
    """False for an answer that is the prompt alone."""
    logprobs: int | None
    prompt_logprobs: int | None

    def number(self, index: int, choices: int) -> int:
        """The number of the prompt to which choice `index` of `choices` belongs; choices are numbered prompt by
        prompt."""
        return index * len(self.prompts) // choices

    def text(self, number: int, vocabulary: Vocabulary) -> str:
        """A prompt as the client gave it, or its tokens as text."""
        given = self.texts[number]
        if given is not None:
            return given
        return b"".join(map(vocabulary.token_bytes, unpack_tokens(self.prompts[number]))).decode("utf-8", "replace")


def alternatives_asked(request: ChatRequest | CompletionRequest) -> int | None:
    """Number of alternatives that an engine must report beside every prompt token; None where it scores no prompt."""
    echoed = request.logprobs if isinstance(request, CompletionRequest) and request.echo else None
    asked = [count for count in (request.prompt_logprobs, echoed) if count is not None]
    return max(asked, default=None)


def scoring_of(request: ChatRequest | CompletionRequest, prompts: Sequence[bytes]) -> Scoring | None:
    """The data that the answer to a request shows of its prompts; None for nothing."""
    echo = isinstance(request, CompletionRequest) and bool(request.echo)
    if not echo and request.prompt_logprobs is None:
        return None
    return Scoring(
        tuple(prompts),
        _texts(request, len(prompts)),
        echo,
        generates=request.max_tokens != 0,
        logprobs=wanted_logprobs(request),
        prompt_logprobs=request.prompt_logprobs,
    )


def check_scored(request: ChatRequest | CompletionRequest, prompt_tokens: int) -> None:
    """Raises `invalid_request` where more log-probabilities of prompts are asked for than one answer may have."""
    alternatives = alternatives_asked(request)
    if alternatives is None:
        return
    values = prompt_tokens * (alternatives + 1)
    if values > SCORED_VALUES_MAX:
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        raise TandemError(
            "invalid_request",
            f"{param}: {prompt_tokens} prompt tokens with {alternatives} alternatives each are {values} "
            f"log-probabilities, and one answer has at most {SCORED_VALUES_MAX}: ask for fewer alternatives, or send "
            "fewer prompts in a request",
            param=param,
        )


def scored(logprobs: Sequence[TokenLogprob]) -> tuple[PromptLogprob, ...]:
    """The log-probabilities of a prompt, which come with the first sequence of its answer."""
    return logprobs[0].prompt if logprobs else ()


def echoed_logprobs(
    prompt: Sequence[int],
    of_prompt: Sequence[PromptLogprob],
    tokens: Sequence[int],
    drawn: Sequence[TokenLogprob],
    vocabulary: Vocabulary,
    alternatives: int,
) -> CompletionLogprobs:
    """`logprobs` of a completion that begins with its prompt, whose first token has none."""
    told = [TokenLogprob(each.logprob, each.top[:alternatives]) for each in of_prompt]
    shown = completion_logprobs((*prompt[1:], *tokens), (*told, *drawn), vocabulary, len(_first(prompt, vocabulary)))
    return CompletionLogprobs(
        (_first(prompt, vocabulary), *shown.tokens),
        (None, *shown.token_logprobs),
        (None, *shown.top_logprobs),
        (0, *shown.text_offset),
    )


def prompt_entries(
    prompt: Sequence[int], of_prompt: Sequence[PromptLogprob], vocabulary: Vocabulary, alternatives: int
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM shows it: nothing for the first token, then by token id."""
    entries: list[dict[str, Any] | None] = [None]
    for token, one in zip(prompt[1:], of_prompt, strict=True):
        entry = {str(token): _entry(token, one.logprob, one.rank, vocabulary)}
        for rank, other in enumerate(one.top[:alternatives], 1):
            entry.setdefault(str(other.token), _entry(other.token, other.logprob, rank, vocabulary))
        entries.append(entry)
    return entries


def _entry(token: int, logprob: float, rank: int, vocabulary: Vocabulary) -> dict[str, Any]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(token, vocabulary)}


def _first(prompt: Sequence[int], vocabulary: Vocabulary) -> str:
    return token_text(prompt[0], vocabulary)


def wanted_logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    """Number of alternatives to report per generated token; None when no logprobs are wanted."""
    if isinstance(request, ChatRequest):
        return (request.top_logprobs or 0) if request.logprobs else None
    return request.logprobs


def _texts(request: ChatRequest | CompletionRequest, prompts: int) -> tuple[str | None, ...]:
    if isinstance(request, ChatRequest):
        return (None,) * prompts
    if isinstance(request.prompt, str):
        return (request.prompt,)
    if all(isinstance(item, int) for item in request.prompt):
        return (None,)
    return tuple(item if isinstance(item, str) else None for item in request.prompt)
