"""A network namespace of the tests' own, so that pods have addresses and nothing outside can be reached."""

import ctypes
import os
import shutil
import subprocess
from typing import Final

GATEWAY: Final = "10.77.0.1"
"""Of the bridge that pods are plugged into: here the API server is for them."""
PREFIX_BITS: Final = 16
BRIDGE: Final = "tandem0"
_CLONE_NEWNET: Final = 0x40000000
_TOOLS: Final = ("ip", "nsenter", "setpriv")
_BOUND_S: Final = 20.0


def why_not() -> str | None:
    """Why pods cannot be run here, None if they can."""
    if os.geteuid() != 0:
        return "not root: pods need network and mount namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(missing)} on this machine: pods need them" if missing else None


def enter() -> None:
    """Move this thread, and all that it starts from now on, into a new namespace with loopback and a bridge.

    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{GATEWAY}/{PREFIX_BITS}", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def ip(*arguments: str) -> None:
    """The `ip` command; its refusal is an OSError."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_BOUND_S)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
