"""The operator as a service: one of two leads, the other takes over, and both tell how they are."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO

import pytest
import yaml

from control_plane.crds.definitions import definitions
from control_plane.operator.service import OperatorService
from control_plane.operator.settings import OperatorSettings
from tandem.core.errors import TandemError
from tandem.kube.kinds import DEPLOYMENT, LEASE, MODEL_SERVICE, Json
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.process.run import StopSignal, run_service
from tandem.process.system import SystemClock, SystemEntropy
from tests.cluster.good_model_services import SMALLEST

_WAIT_S = 20.0


class Replica:
    """One operator. `MemoryCluster` is closed by none of them."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        self.said = StringIO()
        settings = OperatorSettings(
            identity=name, bind="127.0.0.1:0", scaler_bind="127.0.0.1:0", look_up_models=False
        )
        events = EventLines(self.said)

        async def connect() -> MemoryCluster:
            return cluster

        self.service = OperatorService(settings, events, connect, SystemClock(), SystemEntropy())
        self.stop = StopSignal()
        self.task = asyncio.create_task(run_service(self.service, self.stop, Health(events), 5.0))

    def leads(self) -> bool:
        return '"leading"' in self.said.getvalue()

    def ready(self) -> bool:
        return '"ready"' in self.said.getvalue()

    async def page(self, path: str) -> tuple[int, str]:
        address = self.said.getvalue().split('"address": "')[1].split('"')[0]
        return await asyncio.to_thread(_get, f"http://{address}{path}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=100) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Shared(MemoryCluster):
    """A server that stays when a client goes."""

    async def close(self) -> None:
        return


@asynccontextmanager
async def replicas(count: int) -> AsyncIterator[tuple[MemoryCluster, list[Replica]]]:
    cluster = Shared(SystemClock())
    for definition in definitions().values():
        await cluster.apply(definition, "helm")
    made = [Replica(cluster, f"operator-{number}") for number in range(count)]
    try:
        yield cluster, made
    finally:
        for replica in made:
            replica.stop.ask()
        await asyncio.gather(*(replica.task for replica in made), return_exceptions=True)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not holds():  # noqa: ASYNC110 what is waited for is written by nobody we could ask
            await asyncio.sleep(0.02)


def service(name: str) -> Json:
    plain: Json = yaml.safe_load(SMALLEST)
    return {**plain, "metadata": {"name": name, "namespace": "llm"}}


async def test_one_acts_and_another_one_takes_over() -> None:
    async with replicas(2) as (cluster, made):
        await until(lambda: any(each.leads() for each in made) and all(each.ready() for each in made))
        assert [each.leads() for each in made].count(True) == 1
        await cluster.apply(service("one"), "user")
        await until(lambda: len(cluster.objects(DEPLOYMENT)) == 1)
        first, second = sorted(made, key=lambda each: not each.leads())
        first.stop.ask()
        await asyncio.wait_for(first.task, _WAIT_S)
        await until(second.leads)
        assert cluster.objects(LEASE)[0]["spec"]["holderIdentity"] == f"operator-{made.index(second)}"
        await cluster.apply(service("two"), "user")
        await until(lambda: len(cluster.objects(DEPLOYMENT)) == 2)


async def test_it_tells_how_it_is() -> None:
    async with replicas(1) as (cluster, (replica,)):
        await until(replica.ready)
        await cluster.apply(service("one"), "user")
        await until(lambda: cluster.objects(MODEL_SERVICE)[0].get("status"))
        assert await replica.page("/healthz") == (200, "alive\n")
        assert await replica.page("/readyz") == (200, "ready\n")
        status, text = await replica.page("/metrics")
        assert status == 200
        assert "\ntandem_operator_leads 1.0" in text
        assert "\ntandem_operator_services 1.0" in text
        assert 'tandem_operator_reconciles_total{outcome="done"}' in text
        assert (await replica.page("/nothing"))[0] == 404


async def test_one_that_has_lost_its_lease_ends() -> None:
    async with replicas(1) as (cluster, (replica,)):
        await until(replica.leads)
        lease = cluster.objects(LEASE)[0]
        await cluster.update({**lease, "spec": {**lease["spec"], "holderIdentity": "somebody"}})
        with pytest.raises(TandemError, match="somebody holds Lease"):
            await asyncio.wait_for(asyncio.shield(replica.task), _WAIT_S)
