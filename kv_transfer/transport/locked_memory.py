"""The amount of memory that this process may pin, as the kernel sees it when an RDMA device registers some."""

import resource
from pathlib import Path
from typing import Final

_CAP_IPC_LOCK: Final = 14


def memlock_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """RLIMIT_MEMLOCK; None where there is no bound, or where it does not hold for this process (CAP_IPC_LOCK)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY or _capable(status) else limit


def hint(size: int, limit: int | None) -> str:
    """Advice to append to the error of a failed registration of `size` bytes; empty where there is no limit.

    A limit larger than `size` may be the cause too: the kernel adds up what each RDMA device has pinned of a process.
    """
    if limit is None:
        return ""
    return (
        f"; RLIMIT_MEMLOCK is {limit / (1 << 20):.0f} MiB, and every RDMA device pins these {size / (1 << 20):.0f} "
        "MiB against it, beside what is pinned already: raise it where that is too little (`ulimit -l`; in pods "
        "LimitMEMLOCK of the nodes' container runtime, as IPC_LOCK is in force for root only)"
    )


def _capable(status: Path) -> bool:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.partition(":")[2] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)
