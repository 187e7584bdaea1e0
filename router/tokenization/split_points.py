"""Finds where rendered text can be cut so that its pieces give the tokens of the whole: right before certain added
tokens.

The tokenizers of model files (Rust `tokenizers`) first search the text, once, from left to right and for the longest
match, for the added tokens that are matched before normalizing. Each stretch between the matches is then normalized,
split and tokenized by itself. So where a match begins regardless of the text around it, the text before that place
and the text from there on are independent: `tokens(a + b) = tokens(a) + tokens(b)` for every `b` that begins with
such a token. A match is that certain for a token that meets three conditions.

First, it is matched before normalizing (`normalized` is false), between any neighbours (`single_word` is false), and
takes no space to its left (`lstrip` is false; the space that it takes to its right is in its own piece).

Second, it overlaps with no added token in a way that would let a match begin earlier or go on longer: no other token
contains it, and no token, not even itself, begins before it and ends with some of its first characters.

Third, it begins with neither a space nor a letter, digit or underscore: a token before it that takes spaces, or that
must end a word, finds the same thing whichever of these tokens follows.

The text from the cut on never begins with ordinary text, so it escapes whatever tokenizers do only to the beginning
of a text. The chat template has to meet no condition: prompts are rendered whole.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

_TOKENS_MAX: Final = 16
"""Templates begin and end messages with a few tokens; with more places to cut nothing would be gained."""
_STRETCHES: Final = ("", " ", "\n\n", "word", " two words ", "e\u0301", "\u0338", "12", "<", "|>", "[")
"""Ordinary text to try a cut between."""


class Places(NamedTuple):
    """The places where a text may be cut: the first character from each on, and the first token."""

    characters: "array[int]"
    tokens: "array[int]"


NOWHERE: Final = Places(array("Q"), array("Q"))


class SplitPoints:
    """Finds the places. `tokens` are those to cut before, by their text."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        assert tokens, "nothing to cut before"
        self.tokens = dict(tokens)
        self._numbers = frozenset(self.tokens.values())
        self._pattern = re.compile("|".join(map(re.escape, self.tokens)))

    def after(self, text: str, at: int) -> int | None:
        """The first place beyond `at`."""
        found = self._pattern.search(text, at + 1)
        return None if found is None else found.start()

    def begins(self, text: str, at: int) -> bool:
        """Whether `at` is a place."""
        return self._pattern.match(text, at) is not None

    def places(self, text: str, tokens: Sequence[int]) -> Places:
        """The places in a text that was made into `tokens`; none if it is not certain which tokens they are."""
        found = list(self._pattern.finditer(text))
        numbers = self._numbers
        at = [index for index, token in enumerate(tokens) if token in numbers]
        if [tokens[index] for index in at] != [self.tokens[match.group()] for match in found]:
            # The model itself writes one of them, for characters that it does not know.
            return NOWHERE
        return Places(array("Q", [match.start() for match in found]), array("Q", at))


class _Model(msgspec.Struct):
    dropout: float | None = None


class _TokenizerFile(msgspec.Struct):
    model: _Model


def find_split_points(tokenizer: Tokenizer, rendered: Sequence[str]) -> SplitPoints | None:
    """The points at which prompts like the `rendered` ones can be cut; None when this tokenizer must see the whole
    text.

    The module's description gives the argument. As an additional test a few texts are cut, so that a library that one
    day works differently is detected at the start.
    """
    if tokenizer.truncation is not None or tokenizer.padding is not None or tokenizer.encode_special_tokens:
        return None
    if msgspec.json.decode(tokenizer.to_str(), type=_TokenizerFile).model.dropout:
        return None
    added = tokenizer.get_added_tokens_decoder()
    contents = [token.content for token in added.values()]
    tokens = {
        token.content: number
        for number, token in added.items()
        if any(token.content in text for text in rendered) and certain(token, contents)
    }
    cuts = dict(list(tokens.items())[:_TOKENS_MAX])
    return SplitPoints(cuts) if cuts and all(_cuts_well(tokenizer, content) for content in cuts) else None


def certain(token: AddedToken, contents: Sequence[str]) -> bool:
    """Whether a match begins wherever the token's text stands, among added tokens of these texts."""
    if token.normalized or token.single_word or token.lstrip:
        return False
    text, first = token.content, token.content[:1]
    if not first or first.isspace() or first.isalnum() or first == "_":
        return False
    return not any(_gets_in_the_way(other, text) for other in contents)


def _gets_in_the_way(other: str, text: str) -> bool:
    """Whether a match of `other` can begin before `text` and reach into it, or cover it and more."""
    if other != text and text in other:
        return True
    longest = min(len(other), len(text)) - 1
    return any(other.endswith(text[:length]) for length in range(1, longest + 1))


def _cuts_well(tokenizer: Tokenizer, content: str) -> bool:
    def tokens(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    befores = [*_STRETCHES, *(f"{content}{text}" for text in _STRETCHES)]
    return all(
        tokens(before + content + after) == tokens(before) + tokens(content + after)
        for before in befores
        for after in _STRETCHES
    )
