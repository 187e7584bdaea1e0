"""Sizes in bytes: a number, or one with a suffix such as `512Mi` or `2G`."""

import re
from typing import Annotated, Final

from msgspec import Meta

PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}

Quantity = Annotated[str, Meta(pattern=PATTERN, max_length=32)] | Annotated[int, Meta(ge=0)]
"""Bytes: a number, or one with a suffix."""


def quantity(text: str | int) -> int | None:
    """Bytes of a size such as `512Mi` or `2G`, or None when it is not one."""
    found = _PARTS.fullmatch(str(text))
    return None if found is None else round(float(found[1]) * _UNITS[found[2] or ""])
