"""Determine how much host memory this process may use: the limit of its cgroup, or the memory of the machine."""

from pathlib import Path
from typing import Final

_LIMITS: Final = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container's own cgroup, as the container sees them: version 2 and version 1."""


def host_memory_bytes(root: Path = Path("/")) -> int:
    """The smallest bound there is. `root` is where `/proc` and `/sys` lie."""
    bounds = [_machine_bytes(root), *(_limit_bytes(root / path) for path in _LIMITS)]
    return min(bound for bound in bounds if bound is not None)


def _machine_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) << 10
    raise AssertionError("/proc/meminfo has no MemTotal")


def _limit_bytes(path: Path) -> int | None:
    """None where there is no such file, or no limit in it."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
