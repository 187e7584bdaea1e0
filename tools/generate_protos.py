"""Generates the Python of every `protos/*.proto`; with `--check` only says whether that would change a file.

Paths are given to protoc relative to the repository root, so generated modules import each other as
`from protos import …` without any rewriting.
"""

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(out: Path) -> list[Path]:
    """Run protoc into `out` and give the generated files, relative to it. Raises `SystemExit` when protoc fails."""
    sources = sorted(f"protos/{path.name}" for path in (ROOT / "protos").glob("*.proto"))
    bundled = importlib.resources.files("grpc_tools") / "_proto"
    outputs = (f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}")
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{bundled}", *outputs, *sources])
    if status != 0:
        raise SystemExit(f"protoc ended with status {status}")
    return [Path(source.removesuffix(".proto") + suffix) for source in sources for suffix in SUFFIXES]


def differences(fresh: Path, generated: list[Path]) -> list[Path]:
    """Which of the generated files are missing or different in the repository, and which are left over."""
    changed = [path for path in generated if not _equal(fresh / path, ROOT / path)]
    present = [path.relative_to(ROOT) for suffix in SUFFIXES for path in (ROOT / "protos").glob(f"*{suffix}")]
    return sorted({*changed, *(path for path in present if path not in generated)})


def _equal(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _install(fresh: Path, changed: list[Path]) -> None:
    for path in changed:
        if (fresh / path).exists():
            (ROOT / path).write_bytes((fresh / path).read_bytes())
        else:
            (ROOT / path).unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when files are out of date")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        changed = differences(fresh, generate(fresh))
        if not check:
            _install(fresh, changed)
    for path in changed:
        print(f"{'out of date' if check else 'written'}: {path}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
