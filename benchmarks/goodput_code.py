"""Which code decides what a run of the goodput bench comes to: hashes by which results and capacities are kept.

Whole packages are hashed, without comments and docstrings: what a run imports changes more often than anybody thinks
of it.
"""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.fleet.contenders import AUTO

_ROOT: Final = Path(__file__).parent.parent
_FLEET: Final = ("tandem/core", "tandem/engine", "benchmarks/fleet", "tandem/worker/fetch_policy.py")
_PLACING: Final = ("kv_transfer", "router/placement", "router/settings.py", "router/split")
"""What decides where requests go, but not how much a fleet can carry."""
_PLACING_FLEET: Final = ("auto.py", "peers", "contenders.py", "ours.py", "router.py")
"""The same within the simulator."""
_PLANNING: Final = ("router/split", "benchmarks/fleet/auto.py")
"""What decides the split where that follows the load, and nothing else."""
_RUNS: Final = ("benchmarks/goodput_cells.py", "benchmarks/goodput_runs.py")
"""Of the bench, what decides what a run comes to. Other parts ask for runs and read results."""
_SEARCH: Final = ("benchmarks/goodput_capacity.py", "benchmarks/goodput_plan.py")
"""What decides how a capacity is searched."""


def settings_hash() -> str:
    """Of all that decides how much a fleet can carry but placement: when it differs, capacities are measured anew."""
    placing = [_ROOT / "benchmarks" / "fleet" / name for name in _PLACING_FLEET]
    files = [
        file for file in _files((*_FLEET, *_RUNS, *_SEARCH)) if not any(file.is_relative_to(each) for each in placing)
    ]
    return _hash(files)


class Codes(NamedTuple):
    """Hashes of all code that a run depends on: with a fixed split, and where the split follows the load."""

    fixed: str
    auto: str

    def of(self, contender: str) -> str:
        """By which a result of that contender is kept."""
        return self.auto if contender == AUTO else self.fixed


def codes() -> Codes:
    """Results of other code are of no use; those of fixed splits do not depend on the planner."""
    planning = [_ROOT / name for name in _PLANNING]
    files = code_files()
    return Codes(_hash([file for file in files if not any(file.is_relative_to(at) for at in planning)]), _hash(files))


def code_files() -> list[Path]:
    """What `codes` reads."""
    return list(_files((*_FLEET, *_PLACING, *_RUNS)))


def _files(places: Sequence[str]) -> Iterator[Path]:
    """Python files: those of packages, and single ones."""
    for place in places:
        at = _ROOT / place
        yield from at.rglob("*.py") if at.is_dir() else (at,)


def _hash(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(str(path.relative_to(_ROOT)).encode() + b"\0")
        found.update(without_prose(path.read_text()).encode())
    return found.hexdigest()[:16]


def without_prose(source: str) -> str:
    """What a module does, however its lines lie."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
