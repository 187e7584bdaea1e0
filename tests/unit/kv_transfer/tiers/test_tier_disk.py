"""A directory of files as the operating system has it: nothing stays open, locked or half made."""

import errno
import os
from pathlib import Path

import pytest

from kv_transfer.tiers.disk import SystemDisk, aligned_buffer, reason_of
from kv_transfer.tiers.record import ALIGN


def opened(folder: Path) -> list[str]:
    """The files of a folder that this process has open, removed ones included."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # That of the listing itself.
        if target.startswith(str(folder)):
            found.append(target.removeprefix(f"{folder}/"))
    return sorted(found)


def test_a_closed_file_gives_its_descriptor_back(tmp_path: Path) -> None:
    """The disk has the room of a removed file only then; and a process has a bounded number of descriptors."""
    disk = SystemDisk(tmp_path)
    file = disk.create("one.kv", ALIGN)
    assert opened(tmp_path) == ["one.kv"]
    disk.remove("one.kv")
    disk.remove("one.kv")  # That it is gone is no failure.
    file.close()
    assert opened(tmp_path) == []


@pytest.mark.parametrize("again", [False, True], ids=["new", "in the room of an old one"])
def test_a_file_for_which_there_is_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Else every try on a full disk takes a descriptor, and leaves a file that looks like a segment."""
    disk = SystemDisk(tmp_path)
    disk.create("old.kv", ALIGN).close()

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="full"):
        disk.reuse("old.kv", "new.kv", ALIGN) if again else disk.create("new.kv", ALIGN)
    assert opened(tmp_path) == []
    assert disk.names() == ([] if again else ["old.kv"])


def test_a_directory_is_one_disks_at_a_time_until_it_is_let_go_of(tmp_path: Path) -> None:
    """Two workers that wrote into one directory would destroy each other's blocks."""
    one, other = SystemDisk(tmp_path / "tier"), SystemDisk(tmp_path / "tier")
    one.claim()
    one.claim()  # As after a failure: it does not lock itself out.
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            other.claim()
    assert opened(tmp_path) == ["tier/lock"], "who was refused holds nothing"
    assert one.names() == []
    one.release()
    one.release()
    other.claim()
    other.release()
    assert opened(tmp_path) == []


def test_where_direct_io_is_refused_the_page_cache_is_told_to_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that stayed in the page cache would take memory from the engine for what it has no use for."""
    system_open, told = os.open, list[tuple[int, int, int]]()

    def no_direct(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT:
            os.close(system_open(path, flags & ~os.O_DIRECT, mode))  # Some make the file before they refuse.
            raise OSError(errno.EINVAL, "no direct I/O")
        return system_open(path, flags, mode)

    monkeypatch.setattr(os, "open", no_direct)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, size, advice: told.append((offset, size, advice)))
    disk = SystemDisk(tmp_path)
    file = disk.create("one.kv", 3 * ALIGN)
    assert not disk.direct
    data = aligned_buffer(2 * ALIGN)
    data[:] = b"\xaa" * len(data)
    file.write((data[:ALIGN], data[ALIGN:]), ALIGN)
    assert told == [(ALIGN, 2 * ALIGN, os.POSIX_FADV_DONTNEED)]
    told.clear()
    got = aligned_buffer(2 * ALIGN)
    assert file.read(got, ALIGN) == 2 * ALIGN
    assert got == data
    assert told == [(ALIGN, 2 * ALIGN, os.POSIX_FADV_DONTNEED)]
    file.close()


def test_a_failure_without_a_number_is_the_disks_own() -> None:
    """Not one of those that pass: a tier that believed it were read-only would never look at the disk again."""
    assert reason_of(OSError("no number")) == "io_error"
    assert reason_of(OSError(errno.EPERM, "not allowed")) == "read_only"
