"""Shared memory between processes that have what pods of one node have in common: a directory, and nothing else."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kv_transfer.transport.shm import sweep

ROOT = Path(__file__).parents[2]
POD = (
    "mount --bind {shared} /mnt && mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm && exec {user} "
    "{python} -m tests.worlds.node_pods {arguments}"
)
needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="only root can make namespaces"
)


def pod(shared: Path, *arguments: str, user: int = 0) -> subprocess.Popen[str]:
    """Namespaces of its own for mounts, network, processes and IPC, as a container runtime makes them."""
    become = "" if user == 0 else f"setpriv --reuid={user} --clear-groups --"
    script = POD.format(shared=shared, user=become, python=sys.executable, arguments=" ".join(arguments))
    return subprocess.Popen(
        ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--mount-proc", "sh", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def holder(shared: Path, node: str) -> Iterator[str]:
    process = pod(shared, "hold", node)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, process.communicate(timeout=60)[1]
        yield address
    finally:
        process.communicate(timeout=60)


def said(shared: Path, *arguments: str, user: int = 0) -> str:
    process = pod(shared, *arguments, user=user)
    told, complained = process.communicate(timeout=60)
    assert process.returncode == 0, complained
    return told.strip()


@needs_root
def test_pods_of_one_node_share_memory_by_a_directory_alone(tmp_path: Path) -> None:
    node, other = tmp_path / "node-a", tmp_path / "node-b"
    node.mkdir(mode=0o755)
    other.mkdir(mode=0o755)
    with holder(node, "node-a") as address:
        assert address.startswith("shm://node-a/mnt/tandem-kv-")
        assert said(node, "pull", "node-a", address) == "pulled"
        away = said(other, "pull", "node-b", address)
        assert away.startswith("transfer_failed")
        assert "of another node than node-b" in away
        # The directory of a service on another node, or of another service on this one, has no such socket.
        assert "cannot reach" in said(other, "pull", "node-a", address)
        assert "Permission denied" in said(node, "pull", "node-a", address, user=10001), "another user's pods"
    assert list(node.iterdir()) == [], "nothing is left on the node"


def test_what_killed_processes_have_left_is_swept(tmp_path: Path) -> None:
    now = 1e9
    for name, age_s in (("dead", 600.0), ("fresh", 1.0), ("alive", 600.0), ("empty", 600.0)):
        folder = tmp_path / f"tandem-kv-{name}"
        folder.mkdir(mode=0o700)
        if name != "empty":
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(folder / "pull"))
            if name == "alive":
                listener.listen()
                kept = listener
            else:
                listener.close()
        os.utime(folder, (now - age_s, now - age_s))
    (tmp_path / "another").mkdir()
    with kept:
        sweep(str(tmp_path), now)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"tandem-kv-fresh", "tandem-kv-alive", "tandem-kv-empty", "another"}
