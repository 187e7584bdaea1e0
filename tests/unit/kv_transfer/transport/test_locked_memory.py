"""Locking memory as registration with an RDMA device does: by processes with the limits and rights of pods."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.objects.locked_memory import with_locked_memory
from kv_transfer.transport.locked_memory import LockedMemory, try_locking
from kv_transfer.transport.nixl_preflight import expected

ROOT = Path(__file__).parents[4]
MIB = 1 << 20
LIMIT = 8 * MIB
"""What container runtimes give under systemd."""
WORKER = 10001
TRY = (
    "import os, json; from dataclasses import asdict; "
    "from kv_transfer.transport.locked_memory import try_locking; "
    "status = open('/proc/self/status').read(); "
    "print(json.dumps([os.getuid(), status.partition('CapEff:')[2].split()[0], asdict(try_locking())]))"
)
needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can give and take rights"
)


def found_by(*before: str, capabilities: str = "") -> tuple[int, int, LockedMemory]:
    """User, capabilities and finding of a process that container runtimes would start with these rights: within the
    limit, without new privileges, as root with the container's capabilities before it becomes another user."""
    bounds = "-all" + "".join(f",+{each}" for each in capabilities.split())
    confined = ["setpriv", f"--bounding-set={bounds}", "--no-new-privs", f"--regid={WORKER}", "--clear-groups", "--"]
    ended = subprocess.run(
        [*confined, *before, sys.executable, "-c", TRY],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    user, effective, found = json.loads(ended.stdout)
    return user, int(effective, 16), LockedMemory(**found)


@needs_root
def test_a_worker_without_the_right_gets_no_more_than_its_limit() -> None:
    """What pods with IPC_LOCK have as user 10001: the capability in the bounding set, and none in force."""
    user, rights, found = found_by("setpriv", f"--reuid={WORKER}", "--", capabilities="ipc_lock setuid")
    assert (user, rights) == (WORKER, 0)
    assert (found.limit, found.asked) == (LIMIT, 64 * MIB)
    assert LIMIT // 2 <= found.got <= LIMIT
    assert not found.enough
    assert "of 64 MiB can be locked (RLIMIT_MEMLOCK 8 MiB): Cannot allocate memory" in found.sentence


@needs_root
def test_root_without_the_capability_is_bound_too() -> None:
    user, _, found = found_by(capabilities="setuid")
    assert (user, found.enough, found.limit) == (0, False, LIMIT)


@needs_root
def test_a_container_that_begins_as_root_gives_its_worker_the_right_and_nothing_else() -> None:
    """The command and the capabilities of the rendered container, as a runtime would start it."""
    container = {"name": "worker", "securityContext": {"capabilities": {"drop": ["ALL"]}}}
    template = with_locked_memory({"spec": {"containers": [container]}}, "worker", WORKER, unlimited=True)
    (rendered,) = template["spec"]["containers"]
    added = rendered["securityContext"]["capabilities"]["add"]
    user, rights, found = found_by(*rendered["command"], capabilities=" ".join(added).lower())
    assert (user, rights) == (WORKER, 1 << 14), "IPC_LOCK alone"
    assert found == LockedMemory(None, 64 * MIB, 64 * MIB)


def test_what_fits_is_locked_and_given_back() -> None:
    before = _locked()
    found = try_locking(256 << 10)
    assert (found.got, found.reason, found.enough) == (256 << 10, "", True)
    assert _locked() == before


def test_without_enough_locked_memory_rdma_is_not_expected() -> None:
    short = LockedMemory(LIMIT, 64 * MIB, LIMIT, "Cannot allocate memory")
    fabric = expected(["mlx5_0"], {}, short)
    assert (fabric.name, fabric.fast) == ("ucx-tcp", False)
    assert fabric.reason == (
        "only 8 MiB of 64 MiB can be locked (RLIMIT_MEMLOCK 8 MiB): Cannot allocate memory, so that mlx5_0 cannot "
        "register KV memory and UCX uses TCP"
    )
    assert expected(["mlx5_0"], {}, LockedMemory(None, 64 * MIB, 64 * MIB)).name == "ucx-rdma"
    assert "no RDMA device" in expected([], {}, short).reason, "the first thing that lacks is said"


def _locked() -> str:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(line for line in status.splitlines() if line.startswith("VmLck:"))
