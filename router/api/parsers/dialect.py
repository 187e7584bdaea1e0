"""Finds the formats in which a model writes tool calls and reasoning, as its service sets them or as its chat
template shows them."""

from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from router.api.parsers import hermes, llama3_json, mistral, think
from tandem.core.errors import TandemError

AUTO: Final = "auto"
NONE: Final = "none"
TOOL_PARSERS: Final = (AUTO, NONE, "hermes", "llama3_json", "mistral")
REASONING_PARSERS: Final = (AUTO, NONE, "think")

_TAGS: Final = MappingProxyType(
    {
        "hermes": (hermes.OPEN, hermes.CLOSE),
        "llama3_json": (llama3_json.TAG,),
        "mistral": (mistral.TAG, mistral.ARGS, mistral.CALL_ID),
        "think": (think.OPEN, think.CLOSE),
    }
)
_XML_CALLS: Final = "<function="
"""Some templates put calls in the same tags that are no JSON."""


@dataclass(frozen=True)
class ParserSettings:
    """Names of parsers. `auto` looks at the chat template; with `none` what a model writes is all content."""

    tools: str = AUTO
    reasoning: str = AUTO

    def __post_init__(self) -> None:
        for name, value, known in (
            ("tool_parser", self.tools, TOOL_PARSERS),
            ("reasoning_parser", self.reasoning, REASONING_PARSERS),
        ):
            if value not in known:
                expected = ", ".join(known)
                raise TandemError("bad_setting", f"{name} = {value!r}: expected one of {expected}", param=name)


class Dialect(msgspec.Struct, frozen=True):
    """`tools` is a tool parser's name, `none` where none is wanted, and empty where none is known."""

    tools: str = ""
    reasoning: bool = False
    takes_tools: bool = False
    """Whether the chat template shows tools to the model."""
    special_tools: bool = False
    """The tags of tool calls are special tokens, which an answer's text lacks unless they are asked for."""
    special_reasoning: bool = False


SILENT: Final = Dialect()


def dialect_of(template: str, settings: ParserSettings, *, takes_tools: bool, special: Collection[str]) -> Dialect:
    """The dialect that `settings` and the source of a chat template give; `special` are the texts of the special
    tokens."""
    tools = _shown_tools(template) if settings.tools == AUTO else settings.tools
    reasoning = settings.reasoning == "think" or (settings.reasoning == AUTO and _shows_reasoning(template))
    return Dialect(
        tools=tools,
        reasoning=reasoning,
        takes_tools=takes_tools,
        special_tools=any(tag in special for tag in _TAGS.get(tools, ())),
        special_reasoning=reasoning and any(tag in special for tag in _TAGS["think"]),
    )


def _shown_tools(template: str) -> str:
    """The format in which a template writes earlier tool calls, or for which it asks; empty when none is
    recognized."""
    if hermes.OPEN in template and _XML_CALLS not in template:
        return "hermes"
    if mistral.TAG in template:
        return "mistral"
    if llama3_json.TAG in template or ('"parameters": ' in template and "ipython" in template.lower()):
        return "llama3_json"
    return ""


def _shows_reasoning(template: str) -> bool:
    return think.OPEN in template or think.CLOSE in template
