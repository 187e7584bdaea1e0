"""`tandem up --on ray` and `serve run tandem.ray:app` as people run them: against the cluster of three nodes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tandem.apps.client.http import Target
from tandem.apps.ray.discovery_file import FILE
from tests.ray.asking import answered, eventually, listed
from tests.ray.conftest import HTTP_PORT, RayStage, begin_serve
from tests.worlds.up_stage import Up

AT = Target("127.0.0.1", HTTP_PORT, False, "")
READY_S = 90.0
pytestmark = pytest.mark.timeout(300)


def written(folder: Path, name: str, workers: int = 1) -> Path:
    """The file of a service of unified simulated workers, called as its model."""
    pool = {"name": "all", "role": "unified", "replicas": workers, "drainSeconds": 3}
    service = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "demo", "name": name},
            "engine": {"type": "simulated"},
            "pools": [pool],
            "router": {"port": HTTP_PORT},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(service))
    return path


@asynccontextmanager
async def running(folder: Path, argv: Sequence[str]) -> AsyncIterator[Up]:
    """A command with a folder of its own for its run directory, which does not survive the test."""
    (folder / "own").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "own"), "XDG_RUNTIME_DIR": "", "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment
    )
    try:
        yield Up(process, AT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def up(stage: RayStage, *flags: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tandem.apps.cli", "up", "--on", "ray", "--address", stage.cluster.address, *flags)


def workers() -> set[int]:
    """Worker processes of this network namespace's machine."""
    found = set()
    for each in psutil.process_iter(["cmdline"]):
        command = each.info["cmdline"] or []
        if "tandem.process.lifeline" in command:
            found.add(each.pid)
    return found


def segments() -> list[str]:
    """Memory for KV that a process of this PID namespace still holds: it has no names in a file system."""
    held = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            held.append(os.readlink(descriptor))
    return [each for each in held if each.startswith("/memfd:tandem-kv")]


@pytest.mark.asyncio
async def test_up_serves_follows_edits_scales_and_leaves_nothing(ray_stage: RayStage) -> None:
    """Serve does not run before, so that the command starts it and ends it."""
    from ray import serve

    from tandem.apps.ray.cluster import cluster_nodes

    await asyncio.to_thread(serve.shutdown)
    try:
        await _up_edited_scaled_and_stopped(ray_stage)
        assert not workers()
        assert not segments()
        assert not list((ray_stage.folder / "own").rglob("tandem-*/*"))
        assert not cluster_nodes().ingress_folder.exists()
        await eventually(_hub_gone)
        assert not serve_processes()
    finally:
        await asyncio.to_thread(serve.shutdown)
        begin_serve(ray_stage.folder)


async def _up_edited_scaled_and_stopped(stage: RayStage) -> None:
    file = written(stage.folder, "chat")
    async with running(stage.folder, up(stage, str(file))) as command:
        found = await command.line(r"chat is served at (\S+)/v1", READY_S)
        assert found[1] == f"http://127.0.0.1:{HTTP_PORT}"
        assert (await answered(AT, "chat", "hello", 5))["usage"]["completion_tokens"] == 5
        first = workers()
        assert segments()
        assert len(first) == 1
        file.write_text(file.read_text().replace("type: simulated", "type: simulated\n    blockTokens: 32"))
        await command.line("is to be revision")
        await eventually(lambda: _other_than(first))
        assert (await answered(AT, "chat", "again", 5))["usage"]["completion_tokens"] == 5
        scale = (sys.executable, "-m", "tandem.apps.cli", "scale", "all=2", "--url", f"http://127.0.0.1:{HTTP_PORT}")
        async with running(stage.folder, scale) as scaling:
            assert await scaling.rest(60) == 0, scaling.lines
        await eventually(_two_listed)
        await eventually(lambda: _scraped(stage))
        command.process.send_signal(signal.SIGINT)
        assert await command.rest(90) == 0, command.lines
        assert command.lines[-1] == "stopped", command.lines
        assert not any("not everything has left" in line for line in command.lines), command.lines


async def _hub_gone() -> bool:
    import ray

    from tandem.apps.ray.hub_client import HUB, NAMESPACE

    try:
        ray.get_actor(HUB, namespace=NAMESPACE)
    except ValueError:
        return True
    return False


def serve_processes() -> list[str]:
    """Replicas, proxies and the controller of Serve, and HAProxy."""
    names = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return [
        name for name in names if name.startswith(("ray::ServeReplica", "ray::ServeController")) or "haproxy" in name
    ]


async def _two_listed() -> bool:
    return len(await listed(AT, "/v1/workers")) == 2


async def _scraped(stage: RayStage) -> bool:
    """Whether Prometheus would find two workers and two routers."""
    file = stage.folder / "ray" / "session_latest" / FILE
    groups = json.loads(file.read_text()) if file.exists() else []
    return sorted(each["labels"]["role"] for each in groups) == ["router", "router", "unified", "unified"]


async def _other_than(before: set[int]) -> bool:
    now = workers()
    return len(now) == 1 and not now & before


@pytest.mark.asyncio
async def test_serve_run_declares_services_and_the_hub_ends_with_its_application(ray_stage: RayStage) -> None:
    from ray import serve

    from tandem.apps.ray.hub_client import hub_of_this_cluster

    file = written(ray_stage.folder, "declared")
    run = [str(Path(sys.executable).with_name("serve")), "run", "--non-blocking", "--address"]
    run += [ray_stage.cluster.address, "tandem.ray:app", f"model={file}", "routers=1"]
    async with running(ray_stage.folder, run) as command:
        assert await command.rest(READY_S) == 0, command.lines
    assert (await answered(AT, "declared", "hello", 5))["usage"]["completion_tokens"] == 5
    await hub_of_this_cluster().call("leave", "declared", 10.0, within_s=60)
    await asyncio.to_thread(serve.delete, "default")
    await hub_of_this_cluster().call("end")
    assert not workers()
