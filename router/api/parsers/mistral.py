"""`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and `[TOOL_CALLS]name[ARGS]{…}` of newer tokenizers: Mistral."""

from typing import Final

from router.api.parsers.array_calls import ArrayCalls
from router.api.parsers.delta import SPACE, Calls, ParsedDelta, Prose, partial
from router.api.parsers.json_text import JsonText

TAG: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
_NAME_MAX: Final = 256


class MistralParser:
    """The tag may stand anywhere. In the newer form the name may be followed by `[CALL_ID]` and an id, which is left
    out, and `[ARGS]` may be missing."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._prose = Prose(TAG)
        self._tagged: str | None = None
        """Text after the tag, as long as it may become the beginning of calls."""
        self._array: ArrayCalls | None = None
        self._arguments: JsonText | None = None

    def feed(self, text: str, said: ParsedDelta) -> None:
        while text:
            if self._arguments is not None:
                text = self._in_arguments(self._arguments, text, said)
            elif self._array is not None:
                text = self._in_array(self._array, text, said)
            elif self._tagged is not None:
                text = self._after_tag(self._tagged, text, said)
            else:
                content, tag, text = self._prose.take(text)
                said.content += content
                if tag:
                    self._tagged = tag

    def finish(self, said: ParsedDelta) -> None:
        if self._array is not None:
            said.content += self._prose.as_it_is(self._array.held)
        elif self._tagged is not None:
            said.content += self._prose.as_it_is(self._tagged)
        said.content += self._prose.rest()

    def _after_tag(self, tagged: str, text: str, said: ParsedDelta) -> str:
        """One character more of what stands between the tag and a bracket or brace."""
        character, after = text[0], tagged.partition(TAG)[2].strip(SPACE)
        if character == "[" and not after:
            self._tagged, self._array = None, ArrayCalls(self._calls, before=tagged)
            return text
        name = _name(after) if character == "{" else None
        if name is not None:
            self._tagged, self._arguments = None, JsonText()
            self._calls.begin(name, said)
            return text
        if character == "{" or not _may_be_name(after + character):
            self._tagged = None
            said.content += self._prose.as_it_is(tagged)
            return text
        self._tagged = tagged + character
        return text[1:]

    def _in_array(self, array: ArrayCalls, text: str, said: ParsedDelta) -> str:
        at = array.taken(text, 0, said)
        if array.ended:
            self._array = None
            self._prose.after_tag()
        elif array.broken:
            said.content += self._prose.as_it_is(array.held)
            self._array = None
        return text[at:]

    def _in_arguments(self, arguments: JsonText, text: str, said: ParsedDelta) -> str:
        at = arguments.taken(text, 0)
        self._calls.more(text[:at], said)
        if arguments.ended:
            self._prose.after_tag()
        if arguments.ended or arguments.broken:
            self._arguments = None
        return text[at:]


def _name(after: str) -> str | None:
    """The name of a call, of what stands before its arguments."""
    name = after.removesuffix(ARGS).partition(CALL_ID)[0].strip(SPACE)
    return name or None


def _may_be_name(after: str) -> bool:
    """Whether it may go on to the arguments of a call."""
    name, bracket, rest = after.partition("[")
    if len(name) > _NAME_MAX or any(character in name for character in "\n\"'{}]()"):
        return False
    if not bracket:
        return True
    rest = bracket + rest
    if not rest.startswith(CALL_ID):
        return partial(rest, (ARGS, CALL_ID)) == len(rest) or rest.rstrip(SPACE) == ARGS
    call_id, bracket, tail = rest[len(CALL_ID) :].partition("[")
    tail = bracket + tail
    short = len(call_id) <= _NAME_MAX and call_id.strip(SPACE).replace("-", "").isalnum()
    return (short or not call_id.strip(SPACE)) and (not tail or ARGS.startswith(tail.rstrip(SPACE)))
