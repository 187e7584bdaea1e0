"""Selects the parsers for a request's answer, and defines the parsers themselves, one chain per sequence."""

from hashlib import blake2b

import msgspec

from router.api.parsers.array_calls import ArrayParser, NamedParser
from router.api.parsers.delta import Calls, ParsedDelta, Parser
from router.api.parsers.hermes import HermesParser
from router.api.parsers.llama3_json import Llama3JsonParser
from router.api.parsers.mistral import MistralParser
from router.api.parsers.think import ThinkParser


class ParserSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the text of an answer is parsed. The spec travels with a resumable request, so fields are only ever
    added."""

    calls: str = ""
    """The format of tool calls: `hermes`, `llama3_json`, `mistral`; `array` and `named` for what a grammar makes the
    model write; empty when there are none to be found."""
    names: tuple[str, ...] = ()
    """The tools that may be called; with `named` the one that is."""
    single: bool = False
    """Whether at most one tool call is wanted."""
    reasoning: bool = False
    opened: bool = False
    """The prompt ends with the tag that opens reasoning."""


class OutputParser:
    """Reads one sequence: reasoning first, then content and tool calls."""

    __slots__ = ("_calls", "_think", "_tools")

    def __init__(self, speech: ParserSpec, source: str, sequence: int) -> None:
        """`source` is the request's own, so that its calls get ids that no other request's have."""
        self._calls = Calls(lambda index: _call_id(speech.calls, source, sequence, index), speech.single)
        self._think = ThinkParser(speech.opened) if speech.reasoning else None
        self._tools = _tools(speech, self._calls)

    @property
    def called(self) -> bool:
        """Whether a tool call has begun."""
        return self._calls.count > 0

    def feed(self, text: str, said: ParsedDelta) -> None:
        """The next piece of text."""
        if self._think is not None:
            reasoning, text = self._think.feed(text)
            said.reasoning += reasoning
        self._content(text, said)

    def finish(self, said: ParsedDelta) -> None:
        """Add to `said` what the parsers still hold at the end of the sequence."""
        if self._think is not None:
            reasoning, text = self._think.finish()
            said.reasoning += reasoning
            self._content(text, said)
        if self._tools is not None:
            self._tools.finish(said)

    def _content(self, text: str, said: ParsedDelta) -> None:
        if self._tools is None:
            said.content += text
        elif text:
            self._tools.feed(text, said)


def _tools(speech: ParserSpec, calls: Calls) -> Parser | None:
    match speech.calls:
        case "hermes":
            return HermesParser(calls)
        case "llama3_json":
            return Llama3JsonParser(calls, speech.names)
        case "mistral":
            return MistralParser(calls)
        case "array":
            return ArrayParser(calls)
        case "named":
            return NamedParser(calls, speech.names[0])
    return None


def _call_id(form: str, source: str, sequence: int, index: int) -> str:
    """Mistral's templates take ids of nine letters and digits only."""
    drawn = blake2b(f"{source}\x00{sequence}\x00{index}".encode(), digest_size=12, person=b"tandem-call").hexdigest()
    return drawn[:9] if form == "mistral" else f"call_{drawn}"
