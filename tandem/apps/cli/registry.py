"""Records the platforms that this user runs on this machine: one file for each, rewritten on every change of a
member. A platform that has its port alone is found by the port; services on Ray may share one.

`tandem scale`, `tandem drain` and `tandem drill` act on processes, so they need more than a URL. They find it in a
directory that only this user can read: `$XDG_RUNTIME_DIR/tandem`, or `tandem-UID` in the directory for temporary
files.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tandem.core.errors import TandemError

RUN_PREFIX: Final = "tandem-"
"""Names of run directories begin with it (`tandem.apps.cli.run_directory`)."""
_PRIVATE: Final = 0o700
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_HTTP_PORT: Final = 80


class MemberEntry(msgspec.Struct, frozen=True):
    """A supervised process. `pid` is None while none runs; `metrics` is where they can be scraped without a key."""

    name: str
    role: str
    pid: int | None
    state: str
    address: str
    metrics: str
    restarts: int
    service: str = ""
    """Of a worker on Ray, where one hub knows those of all services; empty elsewhere."""
    pool: str = ""
    """As `service`."""
    rank: int = 0
    """Of a replica on Ray in its gang: others than 0 are parts of the first one's worker."""


class PlatformEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of a running `tandem up`. `control` is the path of its control socket; `drills` says whether it
    allows faults.

    `pid` and `began` (see `process_start`) are those of the supervisor, and distinguish a live entry from a stale
    one. `service` and `pools` are named where several platforms may share a URL, as on Ray.
    """

    url: str
    run_directory: str
    control: str
    drills: bool = False
    members: tuple[MemberEntry, ...] = ()
    pid: int
    began: int
    service: str = ""
    pools: tuple[str, ...] = ()

    def member(self, name: str) -> MemberEntry:
        """Raises `not_found` naming the members there are."""
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise TandemError("not_found", f"{self.url} has no member {name!r}; there are {known}", param=name)


class Registry:
    """The entry of one platform, kept in `directory`, which is private to this user and there while an entry is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._published: PlatformEntry | None = None

    def publish(self, entry: PlatformEntry) -> None:
        """Replace the entry at once: a reader sees the old one or the new one. Raises `bad_setting`."""
        if entry == self._published:
            return
        path = self._path(entry)
        fresh = path.with_suffix(f".{entry.pid}")
        try:
            _make(self._directory)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(entry))
            fresh.replace(path)
        except OSError as error:
            raise TandemError("bad_setting", f"{path} cannot be written: {error.strerror}") from error
        self._published = entry

    def withdraw(self) -> None:
        """The platform has ended. Another one's entry, published since on the same port, stays."""
        entry, self._published = self._published, None
        if entry is None:
            return
        path = self._path(entry)
        if (there := _read(path)) is not None and (there.pid, there.began) == (entry.pid, entry.began):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: another platform runs
            self._directory.rmdir()

    def clear_dead(self) -> list[str]:
        """Remove what platforms that were killed have left: their entries, and their run directories with the ticket
        key, logs and sockets. Gives the paths of these."""
        cleared = []
        for path in sorted(self._directory.glob("*.json")):
            entry = _read(path)
            if entry is None or process_start(entry.pid) == entry.began:
                continue
            left = Path(entry.run_directory)
            if left.name.startswith(RUN_PREFIX) and _distrust(left) is None:
                shutil.rmtree(left, ignore_errors=True)
                cleared.append(str(left))
            path.unlink(missing_ok=True)
        return cleared

    def _path(self, entry: PlatformEntry) -> Path:
        port = _address(entry.url)[1]
        return self._directory / (f"{port}-{entry.pid}.json" if entry.service else f"{port}.json")


def open_registry(environment: Mapping[str, str] = os.environ) -> Registry:
    """The registry of this user, made when there is none. Raises `bad_setting` when no directory can be trusted."""
    problems = []
    for directory in _candidates(environment):
        try:
            _make(directory)
        except OSError as error:
            problems.append(f"{directory}: {error.strerror}")
        else:
            return Registry(directory)
    raise TandemError("bad_setting", f"no place to register the platform: {'; '.join(problems)}")


def find(url: str, environment: Mapping[str, str] = os.environ) -> PlatformEntry:
    """A live platform of this user behind a URL: any of those that share it.

    Raises `not_found` when there is none, saying what to do, and `bad_setting` when the URL cannot be one.
    """
    return _live(url, environment)[0]


def find_with_pools(
    url: str, pools: Collection[str], service: str | None = None, environment: Mapping[str, str] = os.environ
) -> PlatformEntry:
    """The platform behind a URL that has these pools; with `service` the one that is called so.

    Raises `conflict` where several have them, and otherwise as `find` does. A platform that has its URL alone says
    itself which pools it has.
    """
    there = _live(url, environment)
    named = [entry for entry in there if service in (None, entry.service)]
    found = [entry for entry in named if not entry.service or set(pools) <= set(entry.pools)]
    if len({(entry.url, entry.service) for entry in found}) == 1:
        return found[0]
    wanted = " and ".join(sorted(pools))
    if not found:
        known = "; ".join(sorted({f"{entry.service or entry.url} has {', '.join(entry.pools)}" for entry in there}))
        what = "no service" if service is None else f"no service {service!r}"
        raise TandemError("not_found", f"{what} at {url} has {wanted}; {known}", param="url")
    several = " and ".join(sorted({f"{entry.service or '`tandem up`'} at {entry.url}" for entry in found}))
    raise TandemError("conflict", f"{several} have {wanted}: choose one with --service or --url", param="service")


def _live(url: str, environment: Mapping[str, str]) -> list[PlatformEntry]:
    """All live platforms of this user behind a URL; at least one. Those at its very host come before others that a
    name of this machine means too. Raises as `find` does."""
    host, port = _address(url)
    found, near = list[PlatformEntry](), list[PlatformEntry]()
    for directory in _candidates(environment):
        if _distrust(directory) is not None:
            continue
        for path in (directory / f"{port}.json", *sorted(directory.glob(f"{port}-*.json"))):
            entry = _read(path)
            if entry is None or process_start(entry.pid) != entry.began:
                continue
            there = _address(entry.url)[0]
            if host == there or {host, there} <= _LOOPBACK:
                found.append(entry)
            elif host in _LOOPBACK:
                near.append(entry)
    if found or near:
        return found or near
    what = f"no `tandem up` of this user serves {url} on this machine"
    cure = f"start one with `tandem up --port {port}`, or give the --url of one that runs"
    raise TandemError("not_found", f"{what}; {cure}", param="url")


def process_start(pid: int) -> int | None:
    """When a process began, in the kernel's ticks since boot; 0 where the kernel does not say, None when no such
    process runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except OSError:
        return 0 if not Path("/proc/self/stat").exists() and _signalable(pid) else None


def _signalable(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _candidates(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The directories that may hold entries. The second one counts too: the platform may have been started without
    the variable."""
    common = Path(environment.get("TMPDIR") or tempfile.gettempdir()) / f"tandem-{os.getuid()}"
    runtime = environment.get("XDG_RUNTIME_DIR")
    return (Path(runtime) / "tandem", common) if runtime else (common,)


def _make(directory: Path) -> None:
    """Raises `OSError` when the directory cannot be made or trusted."""
    directory.mkdir(mode=_PRIVATE, exist_ok=True)
    problem = _distrust(directory)
    if problem is not None:
        raise PermissionError(errno.EPERM, problem)


def _distrust(directory: Path) -> str | None:
    """Why a directory cannot be believed, or None. Another user may have made it in a shared place."""
    try:
        status = directory.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"it is open to other users; run `chmod 700 {directory}`"
    return None


def _read(path: Path) -> PlatformEntry | None:
    """An entry; None when there is none or it is not one of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlatformEntry)
    except (OSError, msgspec.DecodeError):
        return None


def _address(url: str) -> tuple[str, int]:
    """Host and port of a URL. Raises `bad_setting`."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise TandemError("bad_setting", f"{url!r} is not a URL such as http://127.0.0.1:8000", param="url")
    return host, port or _HTTP_PORT
