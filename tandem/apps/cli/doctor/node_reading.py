"""Reads what `tandem doctor` judges of this machine or pod. Every read has a bound, and none changes anything but a
file in the directory that is named."""

import ctypes
import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kv_transfer.transport.locked_memory import LockedMemory, try_locking
from tandem.apps.cli.doctor.node import Access, ClockReading, DiskSpeed, Gpus, Interface, Ucx
from tandem.core.errors import TandemError
from tandem.devices.reading import read_rdma, read_topology
from tandem.devices.topology import RdmaDevice
from tandem.weights.directory import DirectoryOrigin
from tandem.weights.locate import origin_of
from tandem.weights.source import parse_source

_ROOT: Final = Path("/")
_GPU_FILES: Final = re.compile(r"nvidia\d+|kfd")
_UP: Final = ("up", "unknown")
_UNSYNCHRONIZED: Final = 0x40
_NANOSECONDS: Final = 0x2000
_MOMENT_S: Final = 0.2
_UCX_S: Final = 30.0
_FILE_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 8 << 20


class _Timex(ctypes.Structure):
    """The beginning of the kernel's `struct timex`; what follows is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("error_max_us", ctypes.c_long),
        ("error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True)
class Probes:
    """How each fact is read. Tests give others."""

    gpus: Callable[[], Gpus]
    rdma: Callable[[], tuple[RdmaDevice, ...]]
    locked: Callable[[], LockedMemory]
    shm_bytes: Callable[[], int | None]
    clock: Callable[[], ClockReading]
    interfaces: Callable[[], tuple[Interface, ...]]
    ucx: Callable[[], Ucx]
    disk: Callable[[Path], DiskSpeed]
    access: Callable[[str], Access]


def read_gpus(root: Path = _ROOT) -> Gpus:
    """GPUs by the vendors' tools, and the device files that this process sees."""
    topology = read_topology()
    names = () if topology is None else tuple(gpu.name for gpu in topology.gpus)
    files = sorted(each.name for each in (root / "dev").glob("*") if _GPU_FILES.fullmatch(each.name))
    return Gpus(names, tuple(f"/dev/{name}" for name in files))


def read_shm_bytes(root: Path = _ROOT) -> int | None:
    """Size of /dev/shm."""
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def read_clock(root: Path = _ROOT) -> ClockReading:
    """What the kernel says of its clock, without setting it, and whether time goes on evenly for a moment."""
    source = _text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    went_back, step_s = _watched()
    libc, read = ctypes.CDLL(None, use_errno=True), _Timex()
    if libc.adjtimex(ctypes.byref(read)) < 0:
        why = f"the kernel does not tell it here ({os.strerror(ctypes.get_errno())})"
        return ClockReading(None, step_s=step_s, went_back=went_back, source=source, why=why)
    unit = 1e-9 if read.status & _NANOSECONDS else 1e-6
    kept = not read.status & _UNSYNCHRONIZED
    return ClockReading(kept, read.offset * unit, read.error_max_us * 1e-6, step_s, went_back, source)


def _watched() -> tuple[bool, float]:
    """Whether the monotonic clock went back, and how many seconds time of day and it differed by, over a moment."""
    (began, day), back = _both(), False
    last = began
    while last - began < _MOMENT_S:
        time.sleep(_MOMENT_S / 50)
        now = time.monotonic()
        last, back = now, back or now < last
    ended, later = _both()
    return back, (later - day) - (ended - began)


def _both() -> tuple[float, float]:
    """Both clocks at one moment: of several readings the one that was interrupted least."""
    readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(8)]
    before, day, after = min(readings, key=lambda each: each[2] - each[0])
    return (before + after) / 2, day


def read_interfaces(root: Path = _ROOT) -> tuple[Interface, ...]:
    """Network interfaces that are up, but for lo."""
    found = []
    for each in sorted((root / "sys/class/net").glob("*")):
        size = _text(each / "mtu")
        if each.name != "lo" and _text(each / "operstate") in _UP and size.isdecimal():
            found.append(Interface(each.name, int(size)))
    return tuple(found)


def read_ucx() -> Ucx:
    """What UCX finds, in a process of its own: it may crash or hang in a driver."""
    command = [sys.executable, "-m", "tandem.apps.cli.doctor.ucx"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_UCX_S, check=False)
    except subprocess.TimeoutExpired:
        return Ucx(why=f"UCX said nothing within {_UCX_S:g} s: a driver may hang")
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Ucx(why=f"UCX cannot be used: {last}")
    version, *lines = ended.stdout.splitlines()
    return Ucx(version, resources_of(lines))


def resources_of(lines: list[str]) -> tuple[str, ...]:
    """Transports and devices in what UCX prints of a context."""
    return tuple(dict.fromkeys(line.split()[-1] for line in lines if re.search(r"resource \d+ ", line)))


def measure_disk(directory: Path) -> DiskSpeed:
    """Write a file of 256 MiB in the directory, read it and remove it; the page cache is left out of both."""
    path, piece = directory / f".tandem-doctor-{os.getpid()}", os.urandom(_PIECE_BYTES)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        return DiskSpeed(str(directory), failed=error.strerror or str(error))
    try:
        began = time.monotonic()
        for _ in range(_FILE_BYTES // _PIECE_BYTES):
            if os.write(descriptor, piece) < _PIECE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        written = time.monotonic()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(descriptor, 0, os.SEEK_SET)
        again = time.monotonic()
        while os.read(descriptor, _PIECE_BYTES):
            pass
        read = time.monotonic()
    except OSError as error:
        return DiskSpeed(str(directory), failed=error.strerror or str(error))
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    return DiskSpeed(str(directory), _FILE_BYTES / (written - began), _FILE_BYTES / (read - again))


def try_access(text: str, environment: Mapping[str, str] = os.environ) -> Access:
    """List the files of a model where they are, with the bounds of its origin."""
    began = time.monotonic()
    try:
        source = parse_source(text)
        origin = DirectoryOrigin(Path(source.location)) if source.scheme == "file" else origin_of(source, environment)
        try:
            files = len(origin.files())
        finally:
            origin.close()
    except TandemError as error:
        return Access(text, seconds=time.monotonic() - began, failed=f"{error.code}: {error.message}")
    except OSError as error:
        return Access(text, seconds=time.monotonic() - began, failed=error.strerror or str(error))
    return Access(text, files, time.monotonic() - began)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


HERE: Final = Probes(
    read_gpus,
    read_rdma,
    try_locking,
    read_shm_bytes,
    read_clock,
    read_interfaces,
    read_ucx,
    measure_disk,
    try_access,
)
"""The probes of this machine."""
