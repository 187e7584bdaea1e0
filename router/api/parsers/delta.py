"""The result of parsing a piece of text, and the numbering of tool calls."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

SPACE: Final = " \t\r\n"
"""White space around tags and calls is part of these."""


class CallPiece(msgspec.Struct):
    """More of one tool call. `name` and `id` come with its beginning; `arguments` is a piece of JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ParsedDelta(msgspec.Struct):
    """The result of parsing one or more pieces of text; parsers add to it. `calls` has at most one piece per call."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Parser(Protocol):
    """The state of one sequence."""

    def feed(self, text: str, said: ParsedDelta) -> None:
        """The next piece of text."""
        ...

    def finish(self, said: ParsedDelta) -> None:
        """End the output: no more text follows."""
        ...


class Calls:
    """Numbers the calls of one sequence. With `single`, whatever comes after the first call is left out."""

    def __init__(self, new_id: Callable[[int], str], single: bool = False) -> None:
        """`new_id` gives the id of a call by its number, from 0; the same whenever it is asked."""
        self._new_id = new_id
        self._single = single
        self.count = 0
        """Calls that have begun."""

    def begin(self, name: str, said: ParsedDelta) -> None:
        """A call begins."""
        self.count += 1
        if self.count == 1 or not self._single:
            said.calls.append(CallPiece(self.count - 1, self._new_id(self.count - 1), name))

    def more(self, arguments: str, said: ParsedDelta) -> None:
        """More of the arguments of the latest call."""
        if not arguments or (self._single and self.count > 1):
            return
        if said.calls and said.calls[-1].index == self.count - 1:
            said.calls[-1].arguments += arguments
        else:
            said.calls.append(CallPiece(self.count - 1, arguments=arguments))


class Prose:
    """Ordinary text between tags. White space before a tag, and the beginning of one, wait for what follows: between
    two texts with tags in between there is the space that was before the first tag."""

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._held = ""
        self._bare = False
        """Nothing but white space came since the last tag, to which that belongs."""
        self._gap = ""
        """White space before that tag, or the first of several."""
        self._spoken = False

    def after_tag(self) -> None:
        """A tag has ended here."""
        self._bare = True

    def take(self, text: str) -> tuple[str, str, str]:
        """Text that is certain now; the tag that it ends at with the white space before it, or nothing; what comes
        after that tag."""
        text, self._held = self._held + text, ""
        found = [(at, at + len(tag)) for tag in self._tags if (at := text.find(tag)) >= 0]
        if not found:
            return self._certain(text), "", ""
        at, end = min(found)
        begin = len(text[:at].rstrip(SPACE))
        before = self._shown(text[:begin])
        if self._spoken and not self._bare:
            self._gap = text[begin:at]
        return before, text[begin:end], text[end:]

    def as_it_is(self, text: str) -> str:
        """Give text that was taken for part of a tag as ordinary text."""
        if text:
            self._bare, self._gap, self._spoken = False, "", True
        return text

    def rest(self) -> str:
        """The text that is still held back when the text ends."""
        text, self._held = self._held, ""
        return self._shown(text)

    def _certain(self, text: str) -> str:
        cut = len(text)
        if self._tags:
            cut -= partial(text, self._tags)
            cut = len(text[:cut].rstrip(SPACE))
        self._held = text[cut:]
        return self._shown(text[:cut])

    def _shown(self, text: str) -> str:
        if self._bare and (text := text.lstrip(SPACE)):
            text, self._gap, self._bare = self._gap + text, "", False
        self._spoken = self._spoken or bool(text)
        return text


def partial(text: str, tags: tuple[str, ...]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of one of `tags`; 0 when there is none."""
    return max(
        (
            length
            for tag in tags
            for length in range(min(len(tag) - 1, len(text)), 0, -1)
            if text.endswith(tag[:length])
        ),
        default=0,
    )
