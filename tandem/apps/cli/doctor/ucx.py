"""Prints the version of UCX and what its context has: the library that comes with nixl, or the system's.

Run as a program of its own (`tandem doctor` does), since the library may crash or hang in a driver.
"""

import ctypes
import ctypes.util
import importlib.util
import struct
import sys
from pathlib import Path
from typing import Final

_FEATURES_GIVEN: Final = 1
_TAG_AND_RMA: Final = 1 | 2
_PARAMS_BYTES: Final = 512
"""More than UCX's parameters take in any version; which of them are given, the first word says."""


def library() -> str | None:
    """Path or name of libucp; None where there is none."""
    found = importlib.util.find_spec("nixl_cu12")
    for place in found.submodule_search_locations or () if found is not None else ():
        bundled = sorted(Path(place).parent.glob("nixl_cu12.libs/libucp*.so*"))
        if bundled:
            return str(bundled[0])
    return ctypes.util.find_library("ucp")


def main() -> int:
    """1 with the reason on standard error where there is no UCX, or it finds nothing."""
    name = library()
    if name is None:
        print("it is not installed here", file=sys.stderr)
        return 1
    ucp = ctypes.CDLL(name)
    version = tuple(ctypes.c_uint() for _ in range(3))
    ucp.ucp_get_version(*(ctypes.byref(each) for each in version))
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    struct.pack_into("QQ", params, 0, _FEATURES_GIVEN, _TAG_AND_RMA)
    context = ctypes.c_void_p()
    status = ucp.ucp_init_version(version[0], version[1], params, None, ctypes.byref(context))
    if status != 0:
        print(f"ucp_init failed with {status}", file=sys.stderr)
        return 1
    print(".".join(str(each.value) for each in version), flush=True)
    libc = ctypes.CDLL(None)
    ucp.ucp_context_print_info(context, ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)
    ucp.ucp_cleanup(context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
