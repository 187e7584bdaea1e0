"""The amount of memory that this process may pin, as the kernel sees it when an RDMA device registers some: what its
limit says, and what it gets when it tries."""

import ctypes
import mmap
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROBE_BYTES: Final = 64 << 20
"""Bytes to try to lock, unless a setting says another number: many times the limit that container runtimes give."""
_CAP_IPC_LOCK: Final = 14
_SMALLEST: Final = 64 << 10
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class LockedMemory:
    """What came of trying to lock memory, in bytes. `limit` is None where none holds for this process; `reason` is
    why it got less than it asked for, in the kernel's words."""

    limit: int | None
    asked: int
    got: int
    reason: str = ""

    @property
    def enough(self) -> bool:
        return self.got >= self.asked

    @property
    def sentence(self) -> str:
        limit = "no limit" if self.limit is None else f"RLIMIT_MEMLOCK {self.limit / _MIB:.0f} MiB"
        found = f"{self.got / _MIB:.4g} MiB of {self.asked / _MIB:.4g} MiB can be locked ({limit})"
        return found if self.enough else f"only {found}: {self.reason}"


def try_locking(size: int = PROBE_BYTES) -> LockedMemory:
    """Lock and release `size` bytes; where that fails, halves of it down to 64 KiB. Locks nothing for good."""
    limit, reason, tried = memlock_bytes(), "", size
    while tried >= _SMALLEST or tried == size > 0:
        failed = _lock(tried)
        if not failed:
            return LockedMemory(limit, size, tried, reason)
        reason, tried = reason or failed, tried // 2
    return LockedMemory(limit, size, 0, reason)


def _lock(size: int) -> str:
    """Why memory of this size cannot be locked; empty where it can."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.strerror.restype = ctypes.c_char_p
    try:
        memory = mmap.mmap(-1, size)
    except OSError as error:
        return error.strerror or str(error)
    with memory:
        start = ctypes.c_char.from_buffer(memory)
        try:
            failed = libc.mlock(ctypes.byref(start), ctypes.c_size_t(size)) != 0
            return str(libc.strerror(ctypes.get_errno()).decode()) if failed else ""
        finally:
            libc.munlock(ctypes.byref(start), ctypes.c_size_t(size))
            # A map with a view of it cannot be closed.
            del start


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
        "LimitMEMLOCK of the nodes' container runtime, or the pool's network.lockedMemory: unlimited)"
    )


def _capable(status: Path) -> bool:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.partition(":")[2] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)
