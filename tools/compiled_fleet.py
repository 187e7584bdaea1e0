"""The fleet simulator compiled to C: the same results in a half of the time.

    python -m tools.compiled_fleet build/fleet     copies the packages that simulate and compiles what is hot of them
    PYTHONPATH=build/fleet:. python -P -m benchmarks.goodput

mypyc compiles modules as they are, typed and without a change of meaning; nothing of it is installed or shipped. A
copy that is there and of the same sources is kept. Needs a C compiler; exits with 3 where there is none.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent
_PACKAGES: Final = ("kv_transfer", "router", "tandem", "benchmarks/fleet")
_HOT: Final = (
    "kv_transfer/index/leading.py",
    "kv_transfer/index/memory_index.py",
    "router/placement/filters",
    "router/placement/learning",
    "router/placement/scorers",
    "tandem/engine/scheduler/step_model.py",
    "benchmarks/fleet",
)
_TUPLE: Final = re.compile(r"^(_?[A-Z][A-Z_0-9]*): Final = (?=\(|len\()", re.MULTILINE)
"""Constants that mypyc takes for its own and leaves unset where another module reads them."""
_BUILD: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(["--follow-imports=silent", *sys.argv[1:]], multi_file=True)
setup(name="fleet", ext_modules=modules, script_args=["build_ext", "--inplace", "-j2"])
"""
_REST: Final = """
from pkgutil import extend_path
__path__ = extend_path(__path__, __name__)
"""
"""The package around what is compiled: its other modules are found where they were."""
_STAMP: Final = "sources"
NO_COMPILER: Final = 3


def main() -> int:
    """Copy and compile; the exit status."""
    place = Path(sys.argv[1])
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        print("no C compiler: the simulator runs as Python", file=sys.stderr)
        return NO_COMPILER
    now = _sources()
    stamp = place / _STAMP
    if stamp.exists() and stamp.read_text() == now:
        return 0
    shutil.rmtree(place, ignore_errors=True)
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "benchmarks" / "__init__.py").write_text(_REST)
    files = [str(path.relative_to(_ROOT)) for path in _hot()]
    for file in files:
        copy = place / file
        copy.write_text(_TUPLE.sub(r"\1 = ", copy.read_text()))
    print(f"compiling {len(files)} modules of the fleet simulator, a minute or two", file=sys.stderr, flush=True)
    environment = {**os.environ, "CFLAGS": "-O2 -g0", "PYTHONPATH": str(place.resolve())}
    told = subprocess.run(
        [sys.executable, "-c", _BUILD, *files],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        print(told.stdout[-2000:], told.stderr[-4000:], file=sys.stderr)
        return 1
    shutil.rmtree(place / "build", ignore_errors=True)
    stamp.write_text(now)
    return 0


def _hot() -> Iterator[Path]:
    for each in _HOT:
        at = _ROOT / each
        found = sorted(at.rglob("*.py")) if at.is_dir() else [at]
        yield from (path for path in found if path.name != "__init__.py")


def _sources() -> str:
    """Of all that is copied, and of this file."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            found.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
