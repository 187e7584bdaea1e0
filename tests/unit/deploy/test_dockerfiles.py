"""Dockerfiles: several stages, pinned bases, no root, and nothing that is not in the repository."""

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
import yaml

from control_plane.objects import pods
from control_plane.objects.installation import HEALTH_PORT, KV_PORT, LINK_PORT, NIXL_PORT

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "deploy" / "docker"
FILES: Final = sorted(FOLDER.glob("*.Dockerfile"))
VALUES: Final = yaml.safe_load((ROOT / "deploy" / "helm" / "tandem" / "values.yaml").read_text("utf-8"))
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
USER: Final = 10001
_BASE: Final = re.compile(r"[a-z0-9./-]+(:[0-9]+)?(/[a-z0-9./-]+)?:v?[0-9][A-Za-z0-9._-]*(@sha256:[0-9a-f]{64})?")
_BLOCKER: Final = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {refused!r}:
            raise ImportError(f'{{name}} is not in this image')
sys.meta_path.insert(0, Refuse())
for name in {names!r}:
    importlib.import_module(name)
"""

every = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@dataclass(frozen=True)
class Instruction:
    """One of a Dockerfile, continued lines joined."""

    name: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    lines = (
        line for line in path.read_text("utf-8").splitlines() if line.strip() and not line.lstrip().startswith("#")
    )
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.strip().partition(" ") for line in joined.splitlines()]
    return [Instruction(name.upper(), " ".join(rest.split())) for name, _, rest in found]


def stages(path: Path) -> list[list[Instruction]]:
    """What follows each FROM, that included."""
    found: list[list[Instruction]] = []
    for each in instructions(path):
        if each.name == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def arguments(path: Path) -> dict[str, str]:
    """Defaults of what may be given before the first stage."""
    before = []
    for each in instructions(path):
        if each.name == "FROM":
            break
        before.append(each)
    assert {each.name for each in before} == {"ARG"}
    return {name: value for name, _, value in (each.rest.partition("=") for each in before)}


def test_there_is_one_for_each_role() -> None:
    assert [path.name for path in FILES] == ["core.Dockerfile", "worker-vllm.Dockerfile", "worker.Dockerfile"]
    named = {VALUES[part]["image"]["repository"] for part in ("operator", "router", "kvStore")}
    named |= {VALUES["workers"][key]["repository"] for key in ("image", "vllmImage")}
    assert named == {f"tandem-{path.stem.removesuffix('.Dockerfile')}" for path in FILES}


@every
def test_bases_are_arguments_with_a_version(path: Path) -> None:
    defaults = arguments(path)
    for default in defaults.values():
        assert _BASE.fullmatch(default), f"{default} says no version"
    bases = [stage[0].rest.split(" AS ")[0] for stage in stages(path)]
    assert len(bases) >= 2
    assert set(bases) == {f"${{{name}}}" for name in defaults}


@every
def test_the_last_stage_is_small_and_nobodys_root(path: Path) -> None:
    first, last = stages(path)[0], stages(path)[-1]
    assert " AS " in first[0].rest
    (copied,) = (each for each in last if each.name == "COPY")
    assert copied.rest.startswith("--from=build ")
    (user,) = (each for each in last if each.name == "USER")
    assert user.rest == f"{USER}:{USER}"
    assert last.index(user) < [each.name for each in last].index("CMD")
    assert not [each for each in last if each.name == "RUN" and "pip" in each.rest]
    assert any(each.name == "LABEL" and "image.licenses" in each.rest for each in last)
    assert f"runAsUser: {{{{ .user | default {USER} }}}}" in (
        ROOT / "deploy" / "helm" / "tandem" / "templates" / "_pods.tpl"
    ).read_text("utf-8")


@every
def test_what_is_installed_is_pinned_and_leaves_nothing_behind(path: Path) -> None:
    whole = instructions(path)
    assert {each.name for each in whole} <= {
        "ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "USER", "EXPOSE", "CMD", "ENTRYPOINT"
    }  # fmt: skip
    assert any(each.name == "ENV" and "PIP_NO_CACHE_DIR=1" in each.rest for each in whole)
    for each in (one for one in whole if one.name == "RUN"):
        assert not re.search(r"\b(curl|wget|sudo)\b|https?://", each.rest)
        if "apt-get install" in each.rest:
            assert "--no-install-recommends" in each.rest
            assert "rm -rf /var/lib/apt/lists/*" in each.rest
        for command in re.findall(r"pip install ([^&|]*)", each.rest):
            words = command.split()
            pinned = "==" in command or "--constraint" in words or {"--no-deps", "--no-build-isolation"} <= set(words)
            assert pinned, command


@every
def test_what_builds_us_is_not_fetched_anew(path: Path) -> None:
    """Without isolation, that is with the version of setuptools that is installed beforehand."""
    text = " ".join(each.rest for each in instructions(path) if each.name == "RUN")
    ours = [
        command
        for command in re.findall(r"pip install ([^&|]*)", text)
        if re.search(r'(^|[\s"])\.(\[|\s|$)', command)
    ]
    assert len(ours) == 2
    assert all("--no-build-isolation" in command for command in ours)


def test_an_index_of_torch_stands_beside_pypi() -> None:
    """It may lack the pinned versions of what else torch needs."""
    installing = [each.rest for each in instructions(FOLDER / "worker.Dockerfile") if "TORCH_INDEX:+" in each.rest]
    assert len(installing) == 1
    assert '${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"}' in installing[0]


@every
def test_who_installs_may_have_an_index_and_an_authority_of_his_own(path: Path) -> None:
    """As secrets, which leave nothing in the image."""
    installing = [
        each.rest for each in instructions(path) if "pip install" in each.rest and "--no-deps" not in each.rest
    ]
    assert installing
    for each in installing:
        assert each.startswith("--mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca ")


@every
def test_processes_write_where_pods_have_room(path: Path) -> None:
    """Nobody's home and a read-only image: what would go there goes below /tmp, and no module is taken from there."""
    last = stages(path)[-1]
    words = [word for each in last if each.name == "ENV" for word in shlex.split(each.rest)]
    environment = dict(word.split("=", 1) for word in words)
    written = [value for name, value in environment.items() if name == "HOME" or name.endswith(("_DIR", "_ROOT"))]
    written += [each.rest for each in last if each.name == "WORKDIR"]
    assert len(written) >= 2
    assert all(PurePosixPath(each).is_relative_to("/tmp") for each in written)
    assert environment["PYTHONSAFEPATH"] == environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["PATH"] == "/opt/tandem/bin:${PATH}"


def test_packages_of_the_base_stay_as_python_finds_them_and_others_are_pinned(tmp_path: Path) -> None:
    """Of two with one name the first counts; what pip cannot read as a version is left out; a pin gives way."""
    for folder, name, version in (
        ("a", "one", "2.0"),
        ("b", "one", "1.0"),
        ("b", "two", "1.1build1"),
        ("b", "six", "3+cu129"),
        ("b", "Mixed_Name", "4"),
    ):
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    pins = tmp_path / "pins.txt"
    pins.write_text("# Ours.\none==9\nmixed-name==9\ntwo==9\nnew==5\n")
    environment = {"PYTHONPATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}
    command = [sys.executable, str(FOLDER / "pins.py"), str(pins)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert {"one==2.0", "six==3+cu129", "Mixed_Name==4", "new==5"} <= set(lines)
    assert not [line for line in lines if line.startswith(("two", "one==1", "one==9", "mixed-name"))]


def test_the_image_with_vllm_is_pinned_by_the_file_of_its_accelerator() -> None:
    """Which has what Tandem adds: on ROCm nothing else."""
    text = (FOLDER / "worker-vllm.Dockerfile").read_text("utf-8")
    assert "python3 pins.py ${PINS} > /tmp/constraints.txt" in text
    assert "--constraint /tmp/constraints.txt" in text
    for name in re.findall(r"constraints-vllm-[a-z]+\.txt", text):
        pins = {_normal(line.partition("==")[0]) for line in (ROOT / name).read_text("utf-8").splitlines()}
        assert {"redis", "xxhash"} <= pins
    assert "constraints-vllm-rocm.txt" in text


@every
def test_what_is_copied_is_in_the_repository_and_in_the_context(path: Path) -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert ignored[0] == "*", "what is not named stays out: environments, caches, results"
    named = {line[1:] for line in ignored if line.startswith("!")}
    for each in (one for one in instructions(path) if one.name == "COPY" and "--from" not in one.rest):
        *sources, _ = each.rest.replace("${PINS}", "constraints-vllm-cuda.txt").split()
        assert set(sources) - {"."} <= named
    assert all((ROOT / name).exists() for name in named)
    packages = {pattern.removesuffix("*") for pattern in _packages()}
    assert packages <= named
    assert not any(fnmatch(name, "*.venv*") for name in named)


def _packages() -> list[str]:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return list(whole["tool"]["setuptools"]["packages"]["find"]["include"])


@every
def test_extras_are_those_of_the_project_and_pinned(path: Path) -> None:
    defaults = dict(each.rest.split("=", 1) for each in instructions(path) if each.name == "ARG")
    text = path.read_text("utf-8").replace("${EXTRAS}", defaults.get("EXTRAS", ""))
    asked = {extra for each in re.findall(r"\.\[([a-z,]+)\]", text) for extra in each.split(",")}
    assert asked
    known = PROJECT["optional-dependencies"]
    assert asked <= known.keys()
    assert ("torch" in asked) is (path.name == "worker.Dockerfile")
    if path.name == "worker-vllm.Dockerfile":
        return
    pins = {_normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    wanted = [*PROJECT["dependencies"], *(each for extra in asked for each in known[extra])]
    assert {_normal(re.split(r"[<>=;\[ ]", each)[0]) for each in wanted} <= pins


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_vllm_is_the_one_that_is_tested() -> None:
    (pinned,) = PROJECT["optional-dependencies"]["vllm"]
    assert arguments(FOLDER / "worker-vllm.Dockerfile")["BASE_IMAGE"].endswith(f":v{pinned.partition('==')[2]}")


def test_ports_are_those_that_workers_listen_on() -> None:
    ports = {str(port) for port in (LINK_PORT, KV_PORT, NIXL_PORT, HEALTH_PORT)}
    for name in ("worker.Dockerfile", "worker-vllm.Dockerfile"):
        (exposed,) = (each for each in instructions(FOLDER / name) if each.name == "EXPOSE")
        assert set(exposed.rest.split()) == ports
    assert pods.CONTAINER == "worker"


def test_the_core_runs_without_an_engine() -> None:
    names = [
        "control_plane.__main__",
        "router.__main__",
        "kv_store.__main__",
        "tandem.kube.kube_cluster",
        "tandem.apps.cli.main",
    ]
    script = _BLOCKER.format(refused=("torch", "vllm", "safetensors", "transformers", "matplotlib"), names=names)
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_workers_run_without_the_cluster_client() -> None:
    names = ["prefill_worker.__main__", "decode_worker.__main__", "tandem.apps.cli.verify.command"]
    script = _BLOCKER.format(refused=("kubernetes", "vllm", "matplotlib"), names=names)
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr[-2000:]
