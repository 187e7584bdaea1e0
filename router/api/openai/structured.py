"""Structured output: from `response_format` and vLLM's parameters to the grammar that workers bind output to."""

from typing import Any, Final

import msgspec

from router.api.openai.schema import Parameters, ResponseFormat
from tandem.core.errors import TandemError
from tandem.core.request import Grammar

_JSON_OBJECT: Final = Grammar("json")


def asked_grammar(request: Parameters) -> tuple[str, Grammar] | None:
    """The parameter that binds the answer, and to what; None for free text. Raises `invalid_request`."""
    if (
        request.response_format is None
        and request.structured_outputs is None
        and request.guided_json is None
        and request.guided_regex is None
        and request.guided_choice is None
        and request.guided_grammar is None
    ):
        return None
    found = [*_response_format(request.response_format), *_structured(request), *_guided(request)]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found[:2])
        raise _invalid(found[1][0], f"{names} both say what the answer has to be; give one of them")
    return found[0] if found else None


def _response_format(asked: ResponseFormat | None) -> list[tuple[str, Grammar]]:
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [("response_format", _JSON_OBJECT)]
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise _invalid("response_format.json_schema", "response_format.json_schema.schema is missing")
    return [("response_format", Grammar("json", _encoded(asked.json_schema.schema)))]


def _structured(request: Parameters) -> list[tuple[str, Grammar]]:
    asked = request.structured_outputs
    if asked is None:
        return []
    found = _grammars(asked.json, asked.regex, asked.choice, asked.grammar, "structured_outputs.")
    if asked.json_object:
        found.append(("structured_outputs.json_object", _JSON_OBJECT))
    if not found:
        raise _invalid("structured_outputs", "structured_outputs: one of json, regex, choice and grammar is needed")
    return found


def _guided(request: Parameters) -> list[tuple[str, Grammar]]:
    given = request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar
    return _grammars(*given, "guided_")


def _grammars(
    schema: dict[str, Any] | str | None, regex: str | None, choice: list[str] | None, ebnf: str | None, prefix: str
) -> list[tuple[str, Grammar]]:
    found = []
    if schema is not None:
        found.append((f"{prefix}json", Grammar("json", _schema(schema, f"{prefix}json"))))
    if regex is not None:
        found.append((f"{prefix}regex", Grammar("regex", regex)))
    if choice is not None:
        found.append((f"{prefix}choice", Grammar("choice", _encoded(choice))))
    if ebnf is not None:
        found.append((f"{prefix}grammar", Grammar("ebnf", ebnf)))
    return found


def _schema(schema: dict[str, Any] | str, param: str) -> str:
    """A schema as an object, or as the text of one."""
    if isinstance(schema, dict):
        return _encoded(schema)
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(param, f"{param}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(param, f"{param}: a JSON schema is an object")
    return schema


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _invalid(param: str, message: str) -> TandemError:
    return TandemError("invalid_request", message, param=param)
