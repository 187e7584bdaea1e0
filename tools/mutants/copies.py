"""A copy of the code, the process that runs tests in it, and a fault planted there for one run."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from tools.mutants.server import RunReport, RunRequest

ROOT: Final = Path(__file__).resolve().parents[2]


class Copy:
    """A copy of what git knows of or would add, in a directory of its own, with a server of test runs."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="tandem-mutants-")
        self.path = Path(self._directory.name) / "tandem"
        _copy(self.path)
        # Tests that write to where temporary files lie must not meet those of the copy beside it.
        temporary = Path(self._directory.name) / "t"
        temporary.mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.path), *_beside()]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(temporary),
            "CI": "true",
            "OMP_NUM_THREADS": "1",
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants.server"],
            cwd=self.path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._send(msgspec.json.encode(list(tests)))

    def __enter__(self) -> "Copy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._directory.cleanup()

    def run(self, ask: RunRequest) -> RunReport:
        """Run tests on the copy as it is."""
        self._send(msgspec.json.encode(ask))
        assert self._server.stdout is not None
        return msgspec.json.decode(self._server.stdout.readline(), type=RunReport)

    def run_with(self, file: str, text: str, ask: RunRequest) -> RunReport:
        """Run tests with `text` in the place of what `file` has."""
        path = self.path / file
        good = path.read_bytes()
        try:
            path.write_text(text)
            return self.run(ask)
        finally:
            path.write_bytes(good)

    def _send(self, line: bytes) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(line + b"\n")
        self._server.stdin.flush()


def _beside() -> list[str]:
    """Where packages are looked for that do not lie here."""
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [each for each in listed if each and Path(each).resolve() != ROOT]


def _copy(path: Path) -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listing.split("\0")):
        source, target = ROOT / name, path / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    if (ROOT / ".venv").exists():
        (path / ".venv").symlink_to((ROOT / ".venv").resolve())
