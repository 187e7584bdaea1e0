"""The tool that builds and tries images: what it asks the builder for, what it finds fault with, and its probe."""

import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tools import image_check, image_probe
from tools.image_check import ROLES, CommandCheck, Contents, ImageFailed, ServiceCheck

ROOT: Final = Path(__file__).resolve().parents[3]
CORE: Final = ROLES["core"]
GOOD: Final = Contents(
    user=10001,
    group=10001,
    python="3.11.14",
    executable="/opt/tandem/bin/python",
    packages={"tandem-serve": 20_000_000, "numpy": 60_000_000, "six": 40_000},
    programs=(),
    writable=("/tmp", "/dev/shm"),
)


def changed(**fields: object) -> Contents:
    return Contents(**{**vars(GOOD), **fields})


def test_each_dockerfile_is_a_role() -> None:
    files = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
    assert sorted(role.file for role in ROLES.values()) == files


def test_the_tag_is_the_charts() -> None:
    options = image_check.options_of([])
    chart = (ROOT / "deploy" / "helm" / "tandem" / "Chart.yaml").read_text("utf-8")
    assert f'appVersion: "{options.tag}"' in chart or f"appVersion: {options.tag}" in chart
    assert image_check.image_of(CORE, options) == f"tandem-core:{options.tag}"


def test_vllm_is_built_when_its_base_is_given() -> None:
    assert image_check.options_of([]).roles == ["core", "worker"]
    assert image_check.options_of(["--vllm-base", "local/vllm:1"]).roles == ["core", "worker", "worker-vllm"]
    assert image_check.options_of(["worker"]).roles == ["worker"]


def test_an_image_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        image_check.options_of(["worker", "router"])
    assert ended.value.code == 2
    assert "no image 'router'" in capsys.readouterr().err


def test_bases_are_the_dockerfiles_own_unless_others_are_given() -> None:
    own = image_check.options_of([])
    assert image_check.base_of(CORE, own).startswith("python:3.")
    assert image_check.base_of(ROLES["worker-vllm"], own).startswith("vllm/vllm-openai:v")
    given = image_check.options_of(["--base", "local/python:1", "--vllm-base", "local/vllm:1"])
    assert [image_check.base_of(role, given) for role in ROLES.values()] == ["local/python:1"] * 2 + ["local/vllm:1"]


def test_builds_name_file_tag_and_base() -> None:
    arguments = [
        "--builder",
        "podman",
        "--base",
        "local/python:1",
        "--prefix",
        "registry.example/team/",
        "--tag",
        "2",
    ]
    options = image_check.options_of([*arguments, "--build-argument=--secret=id=pip,src=pip.conf"])
    command = image_check.build_command(CORE, options)
    assert command[:2] == ["podman", "build"]
    asked = dict(zip(command[2:-2:2], command[3:-2:2], strict=True))
    assert asked == {
        "--file": str(ROOT / "deploy" / "docker" / "core.Dockerfile"),
        "--tag": "registry.example/team/tandem-core:2",
        "--build-arg": "PYTHON_IMAGE=local/python:1",
    }
    assert command[-2:] == ["--secret=id=pip,src=pip.conf", str(ROOT)]


@pytest.mark.parametrize(("builder", "podman"), [("docker", False), ("/usr/bin/podman", True)])
def test_containers_have_what_pods_have(builder: str, podman: bool) -> None:
    options = image_check.options_of(["--builder", builder, "--run-argument=--runtime=runc"])
    command = image_check.run_command("image:1", ("tandem", "--version"), options)
    assert command[-3:] == ["image:1", "tandem", "--version"]
    assert command[-4] == "--runtime=runc"
    line = " ".join(command)
    for asked in (
        "--read-only ",
        "--tmpfs /tmp",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--network none",
    ):
        assert asked in line
    assert ("--read-only-tmpfs=false" in command) is podman
    assert "--user" not in line, "the image says who it runs as"


@pytest.mark.parametrize(
    ("found", "own", "said"),
    [
        (GOOD, (), []),
        (changed(user=0), (), ["runs as 0:10001 instead of 10001:10001"]),
        (changed(packages={**GOOD.packages, "Torch": 1}), (), ["has torch"]),
        (GOOD, ("gcc", "pip"), ["gcc was left over", "pip was left over"]),
        (changed(writable=("/tmp", "/dev/shm", "/opt/tandem")), (), ["/opt/tandem can be written"]),
        (changed(writable=("/dev/shm",)), (), ["/tmp cannot be written"]),
        (changed(packages={"numpy": 1}), (), ["has no tandem-serve"]),
    ],
)
def test_faults_are_named(found: Contents, own: tuple[str, ...], said: list[str]) -> None:
    assert image_check.complaints(CORE, found, own) == said


def test_the_largest_packages_come_first() -> None:
    line = image_check.described(300_000_000, GOOD)
    assert line == "300 MB, of which 80 in 3 packages for Python 3.11.14: numpy 60, tandem-serve 20, six 0"


def test_a_service_has_to_answer_and_to_end_well() -> None:
    tried = ServiceCheck(("python", "-m", "router"), "http://127.0.0.1:8000/health")
    assert image_check.start_problem(tried, {"ready_s": 0.4, "status": 0, "said": ""}) == ""
    assert "never answered (status 1): no port" in image_check.start_problem(
        tried, {"ready_s": None, "status": 1, "said": "no port\n"}
    )
    assert "status -9" in image_check.start_problem(tried, {"ready_s": 0.4, "status": -9, "said": ""})


def test_what_the_builder_says_is_passed_on(tmp_path: Path) -> None:
    builder = tmp_path / "podman"
    builder.write_text('#!/bin/sh\necho "no such runtime" >&2; exit 126\n')
    builder.chmod(0o755)
    options = image_check.options_of(["--builder", str(builder)])
    tried = image_check.attempt(CommandCheck(("tandem", "--version"), "tandem "), "image:1", options)
    assert "ended with status 126: no such runtime" in tried.problem
    builder.write_text("#!/bin/sh\necho something else\n")
    assert "did not say 'tandem '" in image_check.attempt(CORE.tries[0], "image:1", options).problem


def test_a_builder_that_is_not_there_is_named() -> None:
    with pytest.raises(ImageFailed, match="there is no no-such-builder"):
        image_check.call(("no-such-builder", "build"), 5.0)


def test_reports_of_several_images_go_into_one_file(tmp_path: Path) -> None:
    for role in ("core", "worker"):
        image_check.write_report(tmp_path / "images.json", role, {"bytes": 1})
    assert json.loads((tmp_path / "images.json").read_text()) == {"core": {"bytes": 1}, "worker": {"bytes": 1}}


def test_the_probe_says_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(image_probe, "PLACES", (str(tmp_path), "/proc"))
    found = Contents(**image_probe.contents())
    assert (found.user, found.group) == (os.getuid(), os.getgid())
    assert found.programs == ["gcc"]
    assert found.writable == [str(tmp_path)]
    assert found.packages["msgspec"] > 100_000


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that answers /ready alone."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ready" else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_the_probe_ends_what_it_has_started(port: int) -> None:
    waits = (sys.executable, "-c", "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); signal.pause()")
    found = image_probe.start(
        f"http://127.0.0.1:{port}/ready", 20.0, ("sh", "-c", 'sleep 0.2; exec "$@"', "sh", *waits)
    )
    assert found["ready_s"] is not None
    assert found["status"] in (3, -15), "ended by itself, or before it could say how"
    late = image_probe.start(f"http://127.0.0.1:{port}/other", 0.3, ("sleep", "60"))
    assert (late["ready_s"], late["status"]) == (None, -15)


def test_the_probe_says_what_a_process_said_that_ended(port: int) -> None:
    found = image_probe.start(f"http://127.0.0.1:{port}/other", 20.0, ("sh", "-c", "echo no such model; exit 2"))
    assert (found["ready_s"], found["status"], found["said"]) == (None, 2, "no such model\n")
