"""Decodes bytes into a request structure; anything that does not fit is answered with the parameter's name.

A valid body is decoded in one pass. Only a refused body is examined again, parameter by parameter, to say what is
wrong with it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.openai.unsupported import UNSUPPORTED, asks_for, unsupported
from tandem.core.errors import TandemError

Request = TypeVar("Request", bound=msgspec.Struct)

_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_PAIR: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*(?P<escape>" + _HIGH + rb"(?!" + _LOW + rb")|(?<!" + _HIGH + rb")" + _LOW + rb")"
)
"""An escaped half of a surrogate pair without the other. A backslash that is escaped itself begins none."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """The body of a chat request. Raises `invalid_request` or `unsupported_parameter`."""
    return decode_as(body, _CHAT, ChatRequest)


def decode_completion(body: bytes) -> CompletionRequest:
    """The body of a completion request. Raises `invalid_request` or `unsupported_parameter`."""
    return decode_as(body, _COMPLETION, CompletionRequest)


def convert(values: Mapping[str, Any], kind: type[Request]) -> Request:
    """A request from parameters by name. Raises `invalid_request` or `unsupported_parameter`, naming one."""
    wanted = {}
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in values.items():
        if name in fields:
            wanted[name] = value
        elif name not in UNSUPPORTED:
            raise TandemError("invalid_request", f"unknown parameter: {name!r}", param=name)
        elif asks_for(name, value):
            raise unsupported(name)
    for name, value in wanted.items():
        _check(name, value, fields[name].type)
    for name, field in fields.items():
        if field.required and name not in wanted:
            raise TandemError("invalid_request", f"missing parameter: {name!r}", param=name)
    return msgspec.convert(wanted, kind, str_keys=True)


def decode_as(body: bytes, decoder: "msgspec.json.Decoder[Request]", kind: type[Request]) -> Request:
    """A body as `kind`, which `decoder` decodes. Raises `invalid_request` or `unsupported_parameter`."""
    if body.startswith(_BYTE_ORDER_MARK):
        body = body[len(_BYTE_ORDER_MARK) :]
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        return convert(_object(body), kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(body, error) from error
    except RecursionError as error:
        raise TandemError("invalid_request", "the body is nested too deeply") from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except RecursionError as error:
        raise TandemError("invalid_request", "the body is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise _unreadable_value(body) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(body, error) from error
    if not isinstance(content, dict):
        raise TandemError("invalid_request", "the body must be a JSON object")
    return content


def _not_json(body: bytes, error: Exception) -> TandemError:
    half = _HALF_PAIR.search(body)
    if half is None:
        return TandemError("invalid_request", f"the body is not JSON: {error}")
    escape = half["escape"].decode()
    problem = f"half of a surrogate pair ({escape}) is no character: send both halves, or the character itself"
    return TandemError("invalid_request", f"the body has a text that cannot be read: {problem}")


def _unreadable_value(body: bytes) -> TandemError:
    """The error for JSON with a number no machine type can hold, naming the parameter it stands in."""
    try:
        parameters = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return TandemError("invalid_request", "the body must be a JSON object")
    for name, value in parameters.items():
        try:
            msgspec.json.decode(value)
        except msgspec.ValidationError:
            return TandemError("invalid_request", f"{name}: a number is out of range", param=name)
    return TandemError("invalid_request", "a number is out of range")


def _check(name: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        path = "" if place is None else place["path"].replace("[...]", "")
        reason = text if place is None else text[: place.start()]
        raise TandemError("invalid_request", f"{name}{path}: {reason}", param=f"{name}{path}") from error
