"""`[{"name": …, "arguments": {…}}, …]`: tool calls as one JSON array."""

from collections.abc import Collection

from router.api.parsers.call_object import CallObject
from router.api.parsers.delta import SPACE, Calls, ParsedDelta


class ArrayCalls:
    """One array, from its opening bracket on; `held` as in `CallObject`."""

    def __init__(self, calls: Calls, known: Collection[str] | None = None, before: str = "") -> None:
        self._calls = calls
        self._known = known
        self._state = "open"
        """`open`, `first` (call or end), `call`, `more` (comma or end)."""
        self._call: CallObject | None = None
        self._held = before
        self.ended = False
        self.broken = False

    @property
    def held(self) -> str:
        return self._held + (self._call.held if self._call is not None else "")

    def taken(self, text: str, at: int, said: ParsedDelta) -> int:
        """Parse the array, or the valid part of it, in `text` from `at` on. Gives the position where it ends."""
        end = len(text)
        while at < end and not (self.ended or self.broken):
            at = self._in_call(self._call, text, at, said) if self._call is not None else self._between(text, at)
        return at

    def _in_call(self, call: CallObject, text: str, at: int, said: ParsedDelta) -> int:
        begun = self._calls.count
        at = call.taken(text, at, said)
        if self._calls.count > begun or call.ended:
            self._held = ""
        if call.ended:
            self._call, self._state = None, "more"
        self.broken = call.broken
        return at

    def _between(self, text: str, at: int) -> int:
        character, state = text[at], self._state
        if character in SPACE:
            pass
        elif character == "[" and state == "open":
            self._state = "first"
        elif character == "{" and state in ("first", "call"):
            self._call = CallObject(self._calls, self._known)
            return at
        elif character == "," and state == "more":
            self._state = "call"
        elif character == "]" and state == "more":
            self.ended = True
            self._held = ""
            return at + 1
        else:
            self.broken = True
            return at
        self._held += character
        return at + 1


class ArrayParser:
    """Parses output that is only an array of calls, as a grammar asks for it; anything else is content."""

    def __init__(self, calls: Calls) -> None:
        self._array: ArrayCalls | None = ArrayCalls(calls)
        self._done = False

    def feed(self, text: str, said: ParsedDelta) -> None:
        if self._array is not None:
            at = self._array.taken(text, 0, said)
            text = text[at:]
            if self._array.broken:
                said.content += self._array.held
            self._done = self._array.ended
            if self._array.ended or self._array.broken:
                self._array = None
        if self._array is None:
            said.content += text.lstrip(SPACE) if self._done else text

    def finish(self, said: ParsedDelta) -> None:
        if self._array is not None:
            said.content += self._array.held


class NamedParser:
    """Parses output that is only the arguments of one call, as a grammar asks for them."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._name = name

    def feed(self, text: str, said: ParsedDelta) -> None:
        if not self._calls.count:
            self._calls.begin(self._name, said)
        self._calls.more(text, said)

    def finish(self, said: ParsedDelta) -> None:
        """The call is as long as the text was."""
