"""Counts the parts of a JSON body before anything is made of it. Pure.

Decoding holds the event loop, even on a thread, and takes time in proportion to the objects, keys and elements it
makes. A body within its bound in bytes may have millions of them. Counting what separates them costs little and is
done in slices, between which other tasks get a turn. A body is refused as soon as it has too many.
"""

from collections.abc import Iterator
from typing import Final

from tandem.core.errors import TandemError

SMALL_BYTES: Final = 128 << 10
"""A body that is no longer is not counted: it cannot have many."""
UNITS_MIN: Final = 1 << 18
"""Units that every body may have, whatever the context length; an element of a list is one unit. About 20 ms of
decoding and checking."""
_SLICE_BYTES: Final = 64 << 10
_CONTAINER: Final = 12
_KEY: Final = 3
"""Approximate cost of an object or array (`_CONTAINER`) and of a key (`_KEY`), relative to the time that an element
of a list takes."""


class BodyShape:
    """Count of the parts of one body so far. `units` are elements of lists; a key counts as three of them, an object
    or array as twelve."""

    __slots__ = ("_escape", "_in_text", "units")

    def __init__(self) -> None:
        self.units = 0
        self._in_text = False
        self._escape = b""
        """A backslash whose character has not come yet."""

    def add(self, piece: bytes) -> None:
        """The next bytes."""
        piece = self._escape + piece
        ended = len(piece.rstrip(b"\\"))
        self._escape = b"\\" if (len(piece) - ended) % 2 else b""
        piece = piece[: len(piece) - len(self._escape)]
        # What is escaped ends no text; pairs go first, as a backslash may be what is escaped.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[1 if self._in_text else 0 :: 2])
        self._in_text ^= len(parts) % 2 == 0
        self.units += outside.count(b",") + _KEY * outside.count(b":")
        self.units += _CONTAINER * (outside.count(b"{") + outside.count(b"["))


def check_shape(body: bytes, units_max: int) -> Iterator[None]:
    """Yields after every slice. Raises `invalid_request` when there is more in the body than that."""
    shape = BodyShape()
    for place in range(0, len(body), _SLICE_BYTES):
        shape.add(body[place : place + _SLICE_BYTES])
        if shape.units > units_max:
            raise too_many("body", units_max)
        yield


def too_many(what: str, units_max: int) -> TandemError:
    """The refusal."""
    return TandemError(
        "invalid_request",
        f"the {what} has too many parts: objects and arrays count as {_CONTAINER}, keys as {_KEY}, elements of "
        f"lists as one, and at most {units_max} are read",
    )
