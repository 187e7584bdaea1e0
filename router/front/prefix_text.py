"""The tokens that a conversation or a text surely begins with, however it goes on."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from router.front.chat_template import Message
from router.front.openai import parameters
from router.front.openai.schema import ChatRequest, CompletionRequest
from router.front.render import Renderer
from router.front.tokenizing import Tokenizing
from tandem.core.kv import pack_tokens, unpack_tokens

_GOES_ON: Final = ("A", "b")
"""Two ways in which a user may go on that have nothing in common."""


async def prefix_tokens(
    request: ChatRequest | CompletionRequest, renderer: Renderer, tokenizing: Tokenizing, within_s: float
) -> bytes:
    """Packed token ids of a prefix. Raises `invalid_request`, `unsupported_parameter`, `deadline_exceeded`."""
    if isinstance(request, ChatRequest):
        turns = parameters.messages(request)
        characters = sum(len(turn["content"]) for turn in turns)
        return await tokenizing.run(lambda: chat_prefix(renderer, turns), characters, within_s)
    (prompt,) = parameters.prompts(request, renderer.vocab_size)
    if isinstance(prompt, list):
        return pack_tokens(prompt)
    return await tokenizing.run(lambda: renderer.text(prompt), len(prompt), within_s)


def chat_prefix(renderer: Renderer, turns: Sequence[Message]) -> bytes:
    """What all conversations that begin with `turns` have in common, as far as whole tokens go.

    A template writes the turn of the assistant after the last message, where others may follow. After a user's turn
    that is what comes next; after any other it is found by looking where two continuations part.
    """
    if turns[-1]["role"] == "user":
        return renderer.chat(turns)
    one, other = (unpack_tokens(renderer.chat([*turns, {"role": "user", "content": text}])) for text in _GOES_ON)
    common = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return pack_tokens([token for token, _ in common])
