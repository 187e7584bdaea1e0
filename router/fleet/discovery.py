"""Which workers there are, from a file that is replaced whenever that changes: `{"workers": [{"address": "…"}]}`.

A worker with `"drain_within_s": 20` is asked to leave: whoever writes the file needs no link of its own for that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from tandem.core.errors import TandemError
from tandem.service.logs import event

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.2

_Stamp = tuple[int, int, int]


class Member(msgspec.Struct, frozen=True):
    """A worker that is wanted, or one that is to leave within `drain_within_s` seconds from when the file says so."""

    address: str
    drain_within_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


class _Fleet(msgspec.Struct, frozen=True):
    workers: tuple[Member, ...]


class WorkersFile:
    """Tells `on_members` the members at first sight of the file and whenever it has been replaced.

    A file that cannot be read or parsed changes nothing: the last good list stays, and the log says why.
    """

    def __init__(
        self, path: Path, on_members: Callable[[tuple[Member, ...]], None], every_s: float = LOOK_EVERY_S
    ) -> None:
        self._path = path
        self._on_members = on_members
        self._every_s = every_s
        self._seen: _Stamp | None = None

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
            members = read_workers(self._path)
        except TandemError as error:
            event(_log, "workers_file_ignored", level=logging.WARNING, reason=error.message)
            return
        event(_log, "workers", count=len(members), addresses=" ".join(member.address for member in members))
        self._on_members(members)


def drains_of(members: Iterable[Member]) -> dict[str, float]:
    """Within how many seconds members are to leave, by address, of those that are."""
    return {member.address: member.drain_within_s for member in members if member.drain_within_s is not None}


def read_workers(path: Path) -> tuple[Member, ...]:
    """The members in a file, each address once. Raises `bad_setting`."""
    try:
        fleet = msgspec.json.decode(path.read_bytes(), type=_Fleet)
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror}", param="workers_file") from error
    except msgspec.DecodeError as error:
        raise TandemError("bad_setting", f"{path} is not a list of workers: {error}", param="workers_file") from error
    members: dict[str, Member] = {}
    for worker in fleet.workers:
        members.setdefault(worker.address, worker)
    return tuple(members.values())


def _stamp(path: Path) -> _Stamp | None:
    """What changes when the file is replaced or written."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
