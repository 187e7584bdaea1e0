"""Lists the workers from a file that is replaced whenever they change: `{"workers": [{"address": "…"}]}`.

A worker with `"drain_within_s": 20` is asked to leave, so the writer of the file needs no link of its own for that.
`"services"` says what is known of the models beside their workers, such as how new requests are split.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from tandem.core.errors import TandemError
from tandem.process.logs import event

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.2

_Stamp = tuple[int, int, int]


class Member(msgspec.Struct, frozen=True):
    """A worker that is wanted or, with `drain_within_s`, one that is to leave within that many seconds from when the
    file says so."""

    address: str
    drain_within_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


class ServiceEntry(msgspec.Struct, frozen=True):
    """A service: parts of new requests by revision, how long a request waits, by what a worker is chosen, what
    answers are to hold, and under which names its model may be asked for besides its own. None stands for what it
    does not say."""

    name: str
    model: str
    weights: dict[str, int] = {}
    queue_s: float | None = None
    policy: str | None = None
    ttft_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tpot_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    itl_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    aliases: tuple[str, ...] = ()


class _Fleet(msgspec.Struct, frozen=True):
    workers: tuple[Member, ...]
    services: tuple[ServiceEntry, ...] = ()


class WorkersFile:
    """Passes the members to `on_members` when the file is first seen and whenever it has been replaced.

    A file that cannot be read or parsed changes nothing: the last good list stays, and the log gives the reason.
    """

    def __init__(
        self,
        path: Path,
        on_members: Callable[[tuple[Member, ...]], None],
        every_s: float = LOOK_EVERY_S,
        on_services: Callable[[tuple[ServiceEntry, ...]], None] = lambda services: None,
    ) -> None:
        self._path = path
        self._on_members = on_members
        self._on_services = on_services
        self._every_s = every_s
        self._seen: _Stamp | None = None

    async def open(self) -> None:
        """Nothing has to be there yet."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._every_s)

    def look(self) -> None:
        """Read the file if it is not the one last seen."""
        stamp = _stamp(self._path)
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        try:
            fleet = _read(self._path)
        except TandemError as error:
            event(_log, "workers_file_ignored", level=logging.WARNING, reason=error.message)
            return
        members = _once(fleet)
        event(_log, "workers", count=len(members), addresses=" ".join(member.address for member in members))
        self._on_services(fleet.services)
        self._on_members(members)


def drains_of(members: Iterable[Member]) -> dict[str, float]:
    """Within how many seconds members are to leave, by address, of those that are."""
    return {member.address: member.drain_within_s for member in members if member.drain_within_s is not None}


def read_workers(path: Path) -> tuple[Member, ...]:
    """The members in a file, each address once. Raises `bad_setting`."""
    return _once(_read(path))


def _read(path: Path) -> _Fleet:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Fleet)
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror}", param="workers_file") from error
    except msgspec.DecodeError as error:
        raise TandemError("bad_setting", f"{path} is not a list of workers: {error}", param="workers_file") from error


def _once(fleet: _Fleet) -> tuple[Member, ...]:
    members: dict[str, Member] = {}
    for worker in fleet.workers:
        members.setdefault(worker.address, worker)
    return tuple(members.values())


def _stamp(path: Path) -> _Stamp | None:
    """The inode, modification time and size of the file, which change when it is replaced or written; None without a
    file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
