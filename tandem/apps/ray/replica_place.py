"""Where a replica is: its node, the folders it may use there, and Ray's own folder of logs."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tandem.apps.cli.registry import RUN_PREFIX
from tandem.core.errors import TandemError

_BASE_MAX: Final = 50
"""Unix sockets lie in there, whose paths have at most 107 characters."""
_ID_CHARS: Final = 12
_NODE: Final = f"{RUN_PREFIX}node-"
_REPLICA: Final = "replica-"
_SOCKETS: Final = "s"
_LOOKED_AT_MAX: Final = 256
"""Folders of nodes that one start looks at for what was left: more are left to the next ones."""


@dataclass(frozen=True)
class ReplicaPlace:
    """`host` is the node's address as other nodes reach it, `node` Ray's id of it. `directory` is the replica's own,
    in one of the node that no other node has, even on the same machine; `held` is its descriptor, locked for as long
    as the replica lives. `logs` is in the session folder of Ray."""

    host: str
    node: str
    directory: Path
    held: int
    logs: Path

    @property
    def key_file(self) -> Path:
        return self.directory / "ticket.key"

    @property
    def sockets(self) -> Path:
        """Shared by all workers of the node: they find each other's memory through it."""
        return self.directory.parent / _SOCKETS

    def write_key(self, key: str) -> None:
        """Keep the ticket key, in hexadecimal, where only this user can read it."""
        descriptor = os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key.strip() + "\n")

    def remove(self) -> None:
        """Remove the replica's own folder, and the node's with the last one. To be called once."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            os.close(self.held)
        with suppress(OSError), _alone(self.directory.parent):
            _clear(self.directory.parent)


def make_place(host: str, node: str, logs: Path) -> ReplicaPlace:
    """Make the folders, and remove what replicas that were killed have left on this machine, on nodes that are gone,
    too. Raises `bad_setting` where the node's folder belongs to another user."""
    usual = tempfile.gettempdir()
    base = Path(usual if len(usual) <= _BASE_MAX else "/tmp")
    shared = base / f"{_NODE}{node[:_ID_CHARS]}"
    logs.mkdir(parents=True, exist_ok=True)
    directory, held = _make(shared)
    for other in islice(base.glob(f"{_NODE}*"), _LOOKED_AT_MAX):
        # One that is locked is being seen to.
        with suppress(OSError):
            if _ours(other):
                with _alone(other, wait=False):
                    _clear(other)
    return ReplicaPlace(host, node, directory, held, logs)


def _make(shared: Path) -> tuple[Path, int]:
    """A replica's own folder in that of its node, and the descriptor by which it is held."""
    while True:
        with suppress(FileExistsError):
            shared.mkdir(mode=0o700)
        # The last replica of the node may remove it at any time before it is locked.
        with suppress(FileNotFoundError):
            if not _ours(shared):
                problem = f"{shared} belongs to another user; remove it"
                raise TandemError("bad_setting", problem, param="socket_directory")
        with suppress(FileNotFoundError), _alone(shared):
            (shared / _SOCKETS).mkdir(mode=0o700, exist_ok=True)
            directory = Path(tempfile.mkdtemp(prefix=_REPLICA, dir=shared))
            return directory, _lock(directory)


def _clear(shared: Path) -> None:
    """Remove the folders of replicas that have ended, and the node's where no replica of it lives."""
    lives = False
    for each in shared.glob(f"{_REPLICA}*"):
        try:
            os.close(_lock(each, wait=False))
        except OSError:
            lives = True
        else:
            shutil.rmtree(each, ignore_errors=True)
    if not lives:
        shutil.rmtree(shared, ignore_errors=True)


def _ours(folder: Path) -> bool:
    found = folder.lstat()
    return found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)


@contextmanager
def _alone(shared: Path, *, wait: bool = True) -> Iterator[None]:
    """The only process that makes or removes folders of the node. Raises `FileNotFoundError` where its folder has
    gone, and `BlockingIOError` where another one is at it and this one does not wait."""
    descriptor = _lock(shared, wait=wait)
    try:
        if os.fstat(descriptor).st_ino != shared.stat().st_ino:
            raise FileNotFoundError(shared)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, *, wait: bool = True) -> int:
    """A descriptor that locks the folder until it is closed, or its process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def place_on_ray() -> ReplicaPlace:
    """The place of the replica or actor that runs in this process."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return make_place(ray.util.get_node_ip_address(), node, session_folder() / "logs" / "tandem")


def session_folder() -> Path:
    """Ray's folder of this session on this node."""
    # Public Ray has no way to it.
    from ray._private.worker import _global_node

    return Path(_global_node.get_session_dir_path())
