"""Packages that `benchmarks.gpu` needs on a GPU machine that reaches no registry, in parcels that can be carried.

python -m tools.gpu_wheels [--nixl] [--into build/gpu-wheels]

The machine has Python 3.12, torch with CUDA, transformers, safetensors and httpx, and takes a limited number of bytes
per call. Wheels are downloaded in the versions of `constraints.txt`; each parcel is a folder of at most 45 MiB, and a
wheel that is larger is cut into parts that `cat` puts together again.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PARCEL_BYTES: Final = 45 << 20
PACKAGES: Final = (
    "msgspec",
    "httptools",
    "redis",
    "zstandard",
    "blake3",
    "xxhash",
    "grpcio",
    "protobuf",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
    "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-proto",
    "googleapis-common-protos",
)
"""What Tandem imports and that machine has not, or may have in an older version."""
NIXL: Final = ("nixl-cu13==1.5.1",)
_PLATFORMS: Final = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)

Part = tuple[str, int, int]
"""A file's name, where the part begins, and how many bytes it has."""


def parcels(sizes: Mapping[str, int], limit: int = PARCEL_BYTES) -> list[list[Part]]:
    """Which parts of which files each parcel has: whole files where they fit, the largest first."""
    cut = [
        (name, start, min(limit, size - start))
        for name, size in sizes.items()
        for start in range(0, max(size, 1), limit)
    ]
    found: list[list[Part]] = []
    for part in sorted(cut, key=lambda each: -each[2]):
        fitting = (parcel for parcel in found if sum(each[2] for each in parcel) + part[2] <= limit)
        parcel = next(fitting, None)
        if parcel is None:
            found.append([part])
        else:
            parcel.append(part)
    return found


def pack(wheels: Path, into: Path, limit: int = PARCEL_BYTES) -> list[Path]:
    """Make the parcels `call-1`, `call-2`, … in `into`; a part of a wheel is called `NAME.part-0000000000`."""
    sizes = {path.name: path.stat().st_size for path in sorted(wheels.glob("*.whl"))}
    folders = []
    for index, parcel in enumerate(parcels(sizes, limit)):
        folder = into / f"call-{index + 1}"
        folder.mkdir(parents=True)
        for name, start, size in parcel:
            whole = size == sizes[name]
            with (wheels / name).open("rb") as source:
                source.seek(start)
                (folder / (name if whole else f"{name}.part-{start:010d}")).write_bytes(source.read(size))
        folders.append(folder)
    return folders


def main() -> int:
    """Download, pack and say what to do with the parcels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nixl", action="store_true", help="nixl for CUDA 13 instead, which is 56 MiB")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "gpu-wheels")
    given = parser.parse_args()
    into = given.into / ("nixl" if given.nixl else "tandem")
    shutil.rmtree(into, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.12",
    ]
    command += ["--implementation", "cp", *(word for each in _PLATFORMS for word in ("--platform", each))]
    command += ["--quiet", "--dest", str(into / "wheels")]
    command += list(NIXL) if given.nixl else ["--constraint", str(ROOT / "constraints.txt"), *PACKAGES]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        return status
    for folder in pack(into / "wheels", into):
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder}: {size / (1 << 20):.1f} MiB")
    shutil.rmtree(into / "wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
