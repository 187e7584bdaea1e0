"""Writes the chart `tandem-crds` from the types of `tandem.spec`; with `--check` only says whether it is up to date.

python -m tools.generate_crds [--check]
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from control_plane.crds.chart import FOLDER, files

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """Of the platform."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def differences(wanted: Mapping[str, str]) -> list[str]:
    """Which files are missing, different, or left over."""
    changed = [path for path, text in wanted.items() if not _is(ROOT / path, text)]
    present = [str(path.relative_to(ROOT)) for path in (ROOT / FOLDER / "templates").glob("*.yaml")]
    return sorted({*changed, *(path for path in present if path not in wanted)})


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def _install(wanted: Mapping[str, str], changed: list[str]) -> None:
    for path in changed:
        if path in wanted:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(wanted[path], encoding="utf-8")
        else:
            (ROOT / path).unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when files are out of date")
    check = parser.parse_args().check
    wanted = files(version())
    changed = differences(wanted)
    if not check:
        _install(wanted, changed)
    for path in changed:
        print(f"{'out of date' if check else 'written'}: {path}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
