"""Tells how much memory an accelerator has from the names and labels that people and clusters give it. Pure.

GPU feature discovery labels nodes with the product's name, such as `NVIDIA-H100-80GB-HBM3` or, for a slice of one,
`NVIDIA-H100-80GB-HBM3-MIG-1g.10gb`, and with the memory of each in MiB, `RESOURCE.memory`. AMD's node labeller writes
`AMD_Instinct_MI300X_OAM`, and whole GiB as `amd.com/gpu.vram=192G`. People write `h100-sxm`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

MEMORY: Final[Mapping[str, int]] = {
    "a2": 16 << 30,
    "a10": 24 << 30,
    "a100": 80 << 30,
    "a10g": 24 << 30,
    "a16": 16 << 30,
    "a30": 24 << 30,
    "a40": 48 << 30,
    "a800": 80 << 30,
    "b100": 180 << 30,
    "b200": 180 << 30,
    "b300": 269 << 30,
    "gb200": 186 << 30,
    "gb300": 278 << 30,
    "gh200": 144 << 30,
    "gh200-480gb": 96 << 30,
    "h100": 80 << 30,
    "h100-nvl": 94 << 30,
    "h20": 96 << 30,
    "h20-3e": 141 << 30,
    "h200": 141 << 30,
    "h800": 80 << 30,
    "l20": 48 << 30,
    "l4": 24 << 30,
    "l40": 48 << 30,
    "mi100": 32 << 30,
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
    "rtx-4500": 24 << 30,
    "rtx-5000": 32 << 30,
    "rtx-6000": 48 << 30,
    "rtx-a4000": 16 << 30,
    "rtx-a4500": 20 << 30,
    "rtx-a5000": 24 << 30,
    "rtx-a6000": 48 << 30,
    "rtx-8000": 48 << 30,
    "rtx-pro-6000": 96 << 30,
    "t4": 16 << 30,
    "v100": 32 << 30,
}
"""Bytes of one device, by the beginning of its name without the maker's: no less than drivers report, and the most
that is sold under a name."""
_MAKERS: Final = frozenset(("nvidia", "amd", "tesla", "geforce", "quadro", "instinct"))
_PRODUCTS: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
_VRAM: Final = re.compile(r"(?:beta\.)?amd\.com/gpu\.vram(?:\.(\d+)G)?")
NODES: Final = ("nvidia.com/gpu.product", "amd.com/gpu.vram")
"""Labels that nodes with accelerators have."""
_HOST_MEMORY: Final = ("gh200-480gb", "gb200", "gb300")
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


def memory_of_slice(resource: str) -> int | None:
    """Bytes of a slice that is a resource of its own, such as `nvidia.com/mig-3g.40gb`; None for other resources."""
    found = _SLICE.search(resource.lower())
    return None if found is None else int(found[1]) << 30


def labelled_memory(nodes: Iterable[Mapping[str, str]], type_: str, resource: str, key: str | None) -> int | None:
    """Bytes of one accelerator of a type, from the labels of the nodes that have it: those whose label `key` says so
    or, without a key, those with a product of this name. Of different sizes the largest, since any of these nodes may
    be meant; None where no label tells."""
    sizes = (size for labels in nodes if _has(labels, type_, key) for size in _sizes(labels, resource))
    return max(sizes, default=None)


def told_labels(labels: Mapping[str, str], key: str | None) -> dict[str, str]:
    """The labels of a node that say what accelerators it has."""
    kept = {name: value for name, value in labels.items() if name.endswith(".memory") or _VRAM.fullmatch(name)}
    return {**kept, **{name: labels[name] for name in (*_PRODUCTS, key or "") if name in labels}}


def _has(labels: Mapping[str, str], type_: str, key: str | None) -> bool:
    if key is not None:
        return labels.get(key) == type_
    return type_ in (labels.get(name, "").removesuffix("-SHARED") for name in _PRODUCTS)


def _sizes(labels: Mapping[str, str], resource: str) -> Iterator[int]:
    told = labels.get(f"{resource.removesuffix('.shared')}.memory", "")
    if told.isdecimal() and int(told) > 0:
        yield int(told) << 20
    if resource.startswith("amd.com/"):
        for name, value in labels.items():
            if (found := _VRAM.fullmatch(name)) and (whole := found[1] or value.removesuffix("G")).isdecimal():
                # Rounded to the nearest.
                yield (2 * int(whole) + 1) << 29


def plain_name(name: str) -> str:
    """The accelerator's name without its maker, in lower case, with hyphens between words: `h100-80gb-hbm3`."""
    return "-".join(word for word in re.split(r"[-_\s]+", name.lower()) if word not in _MAKERS)


def _by_table(plain: str) -> int | None:
    names = (name for name in MEMORY if plain in (name, f"{name}s") or plain.startswith((f"{name}-", f"{name}s-")))
    longest = max(names, key=len, default=None)
    return None if longest is None else MEMORY[longest]
