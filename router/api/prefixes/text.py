"""Computes the tokens with which a conversation or a text certainly begins, however it goes on."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from router.api.chat_templates.chat_template import Message
from router.api.chat_templates.render import Renderer
from router.api.chat_templates.templates import AMPLE, Bounds
from router.api.openai import parameters
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.tokenization.tokenizing import Tokenizing
from tandem.core.kv import pack_tokens, unpack_tokens

_GOES_ON: Final = ("A", "b")
"""Two ways in which a user may go on that have nothing in common."""


async def prefix_tokens(
    request: ChatRequest | CompletionRequest, renderer: Renderer, tokenizing: Tokenizing, bounds: Bounds
) -> bytes:
    """Packed token ids of a prefix. Raises `invalid_request`, `unsupported_parameter`, `context_length_exceeded`,
    `deadline_exceeded`."""
    if isinstance(request, ChatRequest):
        return await chat_prefix(renderer, parameters.messages(request), tokenizing, bounds)
    (prompt,) = parameters.prompts(request, renderer.vocab_size)
    if isinstance(prompt, list):
        return pack_tokens(prompt)
    return await tokenizing.run(lambda: renderer.text(prompt), len(prompt), bounds.within_s)


async def chat_prefix(
    renderer: Renderer, turns: Sequence[Message], tokenizing: Tokenizing, bounds: Bounds = AMPLE
) -> bytes:
    """The whole tokens that all conversations beginning with `turns` have in common.

    A template writes the assistant's turn after the last message, where other turns may follow. After a user's turn
    the assistant's turn is what comes next. After any other turn the common part is found by looking where two
    continuations diverge.
    """
    if turns[-1]["role"] == "user":
        text = await renderer.render(turns, None, bounds)
        return await tokenizing.run(lambda: renderer.chat(text), len(text), bounds.within_s)
    continued = [[*turns, {"role": "user", "content": text}] for text in _GOES_ON]
    texts = [await renderer.render(each, None, bounds) for each in continued]
    return await tokenizing.run(lambda: _common(renderer, texts), sum(map(len, texts)), bounds.within_s)


def _common(renderer: Renderer, texts: Sequence[str]) -> bytes:
    one, other = (unpack_tokens(renderer.chat(text)) for text in texts)
    common = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return pack_tokens([token for token, _ in common])
