"""Protobuf messages drawn from their descriptors: fields with values at their edges, and bytes that are none."""

import math
import random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS: Final = {
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, 1.0, -1.0, 3e38, math.nan, math.inf, -math.inf),
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 7, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 7, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 7, 2**64 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}
_TEXTS: Final = ("", "tiny", "user", "hi", "{}", "[1", '{"type": "object"}', "\x00", "é\U0001f98a\u202e", "x" * 5_000)
_DEPTH: Final = 5
_UNKNOWN: Final = b"\xfa\x7f\x03abc"
"""Field 2047, which no message has."""


def drawn(kind: type[Message], seed: int) -> bytes:
    """A message of this kind, or what is left of one."""
    draw = random.Random(seed)
    message = kind()
    _fill(message, draw, 0, draw.choice((0.0, 0.02, 0.1, 0.3, 0.6)))
    data = message.SerializeToString()
    spoiled = draw.randrange(6)
    if spoiled == 0:
        return data + _UNKNOWN
    if spoiled == 1 and data:
        return data[: draw.randrange(len(data))]
    if spoiled == 2 and data:
        flipped = bytearray(data)
        for _ in range(draw.randrange(1, 5)):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if spoiled == 3:
        other = kind()
        _fill(other, draw, 0, 0.3)
        return data + other.SerializeToString()  # both sides of a oneof; the last one counts
    return data


def _fill(message: Any, draw: random.Random, depth: int, share: float) -> None:
    for field in message.DESCRIPTOR.fields:
        wanted = 1.0 if field.name == "model" else 0.8 if field.containing_oneof and depth == 0 else share
        if draw.random() >= wanted:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field, draw)
        elif field.is_repeated:
            _fill_repeated(getattr(message, field.name), field, draw, depth, share)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            if depth < _DEPTH:
                _fill(getattr(message, field.name), draw, depth + 1, share)
        else:
            setattr(message, field.name, _value(field, draw))


def _fill_map(values: Any, field: FieldDescriptor, draw: random.Random) -> None:
    key, value = field.message_type.fields
    if value.message_type is None:
        for _ in range(draw.choice((1, 3, 400))):
            values[_value(key, draw)] = _value(value, draw)


def _fill_repeated(values: Any, field: FieldDescriptor, draw: random.Random, depth: int, share: float) -> None:
    if field.message_type is None:
        values.extend(_value(field, draw) for _ in range(draw.choice((1, 2, 300))))
    elif depth < _DEPTH:
        for _ in range(draw.choice((1, 2, 20)) if depth < 2 else 1):
            _fill(values.add(), draw, depth + 1, share)


def _value(field: FieldDescriptor, draw: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = draw.choice(_TEXTS)
        if field.name == "model":
            text = "tiny" if draw.random() < 0.9 else text
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice([each.number for each in field.enum_type.values] + [99])
    return draw.choice(_NUMBERS[kind])
