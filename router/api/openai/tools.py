"""Tools of a chat request: what its template is shown, what may be called, and what the answer is then bound to."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.api.openai.schema import ChatRequest, NamedTool, Tool
from router.api.parsers.dialect import NONE, Dialect
from router.api.parsers.output import ParserSpec
from tandem.core.errors import TandemError
from tandem.core.request import Grammar

_CHOICES: Final = ("auto", "none", "required")


class Toolbox(msgspec.Struct, frozen=True):
    """`shown` is for the template; `choice` is `auto`, `required` or `named`, and `names` may be called then."""

    shown: list[dict[str, Any]]
    tools: Sequence[Tool]
    choice: str
    names: tuple[str, ...]
    single: bool


def toolbox(request: ChatRequest) -> Toolbox | None:
    """The tools that are in play; None without any. With `none` the model is not even shown them.

    Raises `invalid_request`.
    """
    tools, choice = request.tools or (), request.tool_choice
    names = tuple(tool.function.name for tool in tools)
    if len(set(names)) < len(names):
        raise _invalid("tools", "two tools have the same name")
    if isinstance(choice, str) and choice not in _CHOICES:
        known = ", ".join(_CHOICES)
        raise _invalid("tool_choice", f"tool_choice: {choice!r} is not one of {known}, nor a function")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise _invalid("tool_choice", f"tool_choice: {choice.function.name!r} is not among the tools")
    if choice == "none" or not tools:
        if choice == "required":
            raise _invalid("tool_choice", "tool_choice: there are no tools to require a call of")
        return None
    shown = [{"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in tools]
    single = request.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        return Toolbox(shown, tools, "named", (choice.function.name,), True)
    return Toolbox(shown, tools, choice or "auto", names, single)


def call_grammar(box: Toolbox) -> Grammar | None:
    """The grammar that makes the model call tools: the arguments of the one function, or an array of calls of any.
    None for `auto`."""
    if box.choice == "auto":
        return None
    if box.choice == "named":
        (tool,) = (tool for tool in box.tools if tool.function.name == box.names[0])
        return Grammar("json", _encoded(_parameters(tool)))
    definitions: dict[str, Any] = {}
    calls = [_call_schema(number, tool, definitions) for number, tool in enumerate(box.tools)]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
    }
    if box.single:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return Grammar("json", _encoded(schema))


def calls_of(box: Toolbox, dialect: Dialect) -> ParserSpec:
    """How tool calls are found in the answer. Raises `unsupported_parameter` where the way the model writes them is
    unknown."""
    if box.choice == "named":
        return ParserSpec(calls="named", names=box.names, single=True)
    if box.choice == "required":
        return ParserSpec(calls="array", names=box.names, single=box.single)
    if not dialect.takes_tools:
        raise TandemError(
            "unsupported_parameter",
            "tools: the model's chat template does not show tools to the model",
            param="tools",
        )
    if not dialect.tools:
        raise TandemError(
            "unsupported_parameter",
            "tools: how this model writes tool calls is not known from its chat template; the service's operator can "
            "set tool_parser",
            param="tools",
        )
    calls = "" if dialect.tools == NONE else dialect.tools
    return ParserSpec(calls=calls, names=box.names, single=box.single)


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object", "properties": {}}


def _call_schema(number: int, tool: Tool, definitions: dict[str, Any]) -> dict[str, Any]:
    """One element of the array. A schema's own definitions move to the top, where references are looked up, under
    names of the tool's own."""
    parameters = dict(_parameters(tool))
    for keyword in ("$defs", "definitions"):
        for name, definition in (parameters.pop(keyword, None) or {}).items():
            definitions[f"{number}_{name}"] = _moved(definition, number)
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [tool.function.name]},
            "parameters": _moved(parameters, number),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, number: int) -> Any:
    """The schema, with references to its definitions changed to where these are now."""
    if isinstance(schema, list):
        return [_moved(each, number) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, number) for key, value in schema.items()}
    reference = schema.get("$ref")
    for keyword in ("#/$defs/", "#/definitions/"):
        if isinstance(reference, str) and reference.startswith(keyword):
            moved["$ref"] = f"#/$defs/{number}_{reference.removeprefix(keyword)}"
    return moved


def _encoded(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def _invalid(param: str, message: str) -> TandemError:
    return TandemError("invalid_request", message, param=param)
