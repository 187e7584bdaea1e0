"""Makes the virtual environment: `python tools/setup_environment.py .venv`. Needs only Python 3.11+ and pip.

Versions come from constraints.txt. Where no GPU is present the CPU build of torch is preferred, as the ordinary
build for Linux brings gigabytes of CUDA libraries: it is looked for on the indexes pip is configured with, then on
`TANDEM_TORCH_INDEX` when that is set. `--freeze` writes constraints.txt from the environment instead.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = "torch,dev,ray"
NIXL = "nixl-cu12==1.5.1"
NOT_PINNED = ("tandem-serve", "pip", "setuptools")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or renew Tandem's virtual environment.")
    parser.add_argument("environment", type=Path, nargs="?", default=ROOT / ".venv")
    parser.add_argument("--freeze", action="store_true", help="write constraints.txt from the environment and stop")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - an older interpreter may well run this file
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(f"Python 3.11 or later is needed, this is {found}; try `make setup PYTHON=python3.12`")
    environment = options.environment.absolute()
    if options.freeze:
        CONSTRAINTS.write_text(frozen(environment))
        return 0
    return set_up(environment)


def set_up(environment: Path) -> int:
    """Install everything unless the stamp says that it has been done for these very inputs."""
    stamp = environment / ".tandem-setup"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        print(f"setup: {environment.name} is up to date")
        return 0
    if not python_of(environment).exists():
        print(f"setup: creating {environment.name} with Python {sys.version.split()[0]}")
        venv.create(environment, with_pip=True)
    for step in (install_torch, install_project):
        if not step(environment):
            return fail(f"{step.__name__.replace('_', ' ')} failed; pip's message is above")
    install_nixl(environment)
    stamp.write_text(wanted)
    print(f"setup: done; activate with `. {environment.name}/bin/activate` or run {environment.name}/bin/tandem")
    return 0


def install_torch(environment: Path, constraints: Path = CONSTRAINTS) -> bool:
    """The pinned torch: kept when it is there, else a CPU build when there is no GPU and one can be had."""
    pinned = pinned_version("torch", constraints)
    present = installed_torch(environment)
    if present.split("+")[0] == pinned:
        print(f"setup: torch {present} is installed")
        return True
    if not gpu_present() and sys.platform == "linux":
        for name, index in cpu_sources():
            if pip(environment, f"torch=={pinned}+cpu", *index, quiet=True, constraints=constraints):
                print(f"setup: torch {pinned}+cpu, CPU build from {name}")
                return True
        print("setup: no CPU build of torch was found; TANDEM_TORCH_INDEX can name an index that has one")
    print(f"setup: torch {pinned}, the ordinary build")
    return pip(environment, f"torch=={pinned}", constraints=constraints)


def install_project(environment: Path) -> bool:
    return pip(environment, "-e", f"{ROOT}[{EXTRAS}]")


def install_nixl(environment: Path) -> None:
    """The library of the `nixl` transport, where it can be had: everything else works without. Its own requirements
    would bring CUDA builds of torch, which it does not need."""
    if not pip(environment, "--no-deps", NIXL, quiet=True):
        print(f"setup: {NIXL} is not to be had here; the transport `nixl` stays off and its tests are skipped")


def cpu_sources() -> list[tuple[str, tuple[str, ...]]]:
    """Where to look for a CPU build, as (what to call it, pip arguments)."""
    sources: list[tuple[str, tuple[str, ...]]] = [("the configured indexes", ())]
    extra = os.environ.get("TANDEM_TORCH_INDEX")
    if extra:
        sources.append(("TANDEM_TORCH_INDEX", ("--extra-index-url", extra)))
    return sources


def gpu_present() -> bool:
    """Whether an NVIDIA driver answers with at least one device."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def pip(environment: Path, *arguments: str, quiet: bool = False, constraints: Path = CONSTRAINTS) -> bool:
    """Run pip install under the constraints. `quiet` hides the complaint of an attempt that may fail."""
    command = [str(python_of(environment)), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command += ["--constraint", str(constraints), *arguments]
    return subprocess.run(command, stderr=subprocess.DEVNULL if quiet else None, check=False).returncode == 0


def installed_torch(environment: Path) -> str:
    """The version of torch in the environment, or an empty string."""
    code = "import importlib.metadata as m; print(next((d.version for d in m.distributions(name='torch')), ''))"
    answer = subprocess.run([str(python_of(environment)), "-c", code], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def pinned_version(package: str, constraints: Path = CONSTRAINTS) -> str:
    found = re.search(rf"^{re.escape(package)}==(\S+)$", constraints.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"setup: {constraints.name} does not pin {package}")
    return found.group(1)


def fingerprint() -> str:
    """What the environment was made from: the two files and the interpreter."""
    made_from = (ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes() + sys.version.encode()
    return hashlib.sha256(made_from).hexdigest()


def frozen(environment: Path) -> str:
    """The environment's exact versions, without local builds, paths and what pip itself brings."""
    command = [str(python_of(environment)), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    kept = [line.split("+")[0] for line in listed if line.split("==")[0].lower() not in NOT_PINNED]
    head = "# Exact versions that the tests ran with. Written by `make constraints`.\n"
    return head + "".join(f"{line}\n" for line in sorted(kept, key=str.lower))


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def fail(sentence: str) -> int:
    print(f"setup: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
