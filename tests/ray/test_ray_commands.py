"""`tandem up --on ray` and `serve run tandem.ray:app` as people run them: against the cluster of three nodes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest
import yaml

from tandem.apps.cli.main import USAGE_ERROR
from tandem.apps.client.http import Target, parse_target
from tandem.apps.ray.discovery_file import FILE
from tandem.apps.ray.up_options import KEY_VARIABLE
from tests.ray.asking import answered, chat, eventually, listed
from tests.ray.conftest import CLIENT_PORT, HTTP_PORT, RayStage, begin_serve
from tests.worlds.up_stage import Up

AT = Target("127.0.0.1", HTTP_PORT, False, "")
PREFIXED = Target("127.0.0.1", HTTP_PORT, False, "/llm")
OWN_PORT = HTTP_PORT + 10
"""Of routers that are not behind Serve's ingress."""
READY_S = 90.0
pytestmark = pytest.mark.timeout(300)


def written(folder: Path, name: str, port: int = HTTP_PORT) -> Path:
    """The file of a service of unified simulated workers, called as its model."""
    pool = {"name": "all", "role": "unified", "replicas": 1, "drainSeconds": 3}
    service = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "demo", "name": name},
            "engine": {"type": "simulated"},
            "pools": [pool],
            "router": {"port": port},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(service))
    return path


@asynccontextmanager
async def running(
    folder: Path, argv: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Up]:
    """A command with a folder of its own for its run directory, which does not survive the test. `more` are
    environment variables."""
    (folder / "own").mkdir(exist_ok=True)
    own = {"TMPDIR": str(folder / "own"), "XDG_RUNTIME_DIR": "", "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, **own, **more}
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
        await eventually(_serve_gone)
    finally:
        await asyncio.to_thread(serve.shutdown)
        begin_serve(ray_stage.folder)


async def _up_edited_scaled_and_stopped(stage: RayStage) -> None:
    file = written(stage.folder, "chat")
    async with running(stage.folder, up(stage, "--route-prefix", "/llm", str(file))) as command:
        found = await command.line(r"chat is served at (\S+)/v1", READY_S)
        assert found[1] == f"http://127.0.0.1:{HTTP_PORT}/llm"
        assert (await answered(PREFIXED, "chat", "hello", 5))["usage"]["completion_tokens"] == 5
        first = workers()
        assert segments()
        assert len(first) == 1
        file.write_text(file.read_text().replace("type: simulated", "type: simulated\n    blockTokens: 32"))
        await command.line("is to be revision")
        await eventually(lambda: _other_than(first))
        assert (await answered(PREFIXED, "chat", "again", 5))["usage"]["completion_tokens"] == 5
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


async def _serve_gone() -> bool:
    return not serve_processes()


def serve_processes() -> list[str]:
    """Replicas, proxies and the controller of Serve, and HAProxy."""
    names = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return [
        name for name in names if name.startswith(("ray::ServeReplica", "ray::ServeController")) or "haproxy" in name
    ]


async def _two_listed() -> bool:
    return len(await listed(PREFIXED, "/v1/workers")) == 2


async def _scraped(stage: RayStage) -> bool:
    """Whether Prometheus would find two workers and two routers."""
    file = stage.folder / "ray" / "session_latest" / FILE
    groups = json.loads(file.read_text()) if file.exists() else []
    return sorted(each["labels"]["role"] for each in groups) == ["router", "router", "unified", "unified"]


async def _other_than(before: set[int]) -> bool:
    now = workers()
    return len(now) == 1 and not now & before


@pytest.mark.asyncio
async def test_what_was_kept_is_taken_over_as_it_runs_and_ends_in_a_hurry(ray_stage: RayStage) -> None:
    """Routers on ports of their own, beside a Serve with HAProxy."""
    file = str(written(ray_stage.folder, "kept", OWN_PORT))
    async with running(ray_stage.folder, up(ray_stage, "--ingress", "direct", "--keep", file)) as first:
        at = await first.line(rf"kept is served at (http://127.0.0.\d:{OWN_PORT})/v1", READY_S)
        first.process.send_signal(signal.SIGINT)
        assert await first.rest(60) == 0, first.lines
    assert (await answered(parse_target(at[1]), "kept", "hello", 5))["usage"]["completion_tokens"] == 5
    async with running(ray_stage.folder, up(ray_stage, "--routers", "1", file)) as other:
        assert await other.rest(60) == USAGE_ERROR, other.lines
        assert "--routers is 1, but the routers that run (application tandem) are 2" in other.lines[-1]
    async with running(ray_stage.folder, up(ray_stage, file)) as second:
        await second.line(rf"kept is served at http://127.0.0.\d:{OWN_PORT}/v1", READY_S)
        second.process.send_signal(signal.SIGINT)
        await second.line("stopping; workers drain first")
        second.process.send_signal(signal.SIGINT)
        assert await second.rest(60) == 0, second.lines
        assert "stopping now; what still drains on the cluster ends by itself" in second.lines
        assert second.lines[-1] == "stopped", second.lines
    await eventually(_hub_gone)
    await eventually(_no_workers)


async def _no_workers() -> bool:
    return not workers()


@pytest.mark.asyncio
async def test_a_service_with_api_keys_is_started_and_taken_away_through_the_client_of_ray(
    ray_stage: RayStage,
) -> None:
    keys = ray_stage.folder / "keys.json"
    callers = {"ours": {"tenant": "us", "operator": True}, "theirs": "them"}
    keys.write_text(json.dumps({"salt_key": "s" * 32, "keys": callers}))
    through = ("--address", f"ray://127.0.0.1:{CLIENT_PORT}")
    flags = (*through, "--routers", "1", "--api-keys", str(keys), str(written(ray_stage.folder, "afar")))
    async with running(ray_stage.folder, up(ray_stage, *flags), {KEY_VARIABLE: "ours"}) as command:
        await command.line("afar is served at", READY_S)
        assert (await chat(AT, "afar", "hello", 5))[0] == 401
        assert (await chat(replace(AT, key="another"), "afar", "hello", 5))[0] == 401
        answer = await answered(replace(AT, key="theirs"), "afar", "hello", 5)
        assert answer["usage"]["completion_tokens"] == 5
        command.process.send_signal(signal.SIGINT)
        assert await command.rest(90) == 0, command.lines
        assert command.lines[-1] == "stopped", command.lines
        assert not any("not everything has left" in line for line in command.lines), command.lines
    await eventually(_hub_gone)
    assert not workers()
    assert not await _routers()


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
    await eventually(_hub_gone)
    assert not workers()


@pytest.mark.asyncio
async def test_routers_whose_options_a_configuration_has_replaced_are_known_as_routers(ray_stage: RayStage) -> None:
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.ray_serving import RayServing

    router = {"name": "router", "ray_actor_options": {"num_cpus": 0}, "user_config": {"services": []}}
    application = {"name": "ours", "route_prefix": "/", "import_path": "tandem.ray:app", "deployments": [router]}
    config = ray_stage.folder / "serve.yaml"
    config.write_text(yaml.safe_dump({"applications": [application]}))
    run = [str(Path(sys.executable).with_name("serve")), "run", "--non-blocking", "--address"]
    async with running(ray_stage.folder, [*run, ray_stage.cluster.address, str(config)]) as command:
        assert await command.rest(READY_S) == 0, command.lines
    (found,) = await eventually(RayServing().router_apps)
    assert (found.name, found.route_prefix, found.replicas, found.port) == ("ours", "/", 1, 0)
    assert await RayServing().others() == ()
    # Deleted by name it would come back with the next controller, which makes anew what was declared last.
    await asyncio.to_thread(_get_global_client().deploy_apps, ServeDeploySchema(applications=[]))
    await eventually(_no_routers)
    await hub_of_this_cluster().call("end")
    await eventually(_hub_gone)


async def _no_routers() -> bool:
    return not await _routers()


async def _routers() -> tuple[str, ...]:
    from tandem.apps.ray.ray_serving import RayServing

    return await RayServing().routers()
