"""Detokenize token ids into text, one id at a time: a pure function of prompt tail and ids.

Decoders are not additive: a token may be part of a character, and sentencepiece-style decoders treat the first token
of a text differently. So a window of recent ids is decoded twice, without and with the new ids; the new text is what
the second result has beyond the first. The new text is released once it does not end in an unfinished character.
"""

from collections.abc import Sequence
from typing import Final, Protocol

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

PROMPT_TAIL: Final = 6
"""Number of prompt tokens that give the first output token its context."""

_PENDING_MAX: Final = 16
"""Length of an id run without a whole character at which its text is released as it is; a character has at most 4
bytes."""


class Decoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence; bytes that are no UTF-8 become U+FFFD."""
        ...

    def alone(self, token: int) -> str | None:
        """The text that a token adds to whatever comes before it, and is not empty; None where that depends."""
        ...

    def with_special(self) -> "Decoder":
        """The same decoder with special tokens in the text."""
        ...


class Detokenizer:
    """The text of one output sequence, as far as it is certain."""

    __slots__ = ("_alone", "_decoder", "_known", "_new", "_single", "_window")

    def __init__(self, decoder: Decoder, prompt_tail: Sequence[int]) -> None:
        self._decoder = decoder
        self._alone = decoder.alone
        self._window = list(prompt_tail)
        self._single: int | None = None
        """The token that is the window now, in place of the list: that is how nearly every token comes and goes."""
        self._new = 0
        self._known = decoder.decode(self._window) if self._window else ""

    def feed(self, token: int) -> str:
        """Text that became certain with this token, often empty or several characters."""
        if self._new == 0 and (added := self._alone(token)) is not None:
            self._single, self._known = token, added
            return added
        if self._single is not None:
            self._window, self._single = [self._single], None
        window, known = self._window, self._known
        window.append(token)
        self._new += 1
        text = self._decoder.decode(window)
        if (len(text) <= len(known) or text[-1] == REPLACEMENT) and self._new < _PENDING_MAX:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """The text that is left at the end of the sequence; an unfinished character becomes U+FFFD."""
        if self._new == 0:
            return ""
        return self._advance(self._decoder.decode(self._window))

    def _advance(self, text: str) -> str:
        added = text[len(self._known) :]
        self._window = window = self._window[-self._new :]
        self._known = self._decoder.decode(window)
        self._new = 0
        return added
