"""Prompts from content ids: the same id gives the same tokens, or the same words, in every run and process."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final

from tandem.apps.bench.workload import Piece

# Short, frequent words: a token each for most vocabularies.
_TEXT: Final = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or had by hot "
    "but some what there we can out other were all your when up use word how said an each she which do their "
    "time if will way about many then them would write like so these her long make thing see him two has look "
    "more day could go come did my sound no most number who over know water than call first people may down side"
)
_WORDS: Final = tuple(_TEXT.split())


@dataclass(frozen=True)
class TokenRange:
    """Token ids to draw from: `low` to `high` - 1. Ids of special tokens must lie outside."""

    low: int = 32
    high: int = 250


def prompt_tokens(pieces: Sequence[Piece], vocabulary: TokenRange, seed: int) -> list[int]:
    """The token ids of a prompt. Two pieces of one content agree as far as the shorter goes."""
    width = vocabulary.high - vocabulary.low
    assert width > 1, vocabulary
    tokens: list[int] = []
    for piece in pieces:
        tokens += [vocabulary.low + word % width for word in islice(_words(piece.content, seed), piece.tokens)]
    return tokens


def prompt_text(pieces: Sequence[Piece], tokens_per_word: float, seed: int) -> str:
    """A prompt as words, for servers that take no token ids; its token count is right on average."""
    words: list[str] = []
    for piece in pieces:
        count = max(1, round(piece.tokens / tokens_per_word))
        words += [_WORDS[word % len(_WORDS)] for word in islice(_words(piece.content, seed), count)]
    return " ".join(words)


def _words(content: int, seed: int) -> Iterator[int]:
    """An endless stream of 32-bit words that depends on content and seed only."""
    key = blake2b(f"{seed}/{content}".encode(), digest_size=32).digest()
    count = 0
    while True:
        yield from struct.unpack("<16I", blake2b(count.to_bytes(8, "little"), key=key, digest_size=64).digest())
        count += 1
