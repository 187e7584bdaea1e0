"""`{"name": …, "parameters": {…}}`, after `<|python_tag|>` or at the beginning of the text: Llama 3.1 and later."""

from collections.abc import Collection
from typing import Final

from router.api.parsers.call_object import CallObject
from router.api.parsers.delta import SPACE, Calls, ParsedDelta, Prose

TAG: Final = "<|python_tag|>"


class Llama3JsonParser:
    """Several calls are parted by semicolons. Text that begins with a brace is a call only if it names a known tool:
    it may be an answer that is JSON."""

    def __init__(self, calls: Calls, known: Collection[str]) -> None:
        self._calls = calls
        self._known = known
        self._prose = Prose(TAG)
        self._call: CallObject | None = None
        self._awaits: str | None = ""
        """White space, and a semicolon after a call, as long as a call may follow; None in text."""
        self._bare = False
        """A call stood before this."""
        self._tagged = False

    def feed(self, text: str, said: ParsedDelta) -> None:
        while text:
            if self._call is not None:
                text = self._in_call(self._call, text, said)
            elif self._awaits is not None:
                text = self._before_call(text, said)
            else:
                content, tag, text = self._prose.take(text)
                said.content += content
                if tag:
                    self._awaits, self._tagged = tag, True

    def finish(self, said: ParsedDelta) -> None:
        if self._call is not None:
            said.content += self._prose.as_it_is(self._call.held)
        elif self._awaits is not None and (TAG in self._awaits or not self._bare):
            said.content += self._prose.as_it_is(self._awaits)
        said.content += self._prose.rest()

    def _in_call(self, call: CallObject, text: str, said: ParsedDelta) -> str:
        at = call.taken(text, 0, said)
        if call.ended:
            self._call, self._awaits, self._bare = None, "", True
        elif call.broken:
            # From here on a brace is text.
            said.content += self._prose.as_it_is(call.held)
            self._call = None
        return text[at:]

    def _before_call(self, text: str, said: ParsedDelta) -> str:
        awaits, character = self._awaits, text[0]
        assert awaits is not None, "before a call"
        if character in SPACE or (self._bare and character == ";" and ";" not in awaits):
            self._awaits = awaits + character
            return text[1:]
        self._awaits = None
        if character == "{":
            self._call = CallObject(self._calls, None if self._tagged else self._known, awaits)
            return text
        if TAG in awaits:
            said.content += self._prose.as_it_is(awaits)
            return text
        if self._bare:
            self._prose.after_tag()
        return awaits + text
