"""The `Disk` seam: a directory of files that are read and written past the page cache, from threads.

Everything raises `OSError` and nothing else. `SystemDisk` is the real one; tests put a failing one around it.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from kv_transfer.tiers.record import ALIGN

_LOCK: Final = "lock"
_REASONS: Final = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EROFS: "read_only",
    errno.EACCES: "read_only",
    errno.EPERM: "read_only",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EWOULDBLOCK: "in_use",
    errno.EBUSY: "busy",
    errno.ETIMEDOUT: "stalled",
}


def reason_of(error: OSError) -> str:
    """The metric label of a failure: `disk_full`, `read_only`, `missing`, `in_use` (by another process),
    `busy` (nothing can be given up now), `stalled`, `io_error`."""
    if isinstance(error, TimeoutError):
        return "stalled"
    return _REASONS.get(error.errno or 0, "io_error")


def aligned_buffer(size: int) -> memoryview:
    """Writable memory that direct I/O takes."""
    return memoryview(mmap.mmap(-1, max(size, ALIGN)))


class DiskFile(Protocol):
    """One open file. Buffers, offsets and sizes are multiples of `ALIGN`."""

    def read(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from `offset` on; gives how many bytes there were."""
        ...

    def write(self, pieces: Sequence[memoryview], offset: int) -> None:
        """Write all of the pieces, one behind the other; at most 1,024."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory, used by one process at a time."""

    def claim(self) -> None:
        """Make the directory where it is missing, and take it for this process."""
        ...

    def names(self) -> Sequence[str]:
        """The files there are."""
        ...

    def create(self, name: str, size: int) -> DiskFile:
        """A new file with its room allocated."""
        ...

    def reuse(self, old: str, name: str, size: int) -> DiskFile:
        """A new file in the space of an old one, with the old file's content. The old file must have no readers."""
        ...

    def open(self, name: str) -> DiskFile:
        """A file there is, for reading."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is no failure."""
        ...

    def release(self) -> None:
        """Let others have the directory."""
        ...


class SystemDisk:
    """`Disk` over a directory of this host. Where the file system refuses direct I/O, `direct` becomes False and the
    page cache is advised to keep nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self.direct = True

    def claim(self) -> None:
        self.release()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def names(self) -> Sequence[str]:
        return sorted(name for name in os.listdir(self._directory) if name != _LOCK)

    def create(self, name: str, size: int) -> "SystemFile":
        path = self._directory / name
        return self._with_room(path, self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), size)

    def reuse(self, old: str, name: str, size: int) -> "SystemFile":
        path = self._directory / name
        os.rename(self._directory / old, path)
        return self._with_room(path, self._open(path, os.O_RDWR), size)

    def _with_room(self, path: Path, fd: int, size: int) -> "SystemFile":
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                os.unlink(path)
            raise
        return SystemFile(fd, self.direct)

    def open(self, name: str) -> "SystemFile":
        return SystemFile(self._open(self._directory / name, os.O_RDONLY), self.direct)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._directory / name)

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _open(self, path: Path, flags: int) -> int:
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        if self.direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
                flags &= ~os.O_EXCL  # Some file systems make the file before they refuse.
        return os.open(path, flags, 0o600)


class SystemFile:
    """`DiskFile` over a descriptor, which it owns."""

    def __init__(self, fd: int, direct: bool) -> None:
        self._fd = fd
        self._direct = direct

    def read(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], offset + done)
            done += count
            if not count or done % ALIGN:
                break  # The end of the file: direct I/O goes on at whole pages only.
        if not self._direct:
            os.posix_fadvise(self._fd, offset, len(buffer), os.POSIX_FADV_DONTNEED)
        return done

    def write(self, pieces: Sequence[memoryview], offset: int) -> None:
        left, at = list(pieces), offset
        while left:
            count = os.pwritev(self._fd, left, at)
            left, at = _beyond(left, count), at + count
            if left and (not count or count % ALIGN):
                raise OSError(errno.ENOSPC, "the file takes no more")
        if not self._direct:
            os.posix_fadvise(self._fd, offset, at - offset, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)


def _beyond(pieces: Sequence[memoryview], count: int) -> list[memoryview]:
    """The pieces that remain after the first `count` bytes."""
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []
