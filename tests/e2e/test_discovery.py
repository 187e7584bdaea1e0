"""A router that finds its workers at an API server: real processes and links, the server in memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from kv_transfer.key_file import read_keyring
from router.api.auth import Keys
from router.api.chat_templates.supervisor import HelperTemplates
from router.process_settings import ProcessSettings
from router.service import RouterService
from router.wiring import Wiring
from tandem.kube.cluster import Cluster
from tandem.kube.kinds import MODEL_SERVICE, POD, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.logs import EventLines
from tandem.process.system import SystemClock
from tandem.process.telemetry import open_telemetry
from tests.worlds.processes import Running

OLD, NEW = "0000000001", "0000000002"
WAIT_S = 60.0
"""For what happens soon, however busy the machine is."""


class Town:
    """Workers as processes, each with its pod at the API server, and one router."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._running: dict[str, Running] = {}
        self.cluster = MemoryCluster(SystemClock())
        (root / "ticket").write_text("6b" * 32 + "\n")

    async def worker(self, name: str, role: str, revision: str, *, service: str = "chat", ready: bool = True) -> None:
        """A worker that is ready, and its pod."""
        module = "prefill_worker" if role == "prefill" else "decode_worker"
        model = f"{service}-model"
        running = self._running[name] = await Running.start(
            module,
            *("--worker_id", name, "--role", role, "--revision", revision, "--model_name", model),
            *("--ticket_key_file", str(self._root / "ticket"), "--socket_directory", str(self._root)),
            *("--simulated.blocks", "512", "--simulated.base_s", "0.005", "--deadlines.drain_s", "20"),
        )
        await running.until("ready" if ready else "listening")
        await self.cluster.apply(_pod(name, role, revision, service, self._port(name)), "test")
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.cluster.apply_status({**_named("v1", "Pod", name), "status": status}, "test")

    async def service(self, name: str, *revisions: tuple[str, int], queue_s: int = 60) -> None:
        """A service whose pools may sleep, and the weights of its revisions."""
        pools = [
            {"name": role, "role": role, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
            for role in ("prefill", "decode")
        ]
        spec = {
            "model": {"name": f"{name}-model"},
            "engine": {"type": "simulated"},
            "pools": pools,
            "routing": {"maxQueueSeconds": queue_s},
        }
        known = _named("tandem.dev/v1alpha1", "ModelService", name)
        await self.cluster.apply({**known, "spec": spec}, "test")
        status = {"revisions": [{"name": revision, "weight": weight} for revision, weight in revisions]}
        await self.cluster.apply_status({**known, "status": status}, "test")

    async def leave(self, name: str) -> None:
        """Delete the pod as a cluster does: its process is told to end, and the object goes after it."""
        pod = Ref(POD, "default", name)
        await self.cluster.delete(pod)
        running = self._running[name]
        running.process.terminate()
        async with asyncio.timeout(100.0):
            await running.process.wait()
        gone = await self.cluster.get(pod)
        gone["metadata"].pop("finalizers")
        await self.cluster.update(gone)

    async def close(self) -> None:
        for running in self._running.values():
            await running.end()

    def _port(self, name: str) -> str:
        return str(self._running[name].told["listening.address"].rpartition(":")[2])

    @asynccontextmanager
    async def router(self) -> AsyncIterator[httpx.AsyncClient]:
        """A router that is ready; the client is the way to it."""
        key_file = self._root / "ticket"
        settings = ProcessSettings(port=0, kubernetes=True, ticket_key_file=key_file)

        async def connect() -> Cluster:
            return self.cluster

        templates, keyring = HelperTemplates(SystemClock()), read_keyring(key_file)
        wiring = Wiring(settings, {}, templates, Keys(), keyring, connect)
        service = wiring.build(open_telemetry("router", "", "r1"), EventLines(None))
        await service.start()
        roots = [asyncio.create_task(_named_root(service, name)) for name in service.roots()]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=60.0) as client:
            try:
                async with asyncio.timeout(100.0):
                    await service.serve()
                yield client
            finally:
                await service.drain(1.0)
                for root in roots:
                    root.cancel()
                await asyncio.gather(*roots, return_exceptions=True)
                await service.stop()


async def _named_root(service: RouterService, name: str) -> None:
    await service.roots()[name]()


def _named(api_version: str, kind: str, name: str) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "default"}}


def _pod(name: str, role: str, revision: str, service: str, port: str) -> Json:
    labels = {
        "app.kubernetes.io/managed-by": "tandem",
        "tandem.dev/service": service,
        "tandem.dev/pool": role,
        "tandem.dev/role": role,
        "tandem.dev/revision": revision,
    }
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": labels,
        "annotations": {"tandem.dev/link-port": port},
        "finalizers": ["test/process"],
        "deletionGracePeriodSeconds": 50,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


@asynccontextmanager
async def town(root: Path) -> AsyncIterator[Town]:
    place = Town(root)
    try:
        yield place
    finally:
        await place.close()


async def ask(client: httpx.AsyncClient, number: int, model: str = "chat-model", tokens: int = 40) -> str:
    """A completion's text."""
    body = {"model": model, "prompt": f"story number {number} " * 20, "seed": number, "max_tokens": tokens}
    answer = await asked(client, body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def revisions(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/v1/revisions")).json()
    return found


async def many_on(client: httpx.AsyncClient, revision: str) -> dict[str, Any]:
    """Wait until a revision has answered more than ten requests; all revisions then."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = {each["revision"]: each for each in (await revisions(client))["data"]}
            if revision in found and found[revision]["requests"] > 10:
                return found
            await asyncio.sleep(0.05)


async def listed(client: httpx.AsyncClient, *names: str) -> list[dict[str, Any]]:
    """Wait until the router lists these workers and no others."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found: list[dict[str, Any]] = (await client.get("/v1/workers")).json()["data"]
            if {each["id"] for each in found} == set(names):
                return found
            await asyncio.sleep(0.05)


async def asked(client: httpx.AsyncClient, body: Json) -> httpx.Response:
    """The answer, once the router has loaded the model."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await client.post("/v1/completions", json=body)
            if "cannot be asked for yet" not in answer.text:
                return answer
            await asyncio.sleep(0.05)


async def models(client: httpx.AsyncClient) -> list[str]:
    return sorted(model["id"] for model in (await client.get("/v1/models")).json()["data"])


async def test_a_rollout_under_load_fails_nothing_and_follows_the_weights(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        await place.service("chat", (OLD, 100))
        for name, role in (("p-old", "prefill"), ("d-old", "decode")):
            await place.worker(name, role, OLD)
        async with place.router() as client:
            texts: Counter[tuple[int, str]] = Counter()
            stop = asyncio.Event()

            async def keep_asking(lane: int) -> None:
                turn = 0
                while not stop.is_set():
                    number = lane * 3 + turn % 3
                    texts[number, await ask(client, number)] += 1
                    turn += 1

            lanes = [asyncio.create_task(keep_asking(lane)) for lane in range(4)]
            for name, role in (("p-new", "prefill"), ("d-new", "decode")):
                await place.worker(name, role, NEW)
            await asyncio.sleep(0.5)
            before = await many_on(client, OLD)
            assert set(before) == {OLD}, "a revision without weight has nothing"
            await place.service("chat", (OLD, 50), (NEW, 50))
            await many_on(client, NEW)
            await place.service("chat", (OLD, 0), (NEW, 100))
            await asyncio.sleep(0.5)
            for name in ("d-old", "p-old"):
                await place.leave(name)
            await listed(client, "p-new", "d-new")
            stop.set()
            await asyncio.gather(*lanes)
            after = await revisions(client)
            counted = {each["revision"]: each for each in after["data"]}
            assert counted[OLD]["errors"] == counted[NEW]["errors"] == 0
            assert counted[OLD]["requests"] > before[OLD]["requests"]
            assert counted[OLD]["requests"] + counted[NEW]["requests"] == sum(texts.values())
            assert len({number for number, _ in texts}) == len(texts), "a request's text is always the same"
            (service,) = after["services"]
            assert (service["service"], service["queued_requests"]) == ("default/chat", 0)
            assert service["output_tokens"] == 40 * sum(texts.values())
            workers = await listed(client, "p-new", "d-new")
            assert {(each["id"], each["service"], each["pool"], each["revision"]) for each in workers} == {
                ("p-new", "default/chat", "prefill", NEW),
                ("d-new", "default/chat", "decode", NEW),
            }
            assert all(each["load"]["kv_used"] >= 0 and each["ready_for_s"] > 0 for each in workers)


async def test_a_revision_without_weight_answers_under_its_own_name(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        await place.service("chat", (OLD, 100), (NEW, 0))
        await place.worker("d-old", "unified", OLD)
        await place.worker("d-new", "unified", NEW)
        async with place.router() as client:
            await listed(client, "d-old", "d-new")
            usual = await ask(client, 1)
            assert await ask(client, 1, f"chat-model@{NEW}") == usual
            counted = {each["revision"]: each["requests"] for each in (await revisions(client))["data"]}
            assert counted == {OLD: 1, NEW: 1}
            assert await models(client) == ["chat-model"]
            unknown = await client.post("/v1/completions", json={"model": "chat-model@zzz", "prompt": "a"})
            assert unknown.status_code == 404


async def test_a_sleeping_service_is_listed_wakes_for_its_requests_and_is_refused_in_time(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        await place.service("chat", (OLD, 100))
        await place.service("lazy", queue_s=2)
        async with place.router() as client:
            assert (await client.get("/ready")).status_code == 200
            assert await models(client) == ["chat-model", "lazy-model"]
            waiting = asyncio.create_task(ask(client, 3))
            refused = await asked(client, {"model": "lazy-model", "prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_workers")
            assert "the service default/lazy is asleep or starting" in refused.json()["error"]["message"]
            services = {each["model"]: each for each in (await revisions(client))["services"]}
            assert services["chat-model"]["queued_requests"] == 1
            assert services["chat-model"]["queued_prompt_tokens"] > 20
            assert (services["lazy-model"]["unplaced"], services["lazy-model"]["queued_requests"]) == (1, 0)
            await place.worker("d-old", "unified", OLD)
            assert await waiting
            await place.cluster.delete(Ref(MODEL_SERVICE, "default", "lazy"))
            async with asyncio.timeout(WAIT_S):
                while await models(client) != ["chat-model"]:  # noqa: ASYNC110  (the router is told by a watch)
                    await asyncio.sleep(0.05)
