"""Follows JSON text (RFC 8259) as it comes, to know where a value ends and whether it is one at all."""

import re
from typing import Final

from router.api.parsers.delta import SPACE

_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_WORDS: Final = ("true", "false", "null")
_IN_NUMBER: Final = frozenset("+-0123456789.eE")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DEPTH_MAX: Final = 256


class JsonText:
    """One JSON value, read from its first character on. `taken` sets `ended` when the value is complete, and `broken`
    when it turns out to be malformed."""

    __slots__ = ("_escape", "_expected", "_quoted", "_stack", "_word", "broken", "ended")

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._expected = "value"
        """`value`, `first` (value or the end of an array), `key`, `first key`, `colon`, `more` (comma or end)."""
        self._quoted = False
        self._escape = 0
        """1 after a backslash; then 2 to 5 within the digits of one."""
        self._word = ""
        """A number or a name as far as it has come."""
        self.ended = False
        self.broken = False

    def taken(self, text: str, at: int) -> int:
        """The index in `text` up to which the value, or the valid part of it, extends from `at` on. A number at the
        top level ends before the first character that does not belong to it."""
        end = len(text)
        while at < end and not (self.ended or self.broken):
            if self._quoted:
                at = self._in_string(text, at)
            elif self._word:
                at = self._in_word(text, at)
            else:
                at += self._next(text[at])
        return at

    def _in_string(self, text: str, at: int) -> int:
        if not self._escape:
            match = _PLAIN.match(text, at)
            assert match is not None, "the pattern matches nothing at least"
            at = match.end()
            if at == len(text):
                return at
        character = text[at]
        if not self._escape and character == '"':
            self._quoted = False
            if self._expected in ("key", "first key"):
                self._expected = "colon"
            else:
                self._value_ends()
        elif not self._escape and character == "\\":
            self._escape = 1
        elif self._escape == 1 and character in '"\\/bfnrtu':
            self._escape = 2 if character == "u" else 0
        elif self._escape > 1 and character in _HEX:
            self._escape = (self._escape + 1) % 6
        else:
            self.broken = True
            return at
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        character, word = text[at], self._word
        if word[0].isalpha():
            longer = word + character
            if not any(known.startswith(longer) for known in _WORDS):
                self.broken = True
                return at
            self._word = longer
            if longer in _WORDS:
                self._word = ""
                self._value_ends()
            return at + 1
        if character in _IN_NUMBER:
            self._word = word + character
            return at + 1
        self._word = ""
        if _NUMBER.fullmatch(word):
            self._value_ends()
        else:
            self.broken = True
        return at

    def _next(self, character: str) -> int:
        """One character between values; 0 when it is not taken."""
        expected, stack = self._expected, self._stack
        if character in SPACE:
            return 1
        if character == '"' and expected in ("value", "first", "key", "first key"):
            self._quoted = True
        elif character in "{[" and expected in ("value", "first") and len(stack) < _DEPTH_MAX:
            stack.append(character)
            self._expected = "first key" if character == "{" else "first"
        elif (character in "-0123456789" or character in "tfn") and expected in ("value", "first"):
            self._word = character
        elif self._closes(character):
            stack.pop()
            self._value_ends()
        elif character == ":" and expected == "colon":
            self._expected = "value"
        elif character == "," and expected == "more":
            self._expected = "key" if stack[-1] == "{" else "value"
        else:
            self.broken = True
            return 0
        return 1

    def _closes(self, character: str) -> bool:
        if not self._stack:
            return False
        opened, expected = self._stack[-1], self._expected
        if character == "}":
            return opened == "{" and expected in ("more", "first key")
        return character == "]" and opened == "[" and expected in ("more", "first")

    def _value_ends(self) -> None:
        self._expected = "more"
        self.ended = not self._stack
