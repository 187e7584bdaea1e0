"""Runs that were written down once, in `tests/golden`: what is to change nothing leaves them as they are."""

import os
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from hashlib import blake2b
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "golden"
_SHOWN: Final = 40
WRITE: Final = "TANDEM_GOLDEN"
"""The environment variable that, set to `write`, has tests write down what they see instead of comparing it."""


def digest(story: Sequence[str]) -> str:
    """A short name of all these lines."""
    return blake2b("\n".join(story).encode(), digest_size=6).hexdigest()


def assert_as_written(name: str, lines: Sequence[str], stories: Mapping[str, Sequence[str]] | None = None) -> None:
    """Compare a run with what was written down of it under `name`. `stories` has what lines are digests of; the end
    of the first that is another now is shown."""
    path = _FOLDER / f"{name}.txt"
    if os.environ.get(WRITE) == "write":
        path.write_text("".join(f"{line}\n" for line in lines))
        return
    written = path.read_text().splitlines()
    if list(lines) == written:
        return
    found = list(unified_diff(written, list(lines), "written down", "now", n=0, lineterm=""))
    more = [f"... {len(found) - _SHOWN} lines more"] if len(found) > _SHOWN else []
    known = set(written)
    first = next((line for line in lines if line not in known and line in (stories or {})), "")
    story = [first, *(stories or {}).get(first, ())[-_SHOWN:]]
    told = "\n".join([*found[:_SHOWN], *more, *story])
    raise AssertionError(
        f"{name} is not what was written down in tests/golden. Where a change is meant to do that, run this test "
        f"with {WRITE}=write, and read the difference before you commit it.\n{told}"
    )
