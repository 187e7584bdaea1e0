"""The platform as the charts install it, and what a person asks of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tests.cluster.bad_model_services import over
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Answer, Json, Unreachable, ask
from tests.cluster.lab.lab import Lab
from tests.cluster.lab.nodes import log_of

TANDEM = "/apis/tandem.dev/v1alpha1/namespaces"
ROUTER_PORT = 8000
PATIENCE_S = 120.0
_SIMULATED = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {source: demo}
  engine: {type: simulated}
  pools:
  - {name: prefill, role: prefill, drainSeconds: 20}
  - {name: decode, role: decode, drainSeconds: 20}
"""


def simulated(name: str, changed: Mapping[str, Any] | None = None) -> Json:
    """A ModelService with simulated engines, prefill apart from decode; `changed` is laid over its spec."""
    service: Json = yaml.safe_load(_SIMULATED)
    service["metadata"]["name"] = name
    return {**service, "spec": over(service["spec"], dict(changed or {}))}


@dataclass(frozen=True)
class Platform:
    """One installation of the chart in a namespace of its own."""

    lab: Lab
    admin: Admin
    namespace: str

    def pods(self, **labels: str) -> list[Json]:
        """Pods with `tandem.dev/` labels, or (`component`) a part of the chart; those on their way out, too."""
        keys = {
            ("app.kubernetes.io/component" if key == "component" else f"tandem.dev/{key}"): value
            for key, value in labels.items()
        }
        return self.admin.items(f"/api/v1/namespaces/{self.namespace}/pods", keys)

    def routers(self) -> list[str]:
        """Base URLs of the routers that are ready."""
        return [
            url_of(pod)
            for pod in self.pods(component="router")
            if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
        ]

    def apply(self, service: Json) -> Json:
        return self.admin.applied(service, self.namespace)

    def get(self, name: str) -> Json:
        return self.admin.done("GET", f"{TANDEM}/{self.namespace}/modelservices/{name}")

    def delete(self, name: str) -> None:
        self.admin.ask("DELETE", f"{TANDEM}/{self.namespace}/modelservices/{name}")
        self.until(lambda: not self.pods(service=name), f"pods of {name} are left")

    def scale(self, pool: str, replicas: int) -> None:
        """As `kubectl scale enginepool` does."""
        self.admin.patch(f"{TANDEM}/{self.namespace}/enginepools/{pool}/scale", {"spec": {"replicas": replicas}})

    def until(self, holds: Callable[[], object], otherwise: str, bound_s: float = PATIENCE_S) -> None:
        self.admin.until(holds, otherwise, bound_s)

    def until_ready(self, name: str, bound_s: float = PATIENCE_S) -> Json:
        """The service once it is settled in the state that its newest spec asks for."""

        def settled() -> bool:
            service = self.get(name)
            current = service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"]
            return current and condition(service, "Ready") == "True" and condition(service, "Reconciling") != "True"

        try:
            self.until(settled, f"{name} is not ready", bound_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.get(name).get('status')}\n{self.story()}") from error
        return self.get(name)

    def ask(self, model: str, tokens: int = 8) -> Answer:
        """One greedy chat request to the first router."""
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": model, "max_tokens": tokens, "temperature": 0, "messages": messages}
        return ask("POST", f"{self.routers()[0]}/v1/chat/completions", body)

    def answers(self, model: str) -> bool:
        try:
            return self.ask(model).status == 200
        except Unreachable:
            return False

    def workers(self, service: str) -> list[Json]:
        """What the first router says of the workers of a service."""
        listed = ask("GET", f"{self.routers()[0]}/v1/workers").body["data"]
        return [worker for worker in listed if worker["service"] == f"{self.namespace}/{service}"]

    def story(self) -> str:
        """Pods and the last lines they printed, for a test that failed."""
        return "\n".join(
            f"{pod['metadata']['name']} {pod['status'].get('phase')} ready={is_ready(pod)}\n"
            + log_of(self.lab, pod["metadata"]["name"])[-600:]
            for pod in self.pods()
        )


def url_of(router: Json) -> str:
    """Where a router's pod answers."""
    return f"http://{router['status']['podIP']}:{ROUTER_PORT}"


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or ())


def condition(obj: Json, kind: str) -> str:
    """The status of a condition, "" where there is none."""
    held = (obj.get("status") or {}).get("conditions") or ()
    return next((str(one["status"]) for one in held if one["type"] == kind), "")


def weights(service: Json) -> dict[str, int]:
    """Percentage of new requests by revision."""
    revisions = service.get("status", {}).get("revisions") or ()
    return {one["name"]: one.get("weight", 0) for one in revisions if one.get("weight")}
