"""Where a replica is: its node, the folders it may use there, and Ray's own folder of logs."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.apps.cli.registry import RUN_PREFIX
from tandem.core.errors import TandemError

_BASE_MAX: Final = 50
"""Unix sockets lie in there, whose paths have at most 107 characters."""
_ID_CHARS: Final = 12
_REPLICA: Final = "replica-"
_SOCKETS: Final = "s"


@dataclass(frozen=True)
class ReplicaPlace:
    """`host` is the node's address as other nodes reach it, `node` Ray's id of it. `directory` is the replica's own,
    in one of the node that no other node has, even on the same machine. `logs` is in the session folder of Ray."""

    host: str
    node: str
    directory: Path
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
        """Remove the replica's own folder, and the node's with the last one."""
        shared = self.directory.parent
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError), _alone(self.logs):
            if not any(shared.glob(f"{_REPLICA}*")):
                shutil.rmtree(shared, ignore_errors=True)


def make_place(host: str, node: str, logs: Path) -> ReplicaPlace:
    """Make the folders, and remove those of replicas of the node that were killed. Raises `bad_setting` where the
    node's folder belongs to another user."""
    usual = tempfile.gettempdir()
    shared = Path(usual if len(usual) <= _BASE_MAX else "/tmp") / f"{RUN_PREFIX}node-{node[:_ID_CHARS]}"
    logs.mkdir(parents=True, exist_ok=True)
    with _alone(logs):
        return ReplicaPlace(host, node, _make(shared), logs)


def _make(shared: Path) -> Path:
    """A replica's own folder in that of its node."""
    shared.mkdir(mode=0o700, exist_ok=True)
    found = shared.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise TandemError("bad_setting", f"{shared} belongs to another user; remove it", param="socket_directory")
    for left in shared.glob(f"{_REPLICA}*"):
        if not _alive(left.name.split("-")[1]):
            shutil.rmtree(left, ignore_errors=True)
    (shared / _SOCKETS).mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{_REPLICA}{os.getpid()}-", dir=shared))


@contextmanager
def _alone(logs: Path) -> Iterator[None]:
    """The only replica of the node that makes or removes folders. It is the folder of logs that is locked: that one
    stays for as long as the session does. Raises `OSError` where it is gone."""
    descriptor = os.open(logs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
