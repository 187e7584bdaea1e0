"""Becomes a container: `python launch.py FILE`, in the namespaces of its pod and a fresh mount namespace.

The file says what to mount and run. The root is this machine's, seen through an overlay: what is written is the
container's own. Runs before anything of the environment can be imported, so it needs only the standard library.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

_RDONLY, _REMOUNT, _BIND, _REC = 1, 32, 4096, 16384
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    told: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    root = _overlay(Path(told["directory"]))
    for directory in ("proc", "sys"):
        _mount(f"/{directory}", root / directory, flags=_BIND | _REC)
    _devices(root / "dev")
    for place in told["open"]:
        _open_to_all(root, Path(place))
    sources = [os.open(mount["source"], os.O_PATH) for mount in told["mounts"]]
    os.chroot(root)
    # Only now, since links on the way to a target lead within the container.
    for mount, source in zip(told["mounts"], sources, strict=True):
        _bind(Path(f"/proc/self/fd/{source}"), Path(mount["target"]), mount["read_only"])
        os.close(source)
    if told["read_only_root"]:
        _mount("", Path("/"), flags=_REMOUNT | _BIND | _RDONLY)
    os.chdir(told["cwd"])
    os.setgroups(told["groups"])
    os.setgid(told["gid"])
    os.setuid(told["uid"])
    _die_with_the_kubelet()
    os.execvpe(told["argv"][0], told["argv"], told["env"])


def _overlay(directory: Path) -> Path:
    upper, work, root = (directory / name for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        path.mkdir(exist_ok=True)
    _mount("overlay", root, "overlay", options=f"lowerdir=/,upperdir={upper},workdir={work}")
    return root


def _devices(dev: Path) -> None:
    """As container runtimes make it: a few devices, and shared memory of its own."""
    _mount("tmpfs", dev, "tmpfs", options="mode=755")
    for name in _DEVICES:
        (dev / name).touch()
        _mount(f"/dev/{name}", dev / name, flags=_BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (dev / name).symlink_to(f"/proc/self/fd{target}")
    (dev / "shm").mkdir()
    _mount("tmpfs", dev / "shm", "tmpfs", options="mode=1777")


def _open_to_all(root: Path, place: Path) -> None:
    """Let every user through to `place`, in the overlay alone: an image's files are readable too."""
    for directory in (place, *place.parents):
        here = root / str(directory).lstrip("/")
        mode = here.stat().st_mode
        if mode & 0o055 != 0o055:
            here.chmod(mode | 0o055)


def _bind(source: Path, target: Path, read_only: bool) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), target, flags=_BIND)
    if read_only:
        _mount("", target, flags=_REMOUNT | _BIND | _RDONLY)


def _mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    given = options.encode() or None
    if _libc.mount(source.encode(), str(target).encode(), kind.encode(), flags, given):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or 'bind'} {source} on {target}: {os.strerror(number)}")


def _die_with_the_kubelet() -> None:
    """Changing the user has undone what was asked of the kernel before."""
    _libc.prctl(1, 9, 0, 0, 0)


if __name__ == "__main__":
    main()
