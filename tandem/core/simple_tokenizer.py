"""The tokenizer of models that have no files: one id per UTF-8 byte, and short made-up words for all other ids.

The simulated engine speaks it. Router and workers share it, so that text means the same on both ends.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

BYTE_IDS: Final = 256
"""Ids below this are bytes of UTF-8; the others are words, each with a leading space."""

VOCAB_SIZE: Final = 32_000

_PIECE_BYTES: Final = 1 << 16

MODEL_NAME: Final = "simulated"
"""The name of a model without files, unless it is given another."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_SYLLABLES: Final = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")


def encode(text: str) -> bytes:
    """Token ids of a text, packed uint32. Lone surrogates become `?`. The text is packed piece by piece, because
    nothing else in the process makes progress while one piece is packed."""
    written = text.encode("utf-8", "replace")
    return b"".join([_packed(written[at : at + _PIECE_BYTES]) for at in range(0, len(written), _PIECE_BYTES)])


def _packed(written: bytes) -> bytes:
    packed = bytearray(4 * len(written))
    packed[::4] = written
    return bytes(packed)


@lru_cache(maxsize=VOCAB_SIZE)
def piece(token: int) -> bytes:
    """The bytes one token stands for; concatenated over a sequence they are its text in UTF-8."""
    if token < BYTE_IDS:
        return bytes((token,))
    return _spoken(token).encode()


def decode(tokens: Sequence[int]) -> str:
    """The text of a sequence; bytes that are not UTF-8 become U+FFFD."""
    for token in tokens:
        if token < BYTE_IDS:
            return b"".join(map(piece, tokens)).decode("utf-8", "replace")
    return "".join(map(_spoken, tokens))


@lru_cache(maxsize=VOCAB_SIZE)
def alone(token: int) -> str | None:
    """The text that a token adds to any other; None of a byte, which may be a piece of a character."""
    return None if token < BYTE_IDS else _spoken(token)


@lru_cache(maxsize=VOCAB_SIZE)
def _spoken(token: int) -> str:
    """The text of a word, which needs no other tokens to be whole."""
    return " " + _word(token - BYTE_IDS)


def _word(number: int) -> str:
    """Bijective base-70 over syllables: no two numbers share a word."""
    parts = []
    number += 1
    while number > 0:
        number, digit = divmod(number - 1, len(_SYLLABLES))
        parts.append(_SYLLABLES[digit])
    return "".join(parts)
