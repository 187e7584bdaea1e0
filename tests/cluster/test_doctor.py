"""`tandem doctor services` against a real API server."""

import json
from pathlib import Path

import pytest
import yaml

from tandem.apps.cli.main import main
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.lab import Lab

TEMPLATES = Path("deploy/helm/tandem-crds/templates")
SERVICE = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "unseen"},
    "spec": {"model": {"source": "demo"}, "pools": [{"name": "all", "role": "unified"}]},
}


def operator(namespace: str) -> dict[str, object]:
    """The Deployment of an operator that is nowhere run; what it says is read."""
    labels = {"app.kubernetes.io/name": "tandem-operator"}
    container = {"name": "operator", "image": "none", "args": [f"--namespace={namespace}"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "doctor-operator", "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def test_a_service_in_a_namespace_that_nobody_watches_is_found(
    lab: Lab, admin: Admin, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.establish(yaml.safe_load(path.read_text()) for path in sorted(TEMPLATES.glob("*.yaml")))
    admin.applied(SERVICE, namespace)
    admin.applied(operator("elsewhere"), namespace)
    try:
        assert main(["doctor", "services", "--json", "--kubeconfig", str(lab.kubeconfig())]) == 1
        (found,) = json.loads(capsys.readouterr().out)
        assert found["verdict"] == "problem"
        assert f"{namespace}/unseen" in found["said"]
        assert "watched are elsewhere" in found["said"]
        assert "`namespaces`" in found["advice"]
    finally:
        admin.done("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments/doctor-operator")
        admin.done("DELETE", f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/modelservices/unseen")
