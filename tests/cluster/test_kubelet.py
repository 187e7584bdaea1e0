"""Pods as real processes: what the scenarios rely on, with Deployments and Jobs of Kubernetes' own controllers."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json, Unreachable, ask
from tests.cluster.lab.lab import Lab
from tests.cluster.lab.nodes import log_of
from tests.cluster.lab.processes import Server

BOUND_S = 60.0
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nodes")]

SERVE = """
import http.server, os, pathlib, signal, socket, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = pathlib.Path(self.path)
        if self.path == "/env":
            body = "\\n".join(f"{key}={value}" for key, value in os.environ.items())
        elif self.path == "/who":
            body = f"{os.getuid()} {os.getgid()} {os.getgroups()} {socket.gethostname()}"
        else:
            body = path.read_text() if path.is_file() else ""
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body.encode())
def leave(*_):
    print("leaving", flush=True)
    time.sleep(0.5)
    print("left", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""


def deployment(name: str, namespace: str, container: Json, replicas: int = 1, **pod: Any) -> Json:
    labels = {"app": name}
    spec = {"containers": [{"name": "main", "image": "none", **container}], "terminationGracePeriodSeconds": 5, **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": {"note": "hello"}}, "spec": spec},
        },
    }


def pods(admin: Admin, namespace: str, name: str) -> list[Json]:
    return admin.items(f"/api/v1/namespaces/{namespace}/pods", {"app": name})


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or ())


def ready_pods(admin: Admin, namespace: str, name: str, count: int) -> list[Json]:
    """Wait until as many are ready and none is on its way out."""
    found: list[Json] = []

    def there() -> bool:
        found[:] = pods(admin, namespace, name)
        return len(found) == count and all(is_ready(pod) for pod in found)

    admin.until(there, f"not {count} ready pods of {name}", BOUND_S)
    return found


def said(pod: Json, path: str) -> str:
    return str(ask("GET", f"http://{pod['status']['podIP']}:8080{path}").body["text"])


SERVER = {"command": ["python", "-c", SERVE], "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}


def test_each_pod_of_a_deployment_has_an_address_and_a_name_of_its_own(admin: Admin, namespace: str) -> None:
    admin.applied(deployment("web", namespace, SERVER, replicas=3))
    found = ready_pods(admin, namespace, "web", 3)
    assert len({pod["status"]["podIP"] for pod in found}) == 3
    assert len({pod["spec"]["nodeName"] for pod in found}) == 2
    for pod in found:
        user, *_, host = said(pod, "/who").split()
        assert (user, host) == ("65532", pod["metadata"]["name"])
    admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web/scale", {"spec": {"replicas": 1}})
    (left,) = ready_pods(admin, namespace, "web", 1)
    for pod in found:
        if pod["metadata"]["uid"] != left["metadata"]["uid"]:
            with pytest.raises(Unreachable):
                said(pod, "/who")


def test_variables_and_files_come_from_where_the_pod_says(admin: Admin, namespace: str) -> None:
    admin.applied(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": namespace},
            "data": {"a": "1", "b": "2"},
        }
    )
    admin.applied(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s", "namespace": namespace},
            "stringData": {"key": "deep"},
        }
    )
    container = {
        **SERVER,
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
            {"name": "BOTH", "value": "$(POD):$(SECRET) $$(POD)"},
        ],
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "c"}}],
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/test"},
            {"name": "secret", "mountPath": "/var/run/test/secret", "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    volumes = [
        {"name": "config", "configMap": {"name": "c"}},
        {
            "name": "secret",
            "secret": {"secretName": "s", "items": [{"key": "key", "path": "in/it"}], "defaultMode": 0o440},
        },
        {"name": "scratch", "emptyDir": {}},
    ]
    security = {"runAsUser": 4000, "runAsGroup": 4001, "fsGroup": 4002}
    admin.applied(deployment("env", namespace, container, volumes=volumes, securityContext=security))
    (pod,) = ready_pods(admin, namespace, "env", 1)
    shown = dict(line.split("=", 1) for line in said(pod, "/env").splitlines() if "=" in line)
    name = pod["metadata"]["name"]
    assert shown["POD"] == name
    assert shown["ADDRESS"] == pod["status"]["podIP"]
    assert (shown["NOTE"], shown["CM_a"], shown["BOTH"]) == ("hello", "1", f"{name}:deep $(POD)")
    assert said(pod, "/who").startswith("4000 4001 [4002]")
    assert said(pod, "/var/run/test/secret/in/it") == "deep"
    assert said(pod, "/etc/test/a") == "1"
    token = said(pod, "/var/run/secrets/kubernetes.io/serviceaccount/token")
    who = ask(
        "POST",
        f"{admin.url}/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        token=token,
    )
    assert who.body["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"
    admin.applied(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": namespace},
            "data": {"a": "9"},
        }
    )
    admin.until(lambda: said(pod, "/etc/test/a") == "9", "a changed ConfigMap does not show", BOUND_S)


def test_a_pod_is_ready_when_its_probe_says_so_and_is_restarted_when_it_is_unwell(
    admin: Admin, namespace: str
) -> None:
    container = {
        "command": [
            "sh",
            "-c",
            "sleep 2; echo yes > /tmp/ready; echo yes > /tmp/well; sleep 4; rm /tmp/well; exec sleep 600",
        ],
        "readinessProbe": {"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1},
        "startupProbe": {"exec": {"command": ["cat", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 30},
        "livenessProbe": {"exec": {"command": ["cat", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 2},
    }
    admin.applied(deployment("probed", namespace, container))
    begun = time.monotonic()
    ready_pods(admin, namespace, "probed", 1)
    assert time.monotonic() - begun > 1.5
    restarted(admin, namespace, "probed", lambda last: last["exitCode"] in (137, 143))


def test_a_container_that_fails_is_restarted_and_its_last_words_are_kept(admin: Admin, namespace: str) -> None:
    container = {"command": ["sh", "-c", "echo -n broken > /dev/termination-log; exit 3"]}
    admin.applied(deployment("failing", namespace, container))
    last = restarted(admin, namespace, "failing", lambda last: True)
    assert (last["exitCode"], last["message"]) == (3, "broken")


def restarted(admin: Admin, namespace: str, name: str, holds: Callable[[Json], bool]) -> Json:
    found: list[Json] = []

    def again() -> bool:
        found[:] = [
            status["lastState"]["terminated"]
            for pod in pods(admin, namespace, name)
            for status in pod["status"].get("containerStatuses") or ()
            if status["restartCount"] and "terminated" in status["lastState"]
        ]
        return bool(found) and holds(found[0])

    admin.until(again, f"{name} was not restarted", BOUND_S)
    return found[0]


def test_a_pod_that_is_deleted_runs_its_hook_and_may_finish_within_its_grace(
    complete_lab: Lab, admin: Admin, namespace: str
) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /shared/hook"]}}}
    container = {**SERVER, "lifecycle": hook, "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    admin.applied(deployment("leaving", namespace, container, volumes=[{"name": "shared", "emptyDir": {}}]))
    (pod,) = ready_pods(admin, namespace, "leaving", 1)
    admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/leaving/scale", {"spec": {"replicas": 0}})
    ready_pods(admin, namespace, "leaving", 0)
    assert log_of(complete_lab, pod["metadata"]["name"]).split()[-2:] == ["leaving", "left"]


def test_a_job_ends_with_the_verdict_of_its_process(admin: Admin, namespace: str) -> None:
    def job(name: str, code: int) -> Json:
        container = {"name": "main", "image": "none", "command": ["sh", "-c", f"exit {code}"]}
        spec = {"containers": [container], "restartPolicy": "Never"}
        metadata = {"name": name, "namespace": namespace}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"backoffLimit": 0, "template": {"spec": spec}},
        }

    for name, code in (("good", 0), ("bad", 1)):
        admin.applied(job(name, code))

    def ended(name: str, kind: str) -> bool:
        found = admin.done("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
        return any(one["type"] == kind and one["status"] == "True" for one in found["status"].get("conditions") or ())

    admin.until(lambda: ended("good", "Complete"), "the good job is not complete", BOUND_S)
    admin.until(lambda: ended("bad", "Failed"), "the bad job has not failed", BOUND_S)


def test_a_node_that_dies_is_not_ready_any_more(nodes: list[Server], admin: Admin, namespace: str) -> None:
    admin.applied(deployment("on-node", namespace, SERVER, tolerations=SOON))
    (pod,) = ready_pods(admin, namespace, "on-node", 1)
    dead = next(server for server in nodes if server.name == pod["spec"]["nodeName"])
    dead.stop(9)
    try:
        with pytest.raises(Unreachable):
            said(pod, "/who")
        admin.until(
            lambda: any(
                is_ready(one) and one["spec"]["nodeName"] != dead.name for one in pods(admin, namespace, "on-node")
            ),
            "no pod took its place on another node",
            120.0,
        )
    finally:
        dead.start()
    ready_pods(admin, namespace, "on-node", 1)


SOON = [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
]
