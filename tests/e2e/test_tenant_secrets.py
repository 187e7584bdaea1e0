"""What all Secrets of one tenant open at another: nothing. The chart's own Secrets, workers as processes with the
operator's own flags, a router with the chart's, and a real Redis."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import redis

from control_plane.__main__ import flags as operator_flags
from control_plane.objects.worker_flags import worker_flags
from control_plane.operator.settings import OperatorSettings
from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Claims, issue
from kv_transfer.transport.protocol import PullOpen
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from kv_transfer.transport.tcp_tls import encryption
from router.__main__ import _flags as router_flags
from router.__main__ import open_keyring, open_tenant_keys
from router.api.auth import Keys
from router.api.chat_templates.supervisor import HelperTemplates
from router.fleet.fleet import Fleet
from router.process_settings import ProcessSettings
from router.wiring import Wiring
from tandem.core.errors import TandemError
from tandem.core.messages import Hello
from tandem.engine.private_memory import PrivateMemory
from tandem.kube.cluster import Cluster
from tandem.kube.memory_cluster import MemoryCluster
from tandem.link.dialer import open_dialer
from tandem.process.logs import EventLines
from tandem.process.settings import load_settings
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.telemetry import open_telemetry
from tandem.process.tls_settings import TlsSettings
from tandem.spec.reading import service_of
from tests.e2e.test_discovery import WAIT_S, _named_root, asked
from tests.helm.charts import NAMESPACE, Json, of_kind, render
from tests.worlds.processes import Running
from tests.worlds.redis_stage import RedisServer, needs_redis

pytestmark = needs_redis
VALUES: Final[Json] = {
    "tenants": [{"namespace": "a", "models": ["a/*"]}, {"namespace": "b", "models": ["b/*"]}],
    "redis": {"enabled": True},
}
WHERE: Final = "/var/run/tandem"
POOLS: Final = [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}]


class Shelf:
    """A sink of its own memory."""

    def __init__(self, block_bytes: int) -> None:
        self._memory = PrivateMemory(block_bytes, 4)

    def block(self, index: int) -> memoryview:
        return self._memory.block(index)


class Land:
    """An installation with the tenants a and b. Each namespace's Secrets lie in a folder of its name."""

    def __init__(self, root: Path, server: RedisServer) -> None:
        self._root = root
        self.objects = render(VALUES)
        self.cluster = MemoryCluster(SystemClock())
        self.server = server
        self._running: list[Running] = []
        self.addresses: dict[str, str] = {}
        self.fleet: Fleet
        for secret in of_kind(self.objects, "Secret"):
            folder = root / secret["metadata"]["namespace"] / secret["metadata"]["name"]
            folder.mkdir(parents=True)
            for key, value in secret.get("data", {}).items():
                (folder / key).write_bytes(base64.b64decode(value))
            for key, value in secret.get("stringData", {}).items():
                (folder / key).write_text(value)

    def secret(self, namespace: str, name: str, key: str) -> Path:
        return self._root / namespace / name / key

    def tls(self, namespace: str, server_name: str) -> TlsSettings:
        """The certificate of a namespace, in the hands of somebody who expects another name at the other end."""
        certificate, key, authority = (
            self.secret(namespace, "tandem-tls", each) for each in ("tls.crt", "tls.key", "ca.crt")
        )
        return TlsSettings(certificate, key, authority, server_name)

    def redis_url(self, namespace: str) -> str:
        url = self.secret(namespace, "tandem-redis", "url").read_text()
        return url.replace(f"tandem-redis.{NAMESPACE}:6379", f"127.0.0.1:{self.server.port}")

    def redis(self, namespace: str) -> "redis.Redis":
        return redis.Redis.from_url(self.redis_url(namespace))

    async def worker(self, namespace: str, pool: int, *, model: str = "") -> str:
        """A worker that listens, with the operator's flags, and its pod; the worker's id."""
        name = f"{namespace}-{POOLS[pool]['role']}{'-lies' if model else ''}"
        installation = load_settings(OperatorSettings, operator_flags(self._arguments("tandem-operator")), {})
        service = service_of(self._service(namespace))
        flags = worker_flags(service, service.spec.pools[pool], "r1", installation.installation, ("tcp",))
        local = {
            WHERE: str(self._root / namespace),
            "$(POD_IP):7400": "127.0.0.1:0",
            "$(POD_IP):7480": "127.0.0.1:0",
            "$(POD_IP)": "127.0.0.1",
            "/kv-key/": "/tandem-kv-key/",
            "/tls/": "/tandem-tls/",
        }
        for there, here in local.items():
            flags = [flag.replace(there, here) for flag in flags]
        flags[flags.index("--kv.port") + 1] = "0"
        flags[flags.index("--socket_directory") + 1] = str(self._root)
        running = await Running.start(
            f"{POOLS[pool]['role']}_worker",
            *("--worker_id", name, "--role", POOLS[pool]["role"], "--model_name", model or f"{namespace}/chat"),
            *("--index.redis_url", self.redis_url(namespace), "--index.service", f"{namespace}.chat"),
            *("--simulated.blocks", "512", "--simulated.base_s", "0.005"),
            *flags,
        )
        self._running.append(running)
        await running.until("ready")
        self.addresses[name] = str(running.told["listening.address"])
        await self._pod(namespace, name, POOLS[pool]["role"])
        return name

    async def service(self, namespace: str) -> None:
        obj = self._service(namespace)
        await self.cluster.apply(obj, "test")
        status = {"revisions": [{"name": "r1", "weight": 100}]}
        await self.cluster.apply_status({**obj, "status": status}, "test")

    def _service(self, namespace: str) -> Json:
        return {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": {"name": "chat", "namespace": namespace},
            "spec": {"model": {"name": f"{namespace}/chat"}, "engine": {"type": "simulated"}, "pools": POOLS},
        }

    async def _pod(self, namespace: str, name: str, role: str) -> None:
        labels = {
            "app.kubernetes.io/managed-by": "tandem",
            "tandem.dev/service": "chat",
            "tandem.dev/pool": role,
            "tandem.dev/role": role,
            "tandem.dev/revision": "r1",
        }
        port = self.addresses[name].rpartition(":")[2]
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        metadata["annotations"] = {"tandem.dev/link-port": port}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}
        await self.cluster.apply(pod, "test")
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.cluster.apply_status({**pod, "status": status}, "test")

    def _arguments(self, name: str) -> list[str]:
        (workload,) = of_kind(self.objects, "Deployment", name)
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        return [str(each) for each in container["args"]]

    @asynccontextmanager
    async def router(self) -> AsyncIterator[httpx.AsyncClient]:
        """A router with the chart's flags; the client is the way to it."""
        told = load_settings(ProcessSettings, router_flags(self._arguments("tandem-router")), {})
        settings = replace(
            told,
            host="127.0.0.1",
            port=0,
            grpc_port=None,
            peer_port=None,
            metrics_bind=None,
            cache=None,
            ticket_key_file=self.secret(NAMESPACE, "tandem-kv-key", "keys"),
            tenant_keys=self._root / NAMESPACE / "tandem-tenant-keys",
            link_tls=self.tls(NAMESPACE, told.link_tls.server_name or ""),
            index=replace(told.index, redis_url=self.redis_url(NAMESPACE)),
        )

        async def connect() -> Cluster:
            return self.cluster

        templates, keyring = HelperTemplates(SystemClock()), open_keyring(settings, SystemEntropy())
        wiring = Wiring(settings, {}, templates, Keys(), keyring, connect, open_tenant_keys(settings))
        service = wiring.build(open_telemetry("router", "", "r1"), EventLines(None))
        self.fleet = service._insides.fleet
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

    async def hello(self, name: str, tls: TlsSettings) -> Hello:
        """What a worker says to somebody with this certificate. Raises what keeps a link from them."""
        link = await open_dialer("somebody", SystemEntropy(), tls).dial(self.addresses[name], 20.0)
        try:
            async with asyncio.timeout(WAIT_S):
                first = (await link.tokens.receive())[0]
        finally:
            link.close("done")
        assert isinstance(first, Hello)
        return first

    async def end(self) -> None:
        for running in self._running:
            await running.end()


@asynccontextmanager
async def land(root: Path) -> AsyncIterator[Land]:
    """The tenants' workers run, and so does Redis with the chart's users."""
    server = RedisServer(root / "redis")
    found = Land(root, server)
    server.start("--aclfile", str(found.secret(NAMESPACE, "tandem-redis-users", "users.acl")))
    try:
        for namespace in ("a", "b"):
            await found.service(namespace)
            for pool in range(len(POOLS)):
                await found.worker(namespace, pool)
        yield found
    finally:
        await found.end()
        server.kill()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def proved(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """A worker whose pair is proved: a canary has gone over KV with a ticket of the router's."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for each in (await client.get("/v1/workers")).json()["data"]:
                if each["id"] == name and [pair["state"] for pair in each["pairs"]] == ["closed"]:
                    return dict(each)
            await asyncio.sleep(0.05)


async def pull(address: str, request: PullOpen, tls: TlsSettings) -> None:
    transport = TcpTransport(TcpSettings(), encryption("on", tls, tls))
    try:
        opened = await transport.open(address, request, Shelf(request.layout.block_bytes), 20.0)
        try:
            async for _ in opened.events():
                pass
        finally:
            await opened.close()
    finally:
        await transport.close()


async def test_each_tenant_is_served_and_nothing_of_one_opens_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with land(tmp_path) as place, place.router() as client:
        for namespace in ("a", "b"):
            answer = await asked(client, {"model": f"{namespace}/chat", "prompt": "a story", "max_tokens": 4})
            assert answer.status_code == 200, answer.text
            worker = await proved(client, f"{namespace}-decode")
            assert (worker["service"], worker["kv_path"]) == (f"{namespace}/chat", "tcp/tls")
        await _tickets(place)
        await _links(place)
        await until(lambda: place.redis("b").exists("b.chat:z") and place.redis("a").exists("a.chat:z"))
        assert not [each for each in caplog.records if each.getMessage() in ("redis_lost", "redis_unusable")]
        _redis(place)
        await _lies(place, client)


async def _tickets(place: Land) -> None:
    """Of all that a has, its key is what a ticket would be signed with; b's certificate would not help it."""
    holder = await place.hello("b-prefill", place.tls(NAMESPACE, "tandem-worker.b"))
    claims = Claims("tenant", holder.epoch, "lease", 99, SystemClock().wall() + 60)

    async def refused(key_of: str, certificate_of: str) -> TandemError:
        ticket = issue(read_keyring(place.secret(key_of, "tandem-kv-key", "keys")), claims)
        request = PullOpen("lease", ticket, holder.epoch, 99, holder.layout, (bytes(16),))
        with pytest.raises(TandemError) as caught:
            await pull(holder.addresses[0], request, place.tls(certificate_of, "tandem-worker.b"))
        return caught.value

    forged = await refused("a", "b")
    assert forged.code == "ticket_refused"
    assert "which is not in use here" in forged.message
    assert (await refused(NAMESPACE, "b")).code == "ticket_refused", "the routers' own key signs no tickets"
    assert (await refused("b", "a")).code == "transfer_failed", "with a's certificate nothing is even asked"
    assert (await refused("b", "b")).code == "kv_gone", "b's own are looked at"


async def _links(place: Land) -> None:
    for name in ("b-prefill", "b-decode"):
        with pytest.raises(TandemError) as caught:
            await place.hello(name, place.tls("a", "tandem-worker.b"))
        assert caught.value.code == "link_lost"
        assert (await place.hello(name, place.tls(NAMESPACE, "tandem-worker.b"))).model == "b/chat"
    with pytest.raises(TandemError):
        await place.hello("b-decode", place.tls(NAMESPACE, "tandem-worker.a"))


def _redis(place: Land) -> None:
    ours, routers = place.redis("a"), place.redis(NAMESPACE)
    read = "return redis.call('GET', ARGV[1] .. 'n')"
    assert int(ours.eval(read, 0, "a.chat:")) >= 2
    assert all(int(routers.eval(read, 0, f"{each}.chat:")) >= 2 for each in ("a", "b"))
    attempts: list[Callable[[redis.Redis], object]] = [
        lambda client: client.get("b.chat:n"),
        lambda client: client.set("b.chat:n", 7),
        lambda client: client.set("ab.chat:n", 7),
        lambda client: client.eval(read, 0, "b.chat:"),
        lambda client: client.eval("return redis.call('DEL', KEYS[1])", 1, "b.chat:z"),
        lambda client: client.keys("*"),
        lambda client: client.scan(),
        lambda client: client.flushall(),
        lambda client: client.config_get("*"),
        lambda client: client.acl_list(),
        lambda client: client.rename("a.chat:z", "b.chat:z"),
        lambda client: client.publish("b.chat", "x"),
    ]
    for client in (ours, place.server.admin):
        for number, attempt in enumerate(attempts):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)no permissions|can.t access"):
                pytest.fail(f"attempt {number} was let through: {attempt(client)!r}")
    assert place.server.admin.ping(), "for probes"
    stranger = place.redis_url("b").replace(place.secret("b", "tandem-redis", "password").read_text(), "guessed")
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis.from_url(stranger).ping()


async def _lies(place: Land, client: httpx.AsyncClient) -> None:
    """A tenant's worker that says it serves the other's model gets none of its requests."""
    liar = await place.worker("a", 1, model="b/chat")
    address = f"tcp://127.0.0.1:{place.addresses[liar].rpartition(':')[2]}"
    says = "is a pod of the service a/chat and says that it serves 'b/chat'"
    await until(lambda: says in place.fleet.problems().get(address, ""))
    assert liar not in {each["id"] for each in (await client.get("/v1/workers")).json()["data"]}
    answer = await asked(client, {"model": "b/chat", "prompt": "another", "max_tokens": 4})
    assert answer.status_code == 200, answer.text
