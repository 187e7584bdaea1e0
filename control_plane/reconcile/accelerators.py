"""Tells how much memory an accelerator has from the names that people and clusters give it. Pure.

GPU feature discovery labels nodes with the product's name, such as `NVIDIA-H100-80GB-HBM3` or, for a slice of one,
`NVIDIA-H100-80GB-HBM3-MIG-1g.10gb`; people write `h100-sxm`.
"""

import re
from collections.abc import Mapping
from typing import Final

MEMORY: Final[Mapping[str, int]] = {
    "a10": 24 << 30,
    "a100": 80 << 30,
    "a10g": 24 << 30,
    "a16": 16 << 30,
    "a30": 24 << 30,
    "a40": 48 << 30,
    "b100": 180 << 30,
    "b200": 180 << 30,
    "b300": 268 << 30,
    "gb200": 186 * 10**9,
    "gb300": 278 * 10**9,
    "gh200": 96 << 30,
    "h100": 80 << 30,
    "h100-nvl": 94 << 30,
    "h20": 96 << 30,
    "h200": 141 * 10**9,
    "h800": 80 << 30,
    "l20": 48 << 30,
    "l4": 24 << 30,
    "l40": 48 << 30,
    "mi210": 64 << 30,
    "mi250": 64 << 30,
    "mi250x": 64 << 30,
    "mi300a": 128 << 30,
    "mi300x": 192 << 30,
    "mi308x": 192 << 30,
    "mi325x": 256 << 30,
    "mi350x": 288 << 30,
    "mi355x": 288 << 30,
    "rtx-2000": 16 << 30,
    "rtx-3090": 24 << 30,
    "rtx-4000": 20 << 30,
    "rtx-4090": 24 << 30,
    "rtx-5090": 32 << 30,
    "rtx-6000": 48 << 30,
    "rtx-a4000": 16 << 30,
    "rtx-a5000": 24 << 30,
    "rtx-a6000": 48 << 30,
    "rtx-pro-6000": 96 << 30,
    "t4": 16 << 30,
    "v100": 32 << 30,
}
"""Bytes of one device, by the beginning of its name without the maker's."""
_MAKERS: Final = frozenset(("nvidia", "amd", "tesla", "geforce", "quadro", "instinct"))
_HOST_MEMORY: Final = ("gh200", "gb200", "gb300")
"""Whose names state the memory of the CPU beside them, or of two devices."""
_SLICE: Final = re.compile(r"mig-\d+c?\.?\d*g\.(\d+)gb")
_STATED: Final = re.compile(r"(?:^|-)(\d+)-?g(?:i?b)?(?:-|$)")


def memory_of_type(name: str) -> int | None:
    """Bytes of memory of one accelerator of this name; None for a name that says nothing about it."""
    plain = plain_name(name)
    if found := _SLICE.search(plain):
        return int(found[1]) << 30
    known = _by_table(plain)
    if known is not None and plain.startswith(_HOST_MEMORY):
        return known
    stated = _STATED.search(plain)
    return int(stated[1]) << 30 if stated is not None else known


def plain_name(name: str) -> str:
    """The accelerator's name without its maker, in lower case, with hyphens between words: `h100-80gb-hbm3`."""
    return "-".join(word for word in re.split(r"[-_\s]+", name.lower()) if word not in _MAKERS)


def _by_table(plain: str) -> int | None:
    names = (name for name in MEMORY if plain in (name, f"{name}s") or plain.startswith((f"{name}-", f"{name}s-")))
    longest = max(names, key=len, default=None)
    return None if longest is None else MEMORY[longest]
