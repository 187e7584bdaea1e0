"""Unpacks the Python files of a newer vLLM: `python -m tools.vllm_next build/vllm-next`; prints where they lie.

The next minor version has no build for CPUs until weeks after it is there, and its own wheel needs a GPU to run. What
Tandem reaches into is Python, and that can be imported (`tests/vllm_versions`). The wheel is fetched once.
"""

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from tools.setup_environment import fail

VERSION: Final = "0.33.0"
_DOWNLOAD_S: Final = 540.0
_KEPT: Final = (".py", ".json", "/METADATA", "/entry_points.txt")
"""What a package needs to be imported and found by version; kernels and binaries stay behind."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Unpack the Python files of the next version of vLLM.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory.absolute()
    there = directory / VERSION
    if not (there / "vllm").is_dir():
        wheel = fetched(directory)
        if wheel is None:
            return fail(f"vllm {VERSION} could not be fetched; pip's message is above")
        unpack(wheel, there)
        wheel.unlink()
    print(there)
    return 0


def fetched(directory: Path) -> Path | None:
    """The wheel, some 340 MB."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(directory), f"vllm=={VERSION}"]
    try:
        if subprocess.run(command, check=False, stdout=sys.stderr, timeout=_DOWNLOAD_S).returncode != 0:
            return None
    except subprocess.TimeoutExpired:
        return None
    return next(directory.glob(f"vllm-{VERSION}-*.whl"), None)


def unpack(wheel: Path, directory: Path) -> None:
    """Under another name first, so that half of a package is never found."""
    partial = directory.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial, [name for name in archive.namelist() if name.endswith(_KEPT)])
    partial.rename(directory)


if __name__ == "__main__":
    sys.exit(main())
