"""Builds the programs of the test cluster from pinned Go modules, once, into a cache directory.

    python -m tools.cluster_binaries [--only etcd,helm] [--jobs 2] [--if-possible] [--where]

Needs Go 1.26 or later and a reachable module proxy (whatever `go env GOPROXY` says); nothing else. Programs:
etcd, kube-apiserver, kube-controller-manager, kube-scheduler, helm, kubeconform; and kubectl, keda and keda-adapter
when they are asked for (KEDA is as large as all others together). KEDA's lie in a directory of their own, with its
manifests.

Each upstream gets a module of its own, because their dependencies contradict one another. The published go.mod of
Kubernetes asks for its staging modules at v0.0.0, so that `go install` refuses it; the requirement of each staging
module is read from that go.mod and replaced by the released one. What KEDA's go.mod replaces is replaced here, too.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.36.2"
ETCD = "3.6.10"
HELM = "4.2.4"
KEDA = "2.20.2"
KUBECONFORM = "0.8.0"
GO_AT_LEAST = (1, 26)
VERSION = f"kubernetes-{KUBERNETES}_etcd-{ETCD}_helm-{HELM}"
MANIFEST = "built.json"
ONE_BUILD_AT_MOST_S = 3600.0
"""A build that takes longer is taken to hang (the slowest takes some minutes on two cores)."""


class CannotBuild(RuntimeError):
    """Go is missing or too old, or a module cannot be fetched or compiled; the sentence says which."""


@dataclass(frozen=True)
class Program:
    """One program: the module it comes from, its package, and the version string its linker flags write.

    `apart` is its directory within the cache, where the versions that name the cache do not tell its own; `leaves` a
    directory of the module whose YAML files are copied beside the program.
    """

    name: str
    module: str
    version: str
    package: str
    stamps: tuple[str, ...] = ()
    apart: str = ""
    leaves: str = ""

    @property
    def linker_flags(self) -> str:
        return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)])


def _kubernetes(name: str) -> Program:
    major, minor, _ = KUBERNETES.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "lab",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = tuple(f"{package}.{key}={value}" for package in packages for key, value in values.items())
    return Program(name, "k8s.io/kubernetes", KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", stamps)


def _keda(name: str, package: str) -> Program:
    module = "github.com/kedacore/keda/v2"
    stamps = (f"{module}/version.Version={KEDA}",)
    return Program(name, module, KEDA, f"{module}/cmd/{package}", stamps, f"keda-{KEDA}", "config")


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "go.etcd.io/etcd/server/v3", ETCD, "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        Program(
            "helm",
            "helm.sh/helm/v4",
            HELM,
            "helm.sh/helm/v4/cmd/helm",
            (f"helm.sh/helm/v4/internal/version.version=v{HELM}",),
        ),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl"),
        Program(
            "kubeconform",
            "github.com/yannh/kubeconform",
            KUBECONFORM,
            "github.com/yannh/kubeconform/cmd/kubeconform",
            (f"main.version=v{KUBECONFORM}",),
            f"kubeconform-{KUBECONFORM}",
        ),
        _keda("keda", "operator"),
        _keda("keda-adapter", "adapter"),
    )
}
DEFAULT = ("etcd", "kube-apiserver", "helm", "kube-controller-manager", "kube-scheduler", "kubeconform")
SERVER = ("etcd", "kube-apiserver")
"""What no cluster test can do without."""


def cache_directory() -> Path:
    """`TANDEM_CLUSTER_BIN` if set, else a directory of this set of versions under the user's cache."""
    named = os.environ.get("TANDEM_CLUSTER_BIN")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tandem" / "cluster" / VERSION


def _directory(program: Program) -> Path:
    """Where the cache has it."""
    return cache_directory() / program.apart


def left_by(name: str) -> Path:
    """The directory with what the module of a program left beside it."""
    return _directory(PROGRAMS[name]) / PROGRAMS[name].leaves


def openapi() -> Path:
    """What the API of this Kubernetes takes, as its module describes it; `ensure` puts it there with kubeconform."""
    return cache_directory() / "openapi" / f"kubernetes-{KUBERNETES}.json"


def find(name: str) -> Path | None:
    """The program from `KUBEBUILDER_ASSETS` or the cache; None if neither has it."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for directory in ([Path(assets)] if assets else []) + [_directory(PROGRAMS[name])]:
        path = directory / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def go_version() -> tuple[int, ...] | None:
    """(1, 26, 8) of the `go` on PATH, None without one."""
    if shutil.which("go") is None:
        return None
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60.0).stdout
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", said.strip())
    return tuple(int(part) for part in found.groups() if part) if found else None


def can_build() -> bool:
    version = go_version()
    return version is not None and version[:2] >= GO_AT_LEAST


def _go(directory: Path, *arguments: str) -> str:
    environment = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            ["go", *arguments],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ONE_BUILD_AT_MOST_S,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"go {arguments[0]} took longer than {ONE_BUILD_AT_MOST_S:.0f} s") from error
    if done.returncode:
        raise CannotBuild(f"go {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _module_of(program: Program, root: Path) -> Path:
    """A module that requires exactly this upstream (made once); its sums are checked as Go's settings say."""
    directory = root / "modules" / f"{program.module.replace('/', '_')}@{program.version}"
    if (directory / "go.mod").exists():
        return directory
    fresh = directory.with_name(f"{directory.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    _go(fresh, "mod", "init", "lab")
    wanted = json.loads(_go(fresh, "mod", "download", "-json", f"{program.module}@v{program.version}"))
    edits = [f"-require={program.module}@v{program.version}"]
    if program.module == "k8s.io/kubernetes":
        staging = re.findall(r"^\s*(\S+) v0\.0\.0$", Path(wanted["GoMod"]).read_text(), re.MULTILINE)
        released = f"v0.{program.version.split('.', 1)[1]}"
        edits += [f"-replace={module}={module}@{released}" for module in staging]
    # Go reads no replacement of a module that is only required. Those without a version lie in its own repository.
    for each in json.loads(_go(fresh, "mod", "edit", "-json", wanted["GoMod"])).get("Replace") or ():
        if "Version" in each["New"]:
            old = "@".join(filter(None, (each["Old"]["Path"], each["Old"].get("Version"))))
            edits.append(f"-replace={old}={each['New']['Path']}@{each['New']['Version']}")
    _go(fresh, "mod", "edit", *edits)
    if directory.exists():
        shutil.rmtree(fresh)
    else:
        fresh.rename(directory)
    return directory


def build(program: Program, root: Path, jobs: int) -> dict[str, float]:
    """Compiles one program into `root`; returns wall and processor seconds and its size in MB."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    module = _module_of(program, root)
    where = root / program.apart
    where.mkdir(exist_ok=True)
    partial = where / f".{program.name}.{os.getpid()}"
    options = ["-mod=mod", "-trimpath", "-buildvcs=false", f"-p={jobs}", f"-ldflags={program.linker_flags}"]
    try:
        _go(module, "build", *options, "-o", str(partial), program.package)
        if program.leaves:
            _leave(Path(_go(module, "list", "-mod=mod", "-m", "-f={{.Dir}}", program.module).strip()), program, where)
        partial.rename(where / program.name)
    finally:
        partial.unlink(missing_ok=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(processor, 1),
        "megabytes": round((where / program.name).stat().st_size / 1e6, 1),
    }


def _describe(root: Path) -> None:
    """Copies the description of Kubernetes' API out of its module, which need not be compiled for that."""
    target, program = openapi(), PROGRAMS["kube-apiserver"]
    if target.exists():
        return
    module = _module_of(program, root)
    _go(module, "mod", "download", program.module)
    source = Path(_go(module, "list", "-mod=mod", "-m", "-f={{.Dir}}", program.module).strip())
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes((source / "api" / "openapi-spec" / "swagger.json").read_bytes())
    partial.rename(target)


def _leave(source: Path, program: Program, where: Path) -> None:
    """Copies YAML files of a module's directory; those in the module cache cannot be written."""
    for path in (source / program.leaves).rglob("*.yaml"):
        target = where / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())


def ensure(names: Sequence[str], jobs: int) -> dict[str, Path]:
    """Paths of the programs, building what neither the assets nor the cache have. Raises CannotBuild."""
    missing = [name for name in names if find(name) is None]
    if missing and not can_build():
        version = go_version()
        has = "no go on PATH" if version is None else "only go " + ".".join(map(str, version))
        raise CannotBuild(f"{', '.join(missing)}: not in KUBEBUILDER_ASSETS or the cache, and {has} to build them")
    root = cache_directory()
    for name in missing:
        root.mkdir(parents=True, exist_ok=True)
        program = PROGRAMS[name]
        print(f"{name} {program.version}: building", flush=True)
        figures = build(program, root, jobs)
        manifest = root / MANIFEST
        built = json.loads(manifest.read_text()) if manifest.exists() else {}
        built[name] = {"version": program.version, **figures}
        manifest.write_text(json.dumps(built, indent=1) + "\n")
        print(
            f"{name}: {figures['seconds']:.0f} s ({figures['processor_seconds']:.0f} s of processor time), "
            f"{figures['megabytes']:.0f} MB",
            flush=True,
        )
    if "kubeconform" in names and can_build():
        root.mkdir(parents=True, exist_ok=True)
        _describe(root)
    found = {name: find(name) for name in names}
    return {name: path for name, path in found.items() if path is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DEFAULT), help="names with commas between them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="compilers at a time")
    parser.add_argument("--if-possible", action="store_true", help="end well, saying so, where there is no Go")
    parser.add_argument("--where", action="store_true", help="print the cache directory and end")
    arguments = parser.parse_args()
    if arguments.where:
        print(cache_directory())
        return 0
    names = [name for name in arguments.only.split(",") if name]
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    if arguments.if_possible and not can_build() and any(find(name) is None for name in names):
        print(f"cluster binaries: no Go {GO_AT_LEAST[0]}.{GO_AT_LEAST[1]} to build them: tests are skipped")
        return 0
    try:
        for name, path in ensure(names, arguments.jobs).items():
            print(f"{name}: {path}")
    except CannotBuild as error:
        print(f"cluster binaries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
