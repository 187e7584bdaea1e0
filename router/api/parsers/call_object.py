"""A JSON object that describes a tool call, `{"name": …, "arguments": {…}}`, as it comes."""

import json
from collections.abc import Collection
from typing import Any, Final

from router.api.parsers.delta import SPACE, Calls, ParsedDelta
from router.api.parsers.json_text import JsonText

ARGUMENTS: Final = ("arguments", "parameters")
_BESIDES: Final = ("type", "id")
"""Keys that say nothing about the call, and may stand beside the others."""


class CallObject:
    """One object, from its opening brace on.

    The call begins as soon as its name and the opening of its arguments are known; from there on arguments are passed
    on as they come. Characters that have not become part of a call are `held`: they are content when the object turns
    out to be `broken`, and syntax when it has `ended` well.
    """

    __slots__ = (
        "_args",
        "_begun",
        "_calls",
        "_key",
        "_known",
        "_name",
        "_raw",
        "_state",
        "_value",
        "broken",
        "ended",
        "held",
    )

    def __init__(self, calls: Calls, known: Collection[str] | None, before: str = "") -> None:
        """`before` is what has been held of the text in front of it. With `known`, any other name and any other key
        than those of calls makes the object none."""
        self._calls = calls
        self._known = known
        self._state = "open"
        """`open`, `first key`, `key`, `colon`, `value`, `more`."""
        self._value: JsonText | None = None
        self._raw = ""
        """The key or the value so far."""
        self._key = ""
        self._name = ""
        self._args: str | None = None
        """Arguments that came before the name."""
        self._begun = False
        self.held = before
        self.ended = False
        self.broken = False

    def taken(self, text: str, at: int, said: ParsedDelta) -> int:
        """Parse the object, or the valid part of it, in `text` from `at` on. Gives the position where it ends."""
        end = len(text)
        while at < end and not (self.ended or self.broken):
            at = self._between(text, at, said) if self._value is None else self._within(text, at, said)
        return at

    # -- between keys and values --

    def _between(self, text: str, at: int, said: ParsedDelta) -> int:
        character, state = text[at], self._state
        if character in SPACE:
            pass
        elif character == '"' and state in ("first key", "key"):
            self._value, self._raw = JsonText(), ""
            return at
        elif character == "{" and state == "open":
            self._state = "first key"
        elif character == ":" and state == "colon":
            self._state = "value"
        elif character == "," and state == "more":
            self._state = "key"
        elif character == "}" and state in ("more", "first key") and self._complete(said):
            self.ended = True
            self.held = ""
            return at + 1
        elif state == "value":
            self._value, self._raw = JsonText(), ""
            if self._streams() and character == "{":
                self._begin(said)
            return at
        else:
            self.broken = True
            return at
        self.held += character
        return at + 1

    def _complete(self, said: ParsedDelta) -> bool:
        """The object ends: whether it was a call."""
        if not self._begun and self._name:
            self._begin(said)
            self._calls.more(self._args if self._args is not None else "{}", said)
        return self._begun

    # -- within a key or a value --

    def _within(self, text: str, at: int, said: ParsedDelta) -> int:
        value = self._value
        assert value is not None, "within a value"
        end = value.taken(text, at)
        piece = text[at:end]
        if self._state == "value" and self._begun and self._streams():
            self._calls.more(piece, said)
        else:
            self._raw += piece
            self.held += piece
        if value.broken:
            self.broken = True
        elif value.ended:
            self._value = None
            self._take(said)
        return end

    def _streams(self) -> bool:
        """Whether the value of the current key is passed on as it arrives."""
        return self._key in ARGUMENTS and bool(self._name) and self._args is None

    def _take(self, said: ParsedDelta) -> None:
        """A key or a value is whole."""
        if self._state != "value":
            self._key, self._state = json.loads(self._raw, strict=False), "colon"
            twice = (self._key in ARGUMENTS and self._args is not None) or (self._key == "name" and bool(self._name))
            known = self._key == "name" or self._key in ARGUMENTS or self._key in _BESIDES
            self.broken = twice or (self._known is not None and not known)
            return
        self._state = "more"
        if self._key == "name":
            self._take_name(json.loads(self._raw, strict=False))
        elif self._key in ARGUMENTS:
            self._take_arguments(said)

    def _take_name(self, name: Any) -> None:
        right = isinstance(name, str) and name and (self._known is None or name in self._known)
        self._name = name if right else ""
        self.broken = not right

    def _take_arguments(self, said: ParsedDelta) -> None:
        if self._begun:
            self._args = ""
            return
        arguments = as_object(self._raw)
        self.broken = arguments is None
        self._args = arguments
        if arguments is not None and self._name:
            self._begin(said)
            self._calls.more(arguments, said)

    def _begin(self, said: ParsedDelta) -> None:
        self._calls.begin(self._name, said)
        self._begun = True
        self.held = ""


def as_object(raw: str) -> str | None:
    """The text of a JSON object: as it is, out of a JSON string, or empty for `null`; None for anything else."""
    value = json.loads(raw, strict=False)
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return raw
    if not isinstance(value, str):
        return None
    try:
        inner = json.loads(value, strict=False) if value.strip() else {}
    except ValueError:
        return None
    return (value if value.strip() else "{}") if isinstance(inner, dict) else None
