"""What a person does with kubectl, over plain HTTP: apply, read, scale, delete. Not by the code under test."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from tests.cluster.lab.http import Answer, Json, Unreachable, ask
from tests.cluster.lab.servers import ADMIN, token_of

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_CLUSTER_SCOPED = {
    "Namespace",
    "Node",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "APIService",
}
_LOOK_S = 0.1


class Refused(AssertionError):
    """The API server said no."""


class Admin:
    """The administrator of a lab. Paths begin with /api or /apis."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Answer:
        return ask(method, self.url + path, body, token=token_of(ADMIN), content=content)

    def done(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Json:
        """The same, where a refusal is a failure of the test."""
        answer = self.ask(method, path, body, content)
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {answer.message}")
        return answer.body

    def apply(self, obj: Json, namespace: str = "default", *, dry_run: bool = False) -> Answer:
        """As `kubectl apply --server-side` does, strict about unknown fields."""
        query = "fieldManager=kubectl&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.ask("PATCH", f"{path_of(obj, namespace)}?{query}", obj, APPLY)

    def create(self, obj: Json, namespace: str = "default") -> Answer:
        """As `kubectl create` and the first plain `kubectl apply` do, strict about unknown fields."""
        collection = path_of(obj, namespace).rpartition("/")[0]
        return self.ask("POST", f"{collection}?fieldManager=kubectl&fieldValidation=Strict", obj)

    def applied(self, obj: Json, namespace: str = "default") -> Json:
        answer = self.apply(obj, namespace)
        if answer.status >= 400:
            raise Refused(f"apply {obj['kind']} {obj['metadata']['name']}: {answer.status} {answer.message}")
        return answer.body

    def table(self, path: str) -> list[dict[str, object]]:
        """The rows that `kubectl get` prints, by column."""
        answer = ask("GET", self.url + path, token=token_of(ADMIN), accept=_TABLE)
        names = [column["name"] for column in answer.body["columnDefinitions"]]
        return [dict(zip(names, row["cells"], strict=True)) for row in answer.body["rows"]]

    def patch(self, path: str, body: Json) -> Json:
        return self.done("PATCH", path, body, MERGE)

    def items(self, path: str, labels: Json | None = None) -> list[Json]:
        """The objects of a collection with these labels."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        return list(self.done("GET", path + (f"?labelSelector={selector}" if selector else "")).get("items") or ())

    def namespace(self, name: str) -> str:
        """A new namespace. Pods are refused in it until a controller has made its service account."""
        self.applied({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def establish(self, definitions: Iterable[Json]) -> None:
        """Custom resource definitions, until they are served."""
        for definition in definitions:
            name = self.applied(definition)["metadata"]["name"]
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            self.until(partial(self._established, path), f"{name} is not served", 30.0)

    def _established(self, path: str) -> bool:
        conditions = (self.done("GET", path).get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    def until(self, holds: Callable[[], object], otherwise: str, bound_s: float) -> None:
        """Wait for something; an API server that is away just now is waited for."""
        end = time.monotonic() + bound_s
        while True:
            why = ""
            try:
                if holds():
                    return
            except (Unreachable, Refused) as error:
                why = f": {error}"
            if time.monotonic() > end:
                raise AssertionError(f"{otherwise} after {bound_s:.0f} s{why}")
            time.sleep(_LOOK_S)


def path_of(obj: Json, namespace: str) -> str:
    """Where an object lies; its own namespace comes first."""
    metadata, kind = obj["metadata"], obj["kind"]
    version = obj["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    within = "" if kind in _CLUSTER_SCOPED else f"/namespaces/{metadata.get('namespace', namespace)}"
    return f"{root}{within}/{plural(kind)}/{metadata['name']}"


def plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith("y"):
        return f"{lower[:-1]}ies"
    return f"{lower}es" if lower.endswith("s") else f"{lower}s"
