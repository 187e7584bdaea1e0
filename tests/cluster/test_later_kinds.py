"""The definitions of KEDA come to a real API server and go from it, under an operator that runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import yaml

from control_plane.operator.service import OperatorService
from control_plane.operator.settings import OperatorSettings
from tandem.kube.cluster import Cluster
from tandem.kube.kube_cluster import connect
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.process.run import StopSignal, run_service
from tandem.process.system import SystemClock, SystemEntropy
from tests.cluster.lab import http
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json
from tests.cluster.lab.lab import Lab

pytestmark = pytest.mark.timeout(600)

TEMPLATES = Path("deploy/helm/tandem-crds/templates")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STARTS_S = 60.0
FOUND_S = 150.0
"""The operator looks once a minute whether KEDA has been installed, and a kind that nobody has asked for yet is not
served at the first time."""
GONE_S = 45.0
SERVICE = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {source: hf://org/model}
  engine: {type: simulated}
  pools:
  - {name: prefill, role: prefill, replicas: 1}
  - {name: decode, role: decode, autoscaling: {minReplicas: 1, maxReplicas: 4}}
"""


def definition(kind: str) -> Json:
    """Of a kind of KEDA's group, whatever is in its objects."""
    names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.keda.sh"},
        "spec": {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]},
    }


KEDA = [definition("ScaledObject"), definition("TriggerAuthentication")]


class Running:
    """An operator for one namespace, without routers."""

    def __init__(self, lab: Lab, namespace: str) -> None:
        settings = OperatorSettings(
            namespace=(namespace,),
            own_namespace=namespace,
            bind="127.0.0.1:0",
            scaler_bind="127.0.0.1:0",
            look_up_models=False,
        )

        async def reach() -> Cluster:
            return await connect(str(lab.kubeconfig()))

        self._said = StringIO()
        events = EventLines(self._said)
        self._service = OperatorService(settings, events, reach, SystemClock(), SystemEntropy())
        self.stop = StopSignal()
        self.task = asyncio.create_task(run_service(self._service, self.stop, Health(events), 5.0))

    def said(self, word: str) -> bool:
        return f'"{word}"' in self._said.getvalue()

    def ready(self) -> bool:
        """What the kubelet would be told."""
        address = self._said.getvalue().split('"address": "')[1].split('"')[0]
        return http.ask("GET", f"http://{address}/readyz").status == 200


@asynccontextmanager
async def operator(lab: Lab, admin: Admin, namespace: str) -> AsyncIterator[Running]:
    running = Running(lab, namespace)
    try:
        await until(admin, partial(running.said, "leading"), "the operator does not lead", STARTS_S)
        yield running
    finally:
        running.stop.ask()
        await asyncio.gather(running.task, return_exceptions=True)


async def until(admin: Admin, holds: Callable[[], object], otherwise: str, bound_s: float) -> None:
    """Beside the operator, which runs in this loop."""
    await asyncio.to_thread(admin.until, holds, otherwise, bound_s)


def decode(admin: Admin, namespace: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """How many workers its EnginePool asks for, and its conditions."""
    answer = admin.ask("GET", f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/enginepools/chat-decode")
    said = (answer.body.get("status") or {}).get("conditions") or () if answer.status == 200 else ()
    conditions = {each["type"]: (each["status"], each["reason"]) for each in said}
    return int((answer.body.get("spec") or {}).get("replicas", 0)), conditions


def scaling(admin: Admin, namespace: str) -> tuple[str, str] | None:
    return decode(admin, namespace)[1].get("ScalingActive")


def remove_keda(admin: Admin) -> None:
    for each in KEDA:
        admin.ask("DELETE", f"{DEFINITIONS}/{each['metadata']['name']}")


@pytest.fixture
def kinds(admin: Admin) -> None:
    """Ours are there, and KEDA's are not."""
    remove_keda(admin)
    admin.establish(yaml.safe_load(path.read_text()) for path in sorted(TEMPLATES.glob("*.yaml")))


@pytest.mark.usefixtures("kinds")
async def test_without_keda_again_pools_are_as_they_were_before_it(lab: Lab, admin: Admin, namespace: str) -> None:
    admin.applied(yaml.safe_load(SERVICE), namespace)
    of_pool = partial(scaling, admin, namespace)
    objects = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
    async with operator(lab, admin, namespace) as running:
        await until(
            admin, lambda: of_pool() == ("False", "NoKeda"), "the pool does not say that there is no KEDA", STARTS_S
        )
        admin.patch(
            f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/enginepools/chat-decode/scale",
            {"spec": {"replicas": 2}},
        )
        before = decode(admin, namespace)
        for _ in range(2):
            await asyncio.to_thread(admin.establish, KEDA)
            await until(admin, lambda: admin.items(objects), "KEDA is not asked", FOUND_S)
            await until(admin, lambda: of_pool() == ("True", "Keda"), "the pool does not say so", FOUND_S)
            await asyncio.to_thread(remove_keda, admin)
            await until(admin, lambda: of_pool() == ("False", "NoKeda"), "KEDA is still counted on", GONE_S)
            assert decode(admin, namespace) == before
            assert await asyncio.to_thread(running.ready)
