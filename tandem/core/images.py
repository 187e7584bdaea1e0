"""Images in requests: what their files say of their size before anything is decoded. Pure.

Files of the web's four formats say it in their first bytes. What decodes a file trusts its own reading, not this one:
here is what keeps a few hundred bytes that claim to be a huge picture from getting that far.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PIXELS_MAX: Final = 32 << 20
"""The most pixels that all images of a request may have together, decoded: about 100 MB of colours."""
IMAGES_MAX: Final = 64
"""The most images that one request may have, whatever a model takes."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
_GIF: Final = (b"GIF87a", b"GIF89a")
_NO_SIZE_FOLLOWS: Final = (0xC4, 0xC8, 0xCC)
"""JPEG markers among those of frames that are none: tables of codes, an extension, arithmetic conditions."""
_ALONE: Final = (0x01, *range(0xD0, 0xD8))
"""JPEG markers without a length."""
_MARKERS_MAX: Final = 1024
"""The most markers that are read of a JPEG file before its first scan. Cameras write some dozens; looking through a
file of nothing else would take a second."""


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height


def size_of(data: bytes) -> Size | None:
    """The size that a PNG, JPEG, GIF or WebP file states; None for any other file, and for one that is cut off before
    it states its size."""
    if data.startswith(_PNG):
        return _unpacked(">II", data, 16) if data[12:16] == b"IHDR" else None
    if data.startswith(_GIF):
        return _unpacked("<HH", data, 6)
    if data.startswith(_JPEG):
        return _jpeg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _jpeg(data: bytes) -> Size | None:
    """The largest frame that the file has: some programs take the first, some the last."""
    found = [size for size in _frames(data) if size is not None]
    return max(found, key=lambda size: size.pixels, default=None)


def _frames(data: bytes) -> Iterator[Size | None]:
    at = 2
    for _ in range(_MARKERS_MAX):
        if at + 4 > len(data) or data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in (0xD9, 0xDA):
            return
        else:
            if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE_FOLLOWS:
                size = _unpacked(">HH", data, at + 5)
                yield None if size is None else Size(size.height, size.width)
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + max(2, length)


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return Size(1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little"))
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return Size(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        size = _unpacked("<HH", data, 26)
        return None if size is None else Size(size.width & 0x3FFF, size.height & 0x3FFF)
    return None


def _unpacked(layout: str, data: bytes, at: int) -> Size | None:
    """Width and height, unless the file ends before or one of them is nothing."""
    if len(data) < at + struct.calcsize(layout):
        return None
    found = Size(*struct.unpack_from(layout, data, at))
    return found if found.pixels else None
