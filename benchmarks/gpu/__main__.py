"""`python -m benchmarks.gpu --device cuda --out FOLDER`: all steps, then `gpu.json` and `gpu.md`.

Every step is a process of its own with a bound, so that one which fails or hangs costs nothing but its own figures.
Status 1 when a check failed or a step could not be carried out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from benchmarks.gpu.results import Section, as_json, as_markdown
from benchmarks.gpu.target import Target

BOUNDS_S: Final = {"ceilings": 60, "copies": 90, "engine": 300, "pair": 180, "tiers": 60, "nixl": 90}
"""The steps, in order, and how long each may take: two calls of nine minutes, the second for `pair` and `nixl`."""


def measured(step: str, target: Target) -> Section:
    """One step, in this process. What fails is in the section."""
    module: Any = import_module(f"benchmarks.gpu.{step}")
    section = Section(step, module.TITLE)
    section.skipped = module.missing() if hasattr(module, "missing") else ""
    began = time.perf_counter()
    if not section.skipped:
        try:
            section.figures.extend(module.measure(target))
        # Whatever it was, the other steps still have something to say.
        except Exception as error:  # noqa: BLE001
            section.problems.append(f"{type(error).__name__}: {error}")
    section.seconds = time.perf_counter() - began
    return section


def apart(step: str, given: argparse.Namespace, folder: Path) -> Section:
    """One step in a process of its own, for at most its bound."""
    answer = folder / f"{step}.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", given.device, "--one", step, "--out", str(folder)]
    command += ["--tiny"] if given.tiny else []
    try:
        subprocess.run(command, timeout=BOUNDS_S[step], check=True, stdin=subprocess.DEVNULL)
        return msgspec.json.decode(answer.read_bytes(), type=Section)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        return Section(step, step, problems=[f"it did not end well: {error}"])


def main() -> int:
    """Status 0 when every step that could run did, and every check held."""
    given = _parser().parse_args()
    given.tiny = given.tiny or given.device == "cpu"
    given.out.mkdir(parents=True, exist_ok=True)
    if given.one is not None:
        section = measured(given.one, Target(torch.device(given.device), given.tiny, given.out))
        (given.out / f"{given.one}.json").write_bytes(msgspec.json.encode(section))
        return 0
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-", dir=given.scratch) as scratch:
        sections = [apart(step, given, Path(scratch)) for step in given.steps]
        machine = Target(torch.device(given.device), given.tiny, given.out).machine()
    return report(machine, sections, given.out)


def report(machine: Any, sections: Sequence[Section], out: Path) -> int:
    """Write both files and print the one for people; the exit status."""
    (out / "gpu.json").write_text(as_json(machine, sections), encoding="utf-8")
    text = as_markdown(machine, sections)
    (out / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
    failed = [section.name for section in sections if section.problems]
    print(f"bench-gpu: {'FAILED: ' + ', '.join(failed) if failed else 'OK'}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu, which shows that it runs")
    parser.add_argument("--tiny", action="store_true", help="sizes that measure nothing; always on a CPU")
    parser.add_argument("--steps", nargs="+", choices=tuple(BOUNDS_S), default=tuple(BOUNDS_S))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "build/gpu"))
    parser.add_argument("--scratch", help="where models are written: 20 GB; by default the system's temporary files")
    parser.add_argument("--one", choices=tuple(BOUNDS_S), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
