"""Runs inside an image, whose Python may be all it has: prints as JSON what is there and how its processes start.

    python - contents                          who this is, what can be written, packages and programs
    python - start URL SECONDS COMMAND…        runs the command until URL answers 200, then asks it to stop

`tools/image_check.py` hands it to the image on standard input, so that nothing is added to what is looked at.
"""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAMS = ("cc", "gcc", "g++", "c++", "clang", "ld", "make", "cmake", "pip", "pip3", "git", "curl", "wget", "sudo")
PLACES = ("/", "/opt/tandem", "/etc", "/usr", "/var", "/var/tmp", "/run", "/home", "/tmp", "/dev/shm")
STOP_S = 60.0
LOOK_EVERY_S = 0.1


def contents() -> dict[str, Any]:
    """`packages` are bytes on disk by name, without what is the system's own; `writable` is found by writing."""
    return {
        "user": os.getuid(),
        "group": os.getgid(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": {each.name: size_of(each) for each in importlib.metadata.distributions() if each.name},
        "programs": [name for name in PROGRAMS if shutil.which(name) is not None],
        "writable": [place for place in PLACES if can_write(place)],
    }


def size_of(package: importlib.metadata.Distribution) -> int:
    """Bytes of the package's files, bytecode among them, as blocks on disk. Files that it lists and lacks count 0."""
    return sum(on_disk(Path(str(package.locate_file(file)))) for file in package.files or ())


def on_disk(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def can_write(place: str) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            return True
    except OSError:
        return False


def start(url: str, bound_s: float, command: Sequence[str]) -> dict[str, Any]:
    """`ready_s` is None when it did not answer in time or ended before; `status` is that of its end."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        ready_s = None
        while process.poll() is None and time.monotonic() - began < bound_s:
            if answers(url):
                ready_s = round(time.monotonic() - began, 2)
                break
            time.sleep(LOOK_EVERY_S)
        status = ended(process)
        said.seek(max(0, said.tell() - 4000))
        return {"ready_s": ready_s, "status": status, "said": said.read().decode(errors="replace")}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit status after SIGTERM, as a pod is told to go; killed when it stays."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def main(arguments: Sequence[str]) -> int:
    if arguments[0] == "contents":
        found = contents()
    else:
        _, url, bound_s, *command = arguments
        found = start(url, float(bound_s), command)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
