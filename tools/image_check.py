"""Builds the images and tries them: `python -m tools.image_check [--base IMAGE] [--builder podman] [core worker …]`.

Needs Docker 23 or later, or Podman; nothing is pushed. Every image is run as a pod of the chart runs it: as its own
user, on a read-only file system with room in /tmp alone, without capabilities, and without a network. Then it must
have no packages and programs that it should not, its commands must end well, and its services must answer their
probes and stop when asked. Exit status 0 says that all of this holds of all images.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.image_probe import PROGRAMS

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "deploy" / "docker"
USER: Final = 10001
ROOM: Final = ("/tmp", "/dev/shm")
"""What may be written. The chart mounts volumes there."""
LARGEST: Final = 8
BUILD_S: Final = 7200.0
RUN_S: Final = 300.0


class ImageFailed(RuntimeError):
    """A command of the builder failed or took too long; the sentence says which."""


@dataclass(frozen=True)
class CommandCheck:
    """A command that ends with status 0 and prints `says`."""

    command: tuple[str, ...]
    says: str = ""


@dataclass(frozen=True)
class ServiceCheck:
    """A service that answers `url` with 200 within `bound_s` and ends with status 0 when it is told to."""

    command: tuple[str, ...]
    url: str
    bound_s: float = 120.0


@dataclass(frozen=True)
class Role:
    """One image: its Dockerfile's argument for the base, what must not be in it, and what is tried."""

    name: str
    base_argument: str
    without: tuple[str, ...]
    tries: tuple[CommandCheck | ServiceCheck, ...]

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.Dockerfile"


@dataclass(frozen=True)
class Contents:
    """What the probe found in an image."""

    user: int
    group: int
    python: str
    executable: str
    packages: Mapping[str, int]
    programs: Sequence[str]
    writable: Sequence[str]


@dataclass(frozen=True)
class Tried:
    """`problem` is empty when all went well."""

    what: str
    seconds: float
    problem: str = ""


_VERSION: Final = CommandCheck(("tandem", "--version"), "tandem ")
_HEALTH: Final = "http://127.0.0.1:7480"
_WORKER: Final = ("--metrics_bind=127.0.0.1:7480", "--link.bind=127.0.0.1:7400")
_ROUTER: Final = ("python", "-m", "router", "--host=127.0.0.1", "--port=8000", "--workers=127.0.0.1:7400")
_STORE: Final = ("python", "-m", "kv_store", *_WORKER, "--ticket_key_file=/tmp/keys", "--workers_file=/tmp/none")
_WITH_KEY: Final = ("sh", "-c", 'printf %064d 7 > /tmp/keys && exec "$@"', "sh")


def _help(*module: str) -> CommandCheck:
    return CommandCheck(("python", "-m", *module, "--help"), "usage: ")


ROLES: Final = {
    role.name: role
    for role in (
        Role(
            "core",
            "PYTHON_IMAGE",
            ("torch", "triton", "transformers", "vllm", "pytest", "mypy", "setuptools"),
            (
                _VERSION,
                CommandCheck(("tandem", "--help"), "usage: tandem"),
                *(_help(module) for module in ("control_plane", "router", "kv_store")),
                ServiceCheck((*_ROUTER, "--engine=simulated"), "http://127.0.0.1:8000/health"),
                ServiceCheck((*_ROUTER, "--model=demo"), "http://127.0.0.1:8000/health"),
                ServiceCheck((*_WITH_KEY, *_STORE), f"{_HEALTH}/alive"),
            ),
        ),
        Role(
            "worker",
            "BASE_IMAGE",
            ("vllm", "kubernetes", "transformers", "pytest", "mypy"),
            (
                _VERSION,
                *(_help(module) for module in ("prefill_worker", "decode_worker")),
                *(
                    CommandCheck(("python", "-m", "tandem.apps.cli", name, "--help"), "usage: ")
                    for name in ("fetch", "verify")
                ),
                ServiceCheck(("python", "-m", "decode_worker", *_WORKER, "--engine=simulated"), f"{_HEALTH}/ready"),
                ServiceCheck(("python", "-m", "decode_worker", *_WORKER, "--role=unified"), f"{_HEALTH}/ready"),
                CommandCheck(("tandem", "demo"), "decode"),
            ),
        ),
        Role(
            "worker-vllm",
            "BASE_IMAGE",
            (),  # What there is besides us is vLLM's.
            (
                _VERSION,
                *(_help(module) for module in ("prefill_worker", "decode_worker")),
                CommandCheck(("sh", "-c", 'head -n 1 "$(command -v vllm)"'), "/opt/tandem/bin/python"),
                ServiceCheck(("python", "-m", "decode_worker", *_WORKER, "--engine=vllm"), f"{_HEALTH}/ready", 280.0),
            ),
        ),
    )
}


def main() -> int:
    options = options_of(sys.argv[1:])
    failed = []
    for name in options.roles:
        try:
            problems = check(ROLES[name], options)
        except ImageFailed as error:
            problems = [str(error)]
        failed += [f"{name}: {problem}" for problem in problems]
    print("\n".join(["", *failed]) if failed else "\nall images are as they should be")
    return 1 if failed else 0


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """`build_argument` and `run_argument` go to the builder as they are."""
    parser = argparse.ArgumentParser(description="Build the images and try them as pods run them.")
    parser.add_argument("roles", nargs="*", help=f"of {', '.join(ROLES)}; core and worker by default")
    parser.add_argument("--base", help="image to build core and worker on, instead of the Dockerfiles' own")
    parser.add_argument("--vllm-base", help="the same for worker-vllm, which is then built, too")
    parser.add_argument("--builder", default="docker", help="docker (default), podman, or the path of either")
    parser.add_argument("--prefix", default="", help="registry and path before the names, such as registry.example/a")
    parser.add_argument("--tag", default=version(), help="%(default)s by default")
    parser.add_argument("--built", action="store_true", help="try images that are there already")
    parser.add_argument("--json", type=Path, help="write what was found here")
    for command in ("build", "run"):
        flag = f"--{command}-argument"
        parser.add_argument(flag, action="append", default=[], help=f"one more argument of the builder's `{command}`")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.roles if name not in ROLES]
    if unknown:
        parser.error(f"there is no image {unknown[0]!r}, but {', '.join(ROLES)}")
    options.roles = options.roles or ["core", "worker", *(["worker-vllm"] if options.vllm_base else [])]
    return options


def version() -> str:
    """The project's, which is the chart's default tag, too."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def check(role: Role, options: argparse.Namespace) -> list[str]:
    """Build one image, look into it and try it; what is wrong. Raises ImageFailed where it cannot be looked into."""
    image, base = image_of(role, options), base_of(role, options)
    if not options.built:
        print(f"\n{image}: building on {base}", flush=True)
        began = time.monotonic()
        call(build_command(role, options), BUILD_S, quiet=False)
        print(f"{image}: built in {time.monotonic() - began:.0f} s", flush=True)
    found = looked_into(image, options)
    inspected = json.loads(call((options.builder, "image", "inspect", image), RUN_S))[0]
    own = sorted(set(found.programs) - programs_of(base, options))
    print(f"{image}: {described(inspected['Size'], found)}", flush=True)
    problems = complaints(role, found, own)
    tried = [attempt(each, image, options) for each in role.tries]
    for each in tried:
        print(f"  {'FAILED' if each.problem else 'ok':6} {each.seconds:6.1f} s  {each.what}", flush=True)
    if options.json is not None:
        report = {"image": image, "bytes": inspected["Size"], **vars(found), "tried": [vars(each) for each in tried]}
        write_report(options.json, role.name, report)
    return [*problems, *(f"{each.what}: {each.problem}" for each in tried if each.problem)]


def image_of(role: Role, options: argparse.Namespace) -> str:
    prefix = f"{options.prefix.rstrip('/')}/" if options.prefix else ""
    return f"{prefix}tandem-{role.name}:{options.tag}"


def base_of(role: Role, options: argparse.Namespace) -> str:
    """What was asked for, else what the Dockerfile names."""
    given = options.vllm_base if role.name == "worker-vllm" else options.base
    if given:
        return str(given)
    found = re.search(rf"^ARG {role.base_argument}=(\S+)$", role.file.read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"{role.file.name} has no ARG {role.base_argument}"
    return found.group(1)


def build_command(role: Role, options: argparse.Namespace) -> list[str]:
    base = f"{role.base_argument}={base_of(role, options)}"
    named = ["--file", str(role.file), "--tag", image_of(role, options), "--build-arg", base]
    return [options.builder, "build", *named, *options.build_argument, str(ROOT)]


def run_command(image: str, command: Sequence[str], options: argparse.Namespace) -> list[str]:
    """As Pod Security `restricted` and the chart have it. Podman would leave more than /tmp writable by itself."""
    limits = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    if Path(options.builder).name == "podman":
        limits.append("--read-only-tmpfs=false")
    isolated = ["--rm", "--interactive", "--network", "none", *limits]
    return [options.builder, "run", *isolated, *options.run_argument, image, *command]


def looked_into(image: str, options: argparse.Namespace) -> Contents:
    return Contents(**probe(image, ("contents",), options))


def programs_of(base: str, options: argparse.Namespace) -> set[str]:
    """Which of the probe's programs the base has itself; it may have no Python."""
    asking = f"for each in {' '.join(PROGRAMS)}; do command -v $each >/dev/null && echo $each; done; true"
    entry = ("--entrypoint", "sh")
    command = run_command(base, ("-c", asking), options)
    return set(call([*command[:2], *entry, *command[2:]], RUN_S).split())


def complaints(role: Role, found: Contents, own_programs: Sequence[str]) -> list[str]:
    """What an image has that it should not. `own_programs` came with the image and not with its base."""
    problems = []
    if (found.user, found.group) != (USER, USER):
        problems.append(f"runs as {found.user}:{found.group} instead of {USER}:{USER}")
    names = {name.lower().replace("_", "-") for name in found.packages}
    problems += [f"has {name}" for name in role.without if name in names]
    problems += [f"{name} was left over" for name in own_programs]
    problems += [f"{place} can be written" for place in found.writable if place not in ROOM]
    problems += [f"{place} cannot be written" for place in ROOM if place not in found.writable]
    if "tandem-serve" not in names:
        problems.append("has no tandem-serve")
    return problems


def described(size: int, found: Contents) -> str:
    largest = sorted(found.packages.items(), key=lambda each: -each[1])[:LARGEST]
    named = ", ".join(f"{name} {taken / 1e6:.0f}" for name, taken in largest)
    packages = sum(found.packages.values()) / 1e6
    return (
        f"{size / 1e6:.0f} MB, of which {packages:.0f} in {len(found.packages)} packages "
        f"for Python {found.python}: {named}"
    )


def attempt(each: CommandCheck | ServiceCheck, image: str, options: argparse.Namespace) -> Tried:
    """One command or service in a container of its own."""
    what, began = " ".join(each.command), time.monotonic()

    def took() -> float:
        return round(time.monotonic() - began, 2)

    try:
        if isinstance(each, ServiceCheck):
            answer = probe(image, ("start", each.url, str(each.bound_s), *each.command), options)
            return Tried(what, answer["ready_s"] or took(), start_problem(each, answer))
        said = call(run_command(image, each.command, options), RUN_S)
        problem = "" if each.says in said else f"did not say {each.says!r}"
    except ImageFailed as error:
        problem = str(error)
    return Tried(what, took(), problem)


def start_problem(tried: ServiceCheck, answer: Mapping[str, Any]) -> str:
    if answer["ready_s"] is None:
        return f"{tried.url} never answered (status {answer['status']}): {answer['said'].strip()}"
    return "" if answer["status"] == 0 else f"ended with status {answer['status']}: {answer['said'].strip()}"


def probe(image: str, arguments: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """What `tools/image_probe.py` says inside the image."""
    source = (ROOT / "tools" / "image_probe.py").read_bytes()
    said = call(run_command(image, ("python", "-", *arguments), options), RUN_S + 120.0, given=source)
    found: dict[str, Any] = json.loads(said)
    return found


def call(command: Sequence[str], bound_s: float, *, quiet: bool = True, given: bytes = b"") -> str:
    """What the command printed. Raises ImageFailed."""
    shown = " ".join(command[:2])
    kept = subprocess.PIPE if quiet else None
    try:
        ran = subprocess.run(command, input=given, stdout=kept, stderr=kept, timeout=bound_s, check=False)
    except FileNotFoundError as error:
        raise ImageFailed(f"there is no {command[0]}; --builder names another") from error
    except subprocess.TimeoutExpired as error:
        raise ImageFailed(f"{shown} took longer than {bound_s:g} s") from error
    if ran.returncode != 0:
        said = (ran.stderr or b"").decode(errors="replace")[-2000:].strip()
        raise ImageFailed(f"{shown} ended with status {ran.returncode}{said and f': {said}'}")
    return (ran.stdout or b"").decode(errors="replace")


def write_report(path: Path, role: str, report: Mapping[str, Any]) -> None:
    """Beside what other roles left there."""
    whole = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**whole, role: report}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
