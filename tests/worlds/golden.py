"""Runs that were written down once, in `tests/golden`: what is to change nothing leaves them as they are."""

import os
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "golden"
_SHOWN = 40
WRITE = "TANDEM_GOLDEN"
"""The environment variable that, set to `write`, has tests write down what they see instead of comparing it."""


def assert_as_written(name: str, lines: Sequence[str]) -> None:
    """Compare a run with what was written down of it under `name`."""
    path = _FOLDER / f"{name}.txt"
    if os.environ.get(WRITE) == "write":
        path.write_text("".join(f"{line}\n" for line in lines))
        return
    written = path.read_text().splitlines()
    if list(lines) != written:
        found = list(unified_diff(written, list(lines), "written down", "now", n=0, lineterm=""))
        more = [f"... {len(found) - _SHOWN} lines more"] if len(found) > _SHOWN else []
        told = "\n".join([*found[:_SHOWN], *more])
        raise AssertionError(
            f"{name} is not what was written down in tests/golden. Where a change is meant to do that, run this test "
            f"with {WRITE}=write, and read the difference before you commit it.\n{told}"
        )
