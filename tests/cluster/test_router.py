"""A router process and a real API server: it finds its workers there, and goes on without it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.cluster.lab.admin import Admin, path_of
from tests.cluster.lab.lab import Lab
from tests.worlds.processes import Running

pytestmark = pytest.mark.timeout(300)
CHARTS = Path("deploy/helm/tandem-crds/templates")
OLD, NEW = "0000000001", "0000000002"


class Site:
    """Workers as processes beside pods that are only objects."""

    def __init__(self, admin: Admin, namespace: str, root: Path) -> None:
        self._admin = admin
        self._namespace = namespace
        self._root = root
        self.running: list[Running] = []
        (root / "ticket").write_text("6b" * 32 + "\n")

    async def worker(self, name: str, revision: str) -> None:
        running = await Running.start(
            "decode_worker",
            *("--worker_id", name, "--role", "unified", "--revision", revision, "--model_name", "chat"),
            *("--ticket_key_file", str(self._root / "ticket"), "--socket_directory", str(self._root)),
        )
        self.running.append(running)
        await running.until("ready")
        port = running.told["listening.address"].rpartition(":")[2]
        labels = {
            "app.kubernetes.io/managed-by": "tandem",
            "tandem.dev/service": "chat",
            "tandem.dev/pool": "u",
            "tandem.dev/role": "unified",
            "tandem.dev/revision": revision,
        }
        metadata = {"name": name, "labels": labels, "annotations": {"tandem.dev/link-port": port}}
        containers = [{"name": "worker", "image": "tandem-worker"}]
        # Of a scheduler that is not there: nobody tries to place it.
        spec = {"containers": containers, "schedulerName": "none", "automountServiceAccountToken": False}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        # A controller makes its namespace's service account first.
        self._admin.until(lambda: self._admin.applied(pod, self._namespace), f"pod {name} is not taken", 30.0)
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [ready]}
        self._admin.patch(f"{path_of(pod, self._namespace)}/status", {"status": status})

    def service(self, **weights: int) -> None:
        spec = {"engine": {"type": "simulated"}, "pools": [{"name": "u", "role": "unified"}]}
        named = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": {"name": "chat"}}
        self._admin.applied({**named, "spec": spec}, self._namespace)
        revisions = [{"name": {"old": OLD, "new": NEW}[name], "weight": each} for name, each in weights.items()]
        path = f"{path_of(named, self._namespace)}/status"
        self._admin.patch(path, {"status": {"revisions": revisions}})

    @asynccontextmanager
    async def router(self, kubeconfig: Path) -> AsyncIterator[httpx.AsyncClient]:
        """A router that listens, ready or not."""
        router = await Running.start(
            "router",
            *("--port", "0", "--kubernetes", "--kubeconfig", str(kubeconfig), "--namespace", self._namespace),
            *("--namespace", "default", "--ticket_key_file", str(self._root / "ticket")),
        )
        self.running.append(router)
        await router.until("listening")
        url = f"http://{router.told['listening.address']}"
        async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
            yield client


@pytest.fixture
def crds(admin: Admin) -> None:
    admin.establish(yaml.safe_load(path.read_text()) for path in sorted(CHARTS.glob("*.yaml")))


@pytest.fixture
async def site(admin: Admin, namespace: str, crds: None, tmp_path: Path) -> AsyncIterator[Site]:
    place = Site(admin, namespace, tmp_path)
    try:
        yield place
    finally:
        for running in place.running:
            await running.end()


async def until(holds: Callable[[], Awaitable[object]], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110  (another process's state)
            await asyncio.sleep(0.1)


async def ask(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": "chat", "prompt": "a lantern", "max_tokens": 5})
    assert answer.status_code == 200, answer.text


async def revisions(client: httpx.AsyncClient) -> dict[str, int]:
    found = (await client.get("/v1/revisions")).json()["data"]
    return {each["revision"]: each["requests"] for each in found if each["requests"]}


async def test_a_router_follows_pods_and_weights_and_outlives_its_api_server(
    site: Site, lab: Lab, tmp_path: Path
) -> None:
    site.service(old=100)
    await site.worker("w-old", OLD)
    async with site.router(lab.kubeconfig()) as client:

        async def status(path: str) -> int:
            return (await client.get(path)).status_code

        async def workers() -> set[str]:
            return {each["id"] for each in (await client.get("/v1/workers")).json()["data"]}

        async def ready() -> bool:
            return await status("/ready") == 200

        await until(ready)
        await ask(client)
        assert await revisions(client) == {OLD: 1}
        lab.api.stop(signal.SIGKILL)
        try:

            async def lost() -> bool:
                return "tandem_discovery_lost 1.0" in (await client.get("/metrics")).text

            await until(lost)
            await ask(client)
            assert await ready()
            assert await workers() == {"w-old"}
        finally:
            lab.start_api()
        await site.worker("w-new", NEW)

        async def both() -> bool:
            return await workers() == {"w-old", "w-new"}

        await until(both)
        await ask(client)
        assert await revisions(client) == {OLD: 3}
        site.service(old=0, new=100)

        async def moved() -> bool:
            await ask(client)
            return NEW in await revisions(client)

        await until(moved)


async def test_a_router_that_starts_before_its_api_server_waits_for_it(site: Site, lab: Lab) -> None:
    site.service(old=100)
    await site.worker("w-old", OLD)
    lab.api.stop(signal.SIGKILL)
    try:
        async with site.router(lab.kubeconfig()) as client:
            await asyncio.sleep(3.0)
            answer = await client.get("/ready")
            assert (answer.status_code, answer.json()["reason"]) == (
                503,
                "nobody has told yet which services and workers there are",
            )
            assert (await client.get("/health")).status_code == 200
            lab.start_api()

            async def ready() -> bool:
                return (await client.get("/ready")).status_code == 200

            await until(ready, 90.0)
            await ask(client)
    finally:
        if not lab.api.running:
            lab.start_api()
