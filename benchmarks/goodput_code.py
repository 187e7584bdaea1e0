"""Which code decides what a run of the goodput bench comes to: hashes by which results and capacities are kept.

Whole packages are hashed: what a run imports changes more often than anybody thinks of it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent
_FLEET: Final = ("tandem/core", "tandem/engine", "tandem/fleetsim", "tandem/worker/worth.py")
_PLACING: Final = ("kv_transfer", "router/placement", "router/settings.py", "router/split")
"""What decides where requests go, but not how much a fleet can carry."""
_PLACING_FLEETSIM: Final = ("auto.py", "peers", "contenders.py", "ours.py", "router.py")
"""The same within the simulator."""
_READING: Final = ("goodput_auto.py", "goodput_judge.py", "goodput_report.py", "goodput_why.py")
"""Parts of the bench that read results, or ask for runs, and decide none."""
_BENCH: Final = "goodput_*.py"


def settings_hash() -> str:
    """Of all that decides how much a fleet can carry but placement: when it differs, capacities are measured anew."""
    placing = [_ROOT / "tandem" / "fleetsim" / name for name in _PLACING_FLEETSIM]
    files = [file for file in _files(_FLEET) if not any(file.is_relative_to(each) for each in placing)]
    return _hash(files)


def code_hash() -> str:
    """Of all code that a run depends on: results of other code are of no use."""
    return _hash(code_files())


def code_files() -> list[Path]:
    """What `code_hash` reads."""
    return list(_files((*_FLEET, *_PLACING)))


def _files(places: Sequence[str]) -> Iterator[Path]:
    """The Python files of packages and of the bench."""
    for place in places:
        at = _ROOT / place
        yield from at.rglob("*.py") if at.is_dir() else (at,)
    yield from (path for path in (_ROOT / "benchmarks").glob(_BENCH) if path.name not in _READING)


def _hash(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
