"""The chart on a real API server by the real Helm: everything in it is accepted, and keys outlive upgrades."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from control_plane.objects.installation import Installation, completed
from control_plane.objects.pods import pod_template
from tandem.spec.reading import read_service
from tandem.spec.revision import revision_of
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json
from tests.cluster.scenario.helm import CHARTS, Helm
from tests.helm.charts import NAMESPACE, VARIANTS, of_kind, rendered, workloads
from tests.unit.deploy.test_deploy_examples import EXAMPLES

_CHART: Final = str(CHARTS / "tandem")
_OF_OTHERS: Final = ("monitoring.coreos.com", "cert-manager.io")
"""Kinds that this server does not have."""
_LEVEL: Final = "pod-security.kubernetes.io"


@pytest.fixture(scope="module")
def restricted(admin: Admin) -> Admin:
    """Every namespace of the variants, with the strictest Pod Security enforced."""
    for name in (NAMESPACE, "llm", "search"):
        labels = {f"{_LEVEL}/enforce": "restricted", f"{_LEVEL}/enforce-version": "latest"}
        admin.applied({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        # A controller makes this account, some time after the namespace; without controllers nobody does.
        account = {"name": "default", "namespace": name}
        admin.applied({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    admin.applied(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "serving"},
            "value": 1000,
        }
    )
    return admin


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_accepted_strictly(variant: str, restricted: Admin) -> None:
    for obj in rendered()[variant]:
        if obj["apiVersion"].partition("/")[0] not in _OF_OTHERS:
            answer = restricted.apply(obj, dry_run=True)
            assert answer.status < 300, (obj["kind"], obj["metadata"]["name"], answer.message)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_pod_is_let_into_a_restricted_namespace(variant: str, restricted: Admin) -> None:
    for workload in workloads(rendered()[variant]):
        namespace, template = workload["metadata"]["namespace"], workload["spec"]["template"]
        account = template["spec"]["serviceAccountName"]
        metadata = {"name": account, "namespace": namespace}
        restricted.applied({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": namespace, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        answer = restricted.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        assert answer.status == 201, answer.message
        loose = {**template["spec"], "securityContext": {}}
        refused = restricted.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", {**pod, "spec": loose})
        assert refused.status == 403
        assert "restricted" in refused.message


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_workers_of_the_examples_are_let_in(path: Path, restricted: Admin) -> None:
    installation = Installation(tls_secret="tandem-tls")
    service = completed(read_service(path), installation)
    for pool in service.spec.pools:
        template = pod_template(service, pool, revision_of(service.spec), installation)
        metadata = {**template["metadata"], "name": "probe", "namespace": "llm"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        answer = restricted.ask("POST", "/api/v1/namespaces/llm/pods?dryRun=All&fieldValidation=Strict", pod)
        unlimited = pool.network is not None and pool.network.locked_memory == "unlimited"
        assert answer.status == (403 if unlimited else 201), answer.message
        # Locked memory without a bound takes a right that the strictest level does not grant.
        assert not unlimited or "IPC_LOCK" in answer.message


@pytest.fixture
def release(admin: Admin, namespace: str, helm: Helm) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A namespace, and how to name the release in it."""
    where = ("tandem", "--namespace", namespace)
    yield namespace, where
    helm("uninstall", *where, "--ignore-not-found")
    for kind in ("clusterroles", "clusterrolebindings"):
        assert not _named(admin, f"/apis/rbac.authorization.k8s.io/v1/{kind}", namespace)


def _named(admin: Admin, path: str, end: str) -> list[str]:
    return [each["metadata"]["name"] for each in admin.items(path) if each["metadata"]["name"].endswith(f"-{end}")]


def _secrets(admin: Admin, namespace: str) -> dict[str, Any]:
    found = admin.items(f"/api/v1/namespaces/{namespace}/secrets")
    ours = (each for each in found if each["metadata"]["name"].startswith("tandem-"))
    return {each["metadata"]["name"]: each["data"] for each in ours}


def test_keys_outlive_upgrades_and_the_release(
    release: tuple[str, tuple[str, ...]], admin: Admin, helm: Helm
) -> None:
    namespace, where = release
    said = helm("install", where[0], _CHART, *where[1:])
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in said
    first = _secrets(admin, namespace)
    assert first.keys() == {"tandem-kv-key", "tandem-ca", "tandem-tls"}
    helm("upgrade", where[0], _CHART, *where[1:], "--set", "router.replicas=3")
    assert _secrets(admin, namespace) == first
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/tandem-router"
    assert admin.done("GET", deployment)["spec"]["replicas"] == 3
    helm("upgrade", where[0], _CHART, *where[1:], "--set", "tls.rotation=again")
    rotated = _secrets(admin, namespace)
    assert rotated["tandem-tls"]["tls.crt"] != first["tandem-tls"]["tls.crt"]
    assert rotated["tandem-ca"] == first["tandem-ca"]
    assert rotated["tandem-kv-key"] == first["tandem-kv-key"]
    helm("uninstall", *where)
    assert _secrets(admin, namespace) == rotated, "workers that run still need them"
    assert admin.items(f"/apis/apps/v1/namespaces/{namespace}/deployments") == []
    helm("install", where[0], _CHART, *where[1:], "--set", "tls.rotation=again")
    assert _secrets(admin, namespace) == rotated, "and a new release takes them over"


def test_bad_values_never_reach_the_server(namespace: str, helm: Helm) -> None:
    with pytest.raises(AssertionError, match="noSuchValue"):
        helm("install", "bad", _CHART, "--namespace", namespace, "--set", "noSuchValue=1")


def test_the_api_server_grants_what_the_roles_say(
    release: tuple[str, tuple[str, ...]], admin: Admin, helm: Helm
) -> None:
    namespace, where = release
    helm("install", where[0], _CHART, *where[1:])

    def may(account: str, verb: str, group: str, resource: str, **more: str) -> bool:
        attributes: Json = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, **more}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "resourceAttributes": attributes,
            },
        }
        answer = admin.done("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    assert may("tandem-operator", "patch", "tandem.dev", "modelservices", subresource="status")
    assert may("tandem-operator", "create", "apps", "deployments")
    assert may("tandem-operator", "update", "coordination.k8s.io", "leases", name="tandem-operator")
    assert may("tandem-operator", "list", "", "nodes", namespace="")
    assert not may("tandem-operator", "get", "", "nodes", namespace="")
    assert may("tandem-router", "watch", "tandem.dev", "modelservices")
    assert may("tandem-router", "list", "", "pods")
    for account in ("tandem-operator", "tandem-router"):
        assert not may(account, "get", "", "secrets")
        assert not may(account, "create", "", "pods")
        assert not may(account, "delete", "tandem.dev", "modelservices")
        elsewhere = {"namespace": "kube-system"}
        assert not may(account, "list", "", "pods", **elsewhere)


def test_the_clusters_own_roles_reach_modelservices(
    release: tuple[str, tuple[str, ...]], admin: Admin, helm: Helm
) -> None:
    namespace, where = release
    helm("install", where[0], _CHART, *where[1:])
    for role in ("view", "edit"):
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{role}er"}
        admin.applied(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            }
        )

    def may(user: str, verb: str, resource: str, part: str = "") -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": "tandem.dev", "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {**attributes, "subresource": part}},
        }
        answer = admin.done("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    admin.until(lambda: may("viewer", "list", "modelservices"), "a viewer sees no ModelServices", 30.0)
    admin.until(lambda: may("editer", "create", "modelservices"), "an editor makes no ModelServices", 30.0)
    assert may("editer", "watch", "enginepools")
    assert may("editer", "patch", "enginepools", "scale")
    assert not may("editer", "patch", "enginepools")
    assert not may("editer", "patch", "modelservices", "status")
    assert not may("viewer", "create", "modelservices")
    assert not may("viewer", "patch", "enginepools", "scale")


def test_what_helm_prints_is_what_the_tests_render(helm: Helm) -> None:
    """The library that other tests render with agrees with the program."""
    printed = helm("template", "tandem", _CHART, "--namespace", NAMESPACE)
    theirs = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(printed) if one}
    ours = {(one["kind"], one["metadata"]["name"]): one for one in rendered()["defaults"]}
    assert theirs.keys() == ours.keys()
    for key, one in theirs.items():
        if key[0] != "Secret":
            assert one == ours[key]
    assert len(of_kind(list(theirs.values()), "Secret")) == 3
