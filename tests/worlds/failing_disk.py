"""A `Disk` that fails on demand, around a real one."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from kv_transfer.tiers.disk import DiskFile, SystemDisk


class FailingDisk:
    """Each of `fail` (`create`, `read`, `write`, `open`, `claim`) has the errno it raises for now. Reads and writes
    wait while `going` is cleared, reads while `reading` is; `waiting` and `reads_waiting` count those that do."""

    def __init__(self, directory: Path) -> None:
        self._disk = SystemDisk(directory)
        self.fail: dict[str, int] = {}
        self.open_files = 0
        self.going = threading.Event()
        self.going.set()
        self.reading = threading.Event()
        self.reading.set()
        self.reads_waiting = 0
        self.claims = 0
        self.waiting = 0

    def check(self, what: str) -> None:
        if what in self.fail:
            raise OSError(self.fail[what], os.strerror(self.fail[what]))

    def claim(self) -> None:
        self.claims += 1
        self.check("claim")
        self._disk.claim()

    def names(self) -> Sequence[str]:
        return self._disk.names()

    def create(self, name: str, size: int) -> DiskFile:
        self.check("create")
        return _FailingFile(self, self._disk.create(name, size))

    def reuse(self, old: str, name: str, size: int) -> DiskFile:
        self.check("create")
        return _FailingFile(self, self._disk.reuse(old, name, size))

    def open(self, name: str) -> DiskFile:
        self.check("open")
        return _FailingFile(self, self._disk.open(name))

    def remove(self, name: str) -> None:
        self._disk.remove(name)

    def release(self) -> None:
        self._disk.release()


class _FailingFile:
    def __init__(self, disk: FailingDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file
        disk.open_files += 1

    def read(self, buffer: memoryview, offset: int) -> int:
        self._disk.reads_waiting += 1
        assert self._disk.going.wait(30)
        assert self._disk.reading.wait(30)
        self._disk.reads_waiting -= 1
        self._disk.check("read")
        return self._file.read(buffer, offset)

    def write(self, pieces: Sequence[memoryview], offset: int) -> None:
        self._disk.waiting += 1
        assert self._disk.going.wait(30)
        self._disk.waiting -= 1
        self._disk.check("write")
        self._file.write(pieces, offset)

    def close(self) -> None:
        self._disk.open_files -= 1
        self._file.close()
