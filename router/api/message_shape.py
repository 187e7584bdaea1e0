"""Counts the parts of a `GenerateRequest` before anything is made of it, as `router.api.body_shape` does, in
protobuf's wire format. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from protos.inference_pb2 import GenerateRequest
from router.api.body_shape import too_many
from tandem.core.errors import TandemError

_STEPS: Final = 2048
"""Number of fields that are examined in a row, which takes about 2 ms."""
_SLICE_BYTES: Final = 64 << 10
_MESSAGE: Final = 12
_FIELD: Final = 3
_MORE: Final = bytes(range(0x80, 0x100))
"""Bytes of a number after which another one belongs to it."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def check_message(raw: bytes, units_max: int) -> Iterator[None]:
    """Count the parts of a message and yield after every slice. Raises `invalid_request` when the message has more
    than `units_max`. The count ends at content that cannot be read, which is left to protobuf to report."""
    units = 0
    for step, more in enumerate(_units(raw)):
        units += more
        if units > units_max:
            raise too_many("message", units_max)
        if step % _STEPS == 0:
            yield


def _units(raw: bytes) -> Iterator[int]:
    """The units of one part after another: 12 for a message, 3 for another field, 1 for a number of a packed list."""
    within: list[tuple[int, int, Any]] = [(0, len(raw), GenerateRequest.DESCRIPTOR)]
    while within:
        at, end, kind = within.pop()
        while at < end:
            try:
                tag, at = _number(raw, at)
                known = kind.fields_by_number.get(tag >> 3)
                size, at = _sized(raw, at, tag & 7)
            except (IndexError, TandemError):
                return
            value, at = at, at + size
            if known is None or tag & 7 != _LENGTH or at > end:
                yield _FIELD
            elif known.message_type is not None:
                yield _MESSAGE
                within += [(at, end, kind), (value, at, known.message_type)]
                break
            elif known.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                yield _FIELD
            else:
                for place in range(value, at, _SLICE_BYTES):
                    yield len(raw[place : min(at, place + _SLICE_BYTES)].translate(None, _MORE))


def _sized(raw: bytes, at: int, wire: int) -> tuple[int, int]:
    """The size of a value in bytes, and the position where it begins."""
    if wire == _LENGTH:
        return _number(raw, at)
    if wire == _VARINT:
        return _number(raw, at)[1] - at, at
    if wire in (_FIXED64, _FIXED32):
        return 8 if wire == _FIXED64 else 4, at
    raise TandemError("invalid_request", "groups are not read")


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes and the place behind it. Raises `IndexError` where it does not end."""
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError(at)
