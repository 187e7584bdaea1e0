"""KEDA in the lab: its own manifests, and its programs as the processes of their pods."""

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import yaml

from tests.cluster.lab.admin import Admin, path_of
from tests.cluster.lab.http import Json

NAMESPACE = "keda"
METRICS = "v1beta1.external.metrics.k8s.io"
READY_S = 120.0
_METRICS_PORT = 9666
_CONNECT_S = 2.0
_FIRST = (
    *("general/namespace", "service_account/service_account", "rbac/role", "rbac/role_binding"),
    *("manager/manager", "manager/service"),
)
# When the operator answers, as there is no DNS here: a container knows the Services that have pods when it starts.
_THEN = tuple(f"metrics-server/{name}" for name in ("role", "role_binding", "service", "api_service", "deployment"))


class Keda:
    """KEDA's operator and metrics adapter. Its webhooks are left out: they only refuse bad ScaledObjects."""

    def __init__(self, admin: Admin, programs: Sequence[Path], manifests: Path) -> None:
        self._admin = admin
        self._programs = {f"/{program.name}": program for program in programs}
        self._manifests = manifests

    def define(self) -> None:
        """Its custom resources, served."""
        files = sorted((self._manifests / "crd" / "bases").glob("*.yaml"))
        assert files, f"no definitions of KEDA below {self._manifests}"
        self._admin.establish(yaml.safe_load(file.read_text()) for file in files)

    def install(self) -> None:
        """Both programs, until the API server has metrics from them."""
        for name in _FIRST:
            self._apply(name)
        self._admin.until(self._answers, "KEDA's operator does not answer", READY_S)
        for name in _THEN:
            self._apply(name)
        service = f"/apis/apiregistration.k8s.io/v1/apiservices/{METRICS}"
        self._admin.until(partial(self._available, service), "KEDA's metrics are not served", READY_S)

    def remove(self) -> None:
        """Everything but the definitions, as soon as KEDA has let go of all ScaledObjects."""
        admin = self._admin
        admin.until(
            lambda: not admin.items("/apis/keda.sh/v1alpha1/scaledobjects"), "ScaledObjects are left", READY_S
        )
        for name in reversed((*_FIRST, *_THEN)):
            for obj in self._objects(name):
                admin.ask("DELETE", path_of(obj, NAMESPACE))
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        admin.until(lambda: admin.ask("GET", namespace).status == 404, "KEDA's namespace is left", READY_S)

    def _answers(self) -> bool:
        """Whether the operator has its certificates, for which it is started once more, and is known as ready."""
        slices = self._admin.items(
            f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
            {"kubernetes.io/service-name": "keda-operator"},
        )
        pods = [one for each in slices for one in each.get("endpoints") or () if one["conditions"].get("ready")]
        try:
            for pod in pods:
                socket.create_connection((pod["addresses"][0], _METRICS_PORT), _CONNECT_S).close()
        except OSError:
            return False
        return bool(pods)

    def _available(self, path: str) -> bool:
        conditions = (self._admin.done("GET", path).get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    def _apply(self, name: str) -> None:
        for obj in self._objects(name):
            self._admin.applied(obj, NAMESPACE)

    def _objects(self, name: str) -> Iterator[Json]:
        for obj in yaml.safe_load_all((self._manifests / f"{name}.yaml").read_text()):
            if obj:
                yield self._with_program(obj) if obj["kind"] == "Deployment" else obj

    def _with_program(self, deployment: Json) -> Json:
        """As it is but for the program, which no image brings here, and the wait before it is first asked."""
        pod = deployment["spec"]["template"]["spec"]
        container = pod["containers"][0]
        place = container["command"][0]
        program = {"name": "program", "hostPath": {"path": str(self._programs[place]), "type": "File"}}
        pod["volumes"].append(program)
        container["volumeMounts"].append({"name": "program", "mountPath": place, "readOnly": True})
        container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 2}
        if deployment["metadata"]["name"] == "keda-operator":
            container["args"].append("--enable-webhook-patching=false")
        return deployment
