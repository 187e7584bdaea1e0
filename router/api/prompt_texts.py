"""Locates a token of a prompt in its text, for people to read: of recent requests, and only on demand.

A prompt's tokens are kept as they came, in a bounded number of bytes; they become text only on demand. The text is
shown to callers that may see the request's story, and is in no span, log or metric.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from router.api.openai.logprobs import Vocabulary
from tandem.core.kv import unpack_tokens

_AROUND: Final = 48
"""Characters shown on each side."""


class TextPlace(msgspec.Struct, frozen=True):
    """`character` counts from 0, `line` and `column` from 1, in the prompt as the model gets it; `before` and `after`
    are some of the text on both sides."""

    character: int
    line: int
    column: int
    before: str
    after: str


class PromptTexts:
    """Prompts of the latest requests, by tenant and request id; the oldest go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._prompts: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, tenant: str, request_id: str, prompt: bytes) -> None:
        """Remember a prompt (packed token ids), unless it alone is too large."""
        self._bytes -= len(self._prompts.pop((tenant, request_id), b""))
        if len(prompt) > self._bytes_max:
            return
        self._prompts[tenant, request_id] = prompt
        self._bytes += len(prompt)
        while self._bytes > self._bytes_max:
            _, oldest = self._prompts.popitem(last=False)
            self._bytes -= len(oldest)

    def place(self, tenant: str, request_id: str, token: int, vocabulary: Vocabulary) -> TextPlace | None:
        """The place where `token` (counted from 0) of a request's prompt begins; None when the prompt is not
        remembered."""
        prompt = self._prompts.get((tenant, request_id))
        if prompt is None or 4 * token > len(prompt):
            return None
        return place_in_text(unpack_tokens(prompt), token, vocabulary)


def place_in_text(tokens: tuple[int, ...], token: int, vocabulary: Vocabulary) -> TextPlace:
    """The place in the text where `tokens[token]` begins. A character of several tokens belongs to the last of
    them."""
    before = b"".join(map(vocabulary.token_bytes, tokens[:token])).decode("utf-8", "ignore")
    after = b"".join(map(vocabulary.token_bytes, tokens[token : token + _AROUND])).decode("utf-8", "replace")
    line_start = before.rfind("\n") + 1
    return TextPlace(
        character=len(before),
        line=before.count("\n") + 1,
        column=len(before) - line_start + 1,
        before=before[-_AROUND:],
        after=after[:_AROUND],
    )
