"""A small platform where there is no IPv4: processes with the flags that charts and operator give to pods, each with
an IPv6 address of its own, in a network namespace that has nothing else.

Run as `python -m tests.worlds.ipv6_platform DIRECTORY` in a network namespace of its own, as root; prints what was
found as JSON.
"""

import asyncio
import errno
import json
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx

from control_plane.objects.installation import Installation
from control_plane.objects.pods import CONTAINER, pod_template
from control_plane.objects.worker_flags import settings_map
from control_plane.operator.probes import Page, ProbeServer
from control_plane.operator.settings import OperatorSettings
from control_plane.reports.http_get import Endpoint, get
from control_plane.scaler import MetricCache, ScalerServer, ScalerSettings
from tandem.apps.cli.router_client import metrics_page
from tandem.kube.kinds import Json
from tandem.process.system import SystemClock
from tandem.process.tls_settings import TlsSettings
from tandem.spec.reading import service_of
from tests.cluster.lab.network import ip
from tests.worlds.processes import Running

ROUTER, PREFILL, DECODE, STORE = (f"fd00::{at}" for at in range(1, 5))
"""As pods have them."""
SERVICE = service_of(
    {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat", "namespace": "models"},
        "spec": {
            "model": {"source": "tiny"},
            "engine": {"type": "simulated", "device": "cpu"},
            "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
        },
    }
)


def worker_of(index: int, address: str, key: Path) -> tuple[str, list[str], dict[str, str]]:
    """Module, flags and environment of a pool's worker, as its pod has them."""
    pool, installation = SERVICE.spec.pools[index], Installation()
    template: Json = pod_template(SERVICE, pool, "abc", installation)
    (container,) = (each for each in template["spec"]["containers"] if each["name"] == CONTAINER)
    flags = [each.replace("$(POD_IP)", address) for each in container["args"]]
    data = settings_map(SERVICE, pool, "abc", installation)["data"]
    environment = {**data, "TANDEM_WORKER_ID": pool.name, "POD_IP": address}
    return container["command"][-1], [*flags, "--ticket_key_file", str(key)], environment


def router_flags(key: Path, fleet: Path) -> list[str]:
    """The chart's, but for where it finds workers, and what lies in files of pods."""
    return [
        *("--host=::", "--port=8000", "--grpc_port=9000", "--metrics_bind=[::]:8001"),
        *("--workers_file", str(fleet), "--ticket_key_file", str(key), "--model_name", SERVICE.model_name),
        *("--core.placement.prefer", "disaggregated"),
    ]


def store_flags(key: Path, fleet: Path) -> list[str]:
    """The chart's, with ports that no worker of this machine has."""
    return [
        *("--worker_id=store", "--link.bind=[::]:7500", f"--link.advertise={STORE}", "--kv.transports=tcp"),
        *("--kv.host=::", "--kv.port=7501", f"--kv.advertise={STORE}", "--metrics_bind=[::]:7580"),
        *("--ticket_key_file", str(key), "--workers_file", str(fleet)),
    ]


async def platform(directory: Path) -> dict[str, Any]:
    """Starts everything, asks one question, and looks at it from all sides."""
    key, fleet, found = directory / "ticket", directory / "workers", dict[str, Any]()
    key.write_text("6b" * 32 + "\n")
    async with AsyncExitStack() as ending:

        async def start(module: str, flags: list[str], environment: dict[str, str] | None = None) -> Running:
            running = await Running.start(module, *flags, environment=environment)
            ending.push_async_callback(running.end)
            return running

        workers = [await start(*worker_of(index, address, key)) for index, address in enumerate((PREFILL, DECODE))]
        for worker in workers:
            await worker.until("ready")
        members = [{"address": worker.told["listening.address"]} for worker in workers]
        fleet.write_text(json.dumps({"workers": members}))
        store = await start("kv_store", store_flags(key, fleet))
        await store.until("ready")
        members.append({"address": store.told["listening.address"]})
        fleet.write_text(json.dumps({"workers": members}))
        router = await start("router", router_flags(key, fleet))
        await router.until("ready")
        found["addresses"] = [member["address"] for member in members]
        found["router"] = router.told["listening.address"]
        await _ask(found)
        found |= await _operators_parts()
    return found


async def _ask(found: dict[str, Any]) -> None:
    async with httpx.AsyncClient(timeout=60.0) as client:
        asked = {"model": SERVICE.model_name, "prompt": "word " * 400, "max_tokens": 8, "temperature": 0}
        answer = await client.post(f"http://[{ROUTER}]:8000/v1/completions", json=asked)
        found["status"], found["answer"] = answer.status_code, answer.json()
        for name, url in (("ready", f"http://[{ROUTER}]:8001/ready"), ("alive", f"http://[{STORE}]:7580/alive")):
            found[name] = (await client.get(url)).status_code
    listed = json.loads(await get(Endpoint(ROUTER, 8000), "/v1/workers", 10.0))["data"]
    found["workers"] = {each["id"]: each["kv_path"] for each in listed}
    page = await metrics_page(f"{DECODE}:7480", 10.0) or ""
    carried = (line for line in page.splitlines() if line.startswith('tandem_kv_transfer_bytes_total{path="tcp"}'))
    found["kv_bytes"] = sum(float(line.rpartition(" ")[2]) for line in carried)
    async with grpc.aio.insecure_channel(f"[{ROUTER}]:9000") as channel:
        await asyncio.wait_for(channel.channel_ready(), 30.0)
        found["grpc"] = True


async def _operators_parts() -> dict[str, Any]:
    """Where an operator answers probes and KEDA, as its settings say."""
    settings, found = OperatorSettings(), dict[str, Any]()
    probes = ProbeServer(settings.bind, {"/ready": lambda: Page(200, b"ready\n")})
    await probes.start()
    scaler = ScalerServer(MetricCache(SystemClock()), SystemClock(), ScalerSettings(settings.scaler_bind))
    await scaler.start(TlsSettings())
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            found["operator"] = (await client.get(f"http://[{ROUTER}]:8080/ready")).status_code
        async with grpc.aio.insecure_channel(f"[{ROUTER}]:9090") as channel:
            await asyncio.wait_for(channel.channel_ready(), 30.0)
            found["scaler"] = True
    finally:
        await scaler.close()
        await probes.stop()
    return found


def without_ipv4() -> None:
    """Loopback with IPv6 alone."""
    ip("link", "set", "lo", "up")
    ip("-4", "addr", "flush", "dev", "lo")
    for address in (ROUTER, PREFILL, DECODE, STORE):
        ip("-6", "addr", "add", f"{address}/128", "dev", "lo", "nodad")
    with socket.socket(socket.AF_INET) as probe:
        assert probe.connect_ex(("127.0.0.1", 1)) == errno.ENETUNREACH, "there is IPv4"


if __name__ == "__main__":
    without_ipv4()
    print(json.dumps(asyncio.run(platform(Path(sys.argv[1])))))  # noqa: T201
