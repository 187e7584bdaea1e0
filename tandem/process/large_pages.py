"""Large pages for what a process has loaded.

A Python service walks through code and tables all over its heap for every request, a few bytes here and there, and
where the heap lies in pages of 4 KiB the processor spends much of that time finding pages. Linux puts memory into
pages of 2 MiB when asked to (`MADV_COLLAPSE`, since 6.1): the bytes stay the same, and so do their addresses. Where
it cannot, nothing changes.
"""

import ctypes
import errno
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_LARGE: Final = 2 << 20
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_MAPS: Final = Path("/proc/self/maps")


def large_ranges(maps: Iterable[str]) -> Iterator[int]:
    """Addresses of the aligned 2 MiB of private, writable, anonymous memory in lines of `/proc/PID/maps`."""
    for line in maps:
        where, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0":
            first, end = (int(each, 16) for each in where.split("-"))
            yield from range(-(-first // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE)


def use_large_pages() -> int:
    """Collapse what is loaded; gives how many bytes lie in large pages then. Takes about a millisecond for each of
    them: call it once, before serving. Does nothing but on Linux, and there only what the kernel is set up for."""
    if sys.platform != "linux" or not _MAPS.exists():
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    collapsed = 0
    for address in large_ranges(_MAPS.read_text().splitlines()):
        if advise(address, _LARGE, _MADV_HUGEPAGE) == 0 and advise(address, _LARGE, _MADV_COLLAPSE) == 0:
            collapsed += _LARGE
        elif ctypes.get_errno() == errno.ENOSYS:
            break
    return collapsed
