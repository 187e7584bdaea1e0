"""What the chart asks of images is what their Dockerfiles make: names, user, programs, ports, and room to write."""

import importlib.util
import shlex
import tomllib
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from tests.helm.charts import Json, containers, rendered, workloads
from tests.unit.deploy.test_dockerfiles import FOLDER, ROOT, USER, Instruction, stages

CORE: Final = FOLDER / "core.Dockerfile"
CHART: Final = ROOT / "deploy" / "helm" / "tandem"
_WRITTEN: Final = ("--cache=", "--tiers.nvme_dir=")
every = pytest.mark.parametrize("objects", rendered().values(), ids=rendered().keys())


def last(path: Path, name: str) -> list[Instruction]:
    """Those of the last stage with this name."""
    return [each for each in stages(path)[-1] if each.name == name]


def environment(path: Path) -> dict[str, str]:
    """What the image sets for its processes."""
    return dict(word.split("=", 1) for each in last(path, "ENV") for word in shlex.split(each.rest))


def ours(objects: list[Json]) -> list[Json]:
    """Pods with an image of this repository."""
    return [one for one in workloads(objects) if one["metadata"]["name"] != "tandem-redis"]


def room(workload: Json) -> list[PurePosixPath]:
    """Where its container can write."""
    (container,) = containers(workload)
    return [PurePosixPath(each["mountPath"]) for each in container["volumeMounts"] if not each.get("readOnly")]


def test_chart_and_images_have_the_projects_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    images = {containers(one)[0]["image"] for one in ours(rendered()["defaults"])}
    assert images == {f"tandem-core:{project['version']}"}


@every
def test_pods_run_as_the_user_of_the_image(objects: list[Json]) -> None:
    (user,) = last(CORE, "USER")
    assert user.rest == f"{USER}:{USER}"
    for workload in ours(objects):
        security = workload["spec"]["template"]["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        if objects is rendered()["users that the platform assigns"]:
            assert not security.keys() & {"runAsUser", "runAsGroup", "fsGroup"}
            continue
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (USER, USER, USER)


@every
def test_commands_are_programs_of_the_image(objects: list[Json]) -> None:
    assert environment(CORE)["PATH"].startswith("/opt/tandem/bin:"), "where `python` is the one with Tandem"
    assert not last(CORE, "ENTRYPOINT")
    for workload in ours(objects):
        (container,) = containers(workload)
        python, flag, module = container["command"]
        assert (python, flag) == ("python", "-m")
        assert importlib.util.find_spec(f"{module}.__main__") is not None


@every
def test_ports_of_pods_are_those_of_the_image(objects: list[Json]) -> None:
    (exposed,) = last(CORE, "EXPOSE")
    for workload in ours(objects):
        used = {str(port["containerPort"]) for port in containers(workload)[0]["ports"]}
        assert used <= set(exposed.rest.split())


@every
def test_what_processes_write_lies_on_volumes(objects: list[Json]) -> None:
    """The image is read-only: home and working directory of its processes, caches and blocks have to be elsewhere."""
    (directory,) = last(CORE, "WORKDIR")
    for workload in ours(objects):
        (container,) = containers(workload)
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        paths = [directory.rest, environment(CORE)["HOME"], *(given[name] for name in ("HF_HOME",) if name in given)]
        flags = (each for each in container["args"] if each.startswith(_WRITTEN))
        paths += [each.partition("=")[2] for each in flags]
        for path in map(PurePosixPath, paths):
            assert any(path.is_relative_to(place) for place in room(workload)), path
