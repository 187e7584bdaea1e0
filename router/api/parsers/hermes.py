"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, and models trained like them."""

from typing import Final

from router.api.parsers.call_object import CallObject
from router.api.parsers.delta import SPACE, Calls, ParsedDelta, Prose

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class HermesParser:
    """Calls stand anywhere in the text. One whose closing tag is missing counts when it is whole."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._prose = Prose(OPEN)
        self._call: CallObject | None = None
        self._closing: str | None = None
        """Text after a whole call, as long as it may become the closing tag."""

    def feed(self, text: str, said: ParsedDelta) -> None:
        while text:
            if self._call is not None:
                text = self._in_call(self._call, text, said)
            elif self._closing is not None:
                text = self._after_call(self._closing + text, said)
            else:
                content, tag, text = self._prose.take(text)
                said.content += content
                if tag:
                    self._call = CallObject(self._calls, None, tag)

    def finish(self, said: ParsedDelta) -> None:
        if self._call is not None:
            said.content += self._prose.as_it_is(self._call.held)
        said.content += self._prose.rest()

    def _in_call(self, call: CallObject, text: str, said: ParsedDelta) -> str:
        at = call.taken(text, 0, said)
        if call.ended:
            self._call, self._closing = None, ""
        elif call.broken:
            said.content += self._prose.as_it_is(call.held)
            self._call = None
        return text[at:]

    def _after_call(self, text: str, said: ParsedDelta) -> str:
        """White space, the closing tag; or another call, or text, which do without it."""
        self._closing = None
        bare = text.lstrip(SPACE)
        if bare.startswith(CLOSE):
            self._prose.after_tag()
            return bare[len(CLOSE) :]
        if CLOSE.startswith(bare):
            self._closing = text
            return ""
        self._prose.after_tag()
        return text
