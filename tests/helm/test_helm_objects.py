"""What must hold of every object that the chart makes, whatever its values are."""

import re
import shlex
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import yaml

from tandem.core.deadlines import Deadlines
from tandem.spec.reading import service_of
from tests.helm.charts import (
    CHART,
    NAMESPACE,
    RELEASE,
    Json,
    containers,
    helm,
    notes,
    of_kind,
    rendered,
    selects,
    workloads,
)

RENDERED: Final = rendered()
every = pytest.mark.parametrize("objects", RENDERED.values(), ids=RENDERED.keys())
_RESTRICTED_VOLUMES: Final = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SECRETS: Final = re.compile(r"redis://[^@\s]*:[^@\s]+@|BEGIN [A-Z ]*PRIVATE KEY|[0-9a-f]{64}")


def test_helm_finds_nothing_to_complain_about() -> None:
    report = helm.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] >= 2] == []


@every
def test_objects_are_named_once_and_labelled(objects: list[Json]) -> None:
    ours = [obj for obj in objects if obj["metadata"]["name"] not in ("prompts", "text")]
    names = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in objects]
    assert len(names) == len(set(names))
    for obj in ours:
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tandem"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        cluster = obj["kind"] in ("ClusterRole", "ClusterRoleBinding")
        assert ("namespace" in obj["metadata"]) != cluster, obj["metadata"]["name"]


@every
def test_pods_pass_the_restricted_standard(objects: list[Json]) -> None:
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"].get("runAsUser", 1) > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec.get("volumes", ()):
            assert set(volume) - {"name"} <= _RESTRICTED_VOLUMES
        for container in containers(workload):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["privileged"] is False
            assert not {"hostPort", "hostIP"} & {key for port in container.get("ports", ()) for key in port}


@every
def test_pods_cannot_change_their_image_and_have_room_to_write(objects: list[Json]) -> None:
    for workload in workloads(objects):
        volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
        for container in containers(workload):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes.keys(), "every volume is mounted, every mount has a volume"
            assert "emptyDir" in volumes[mounts["tmp"]["name"]]
            for name, mount in mounts.items():
                assert "secret" not in volumes[name] or mount["readOnly"] is True


@every
def test_pods_have_probes_and_resources_and_no_token_unless_they_need_it(objects: list[Json]) -> None:
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is (workload["metadata"]["name"] != "tandem-redis")
        account = of_kind(objects, "ServiceAccount", spec["serviceAccountName"])
        assert [one["metadata"]["namespace"] for one in account] == [workload["metadata"]["namespace"]]
        for container in containers(workload):
            assert {"livenessProbe", "readinessProbe"} <= container.keys()
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                handler = container.get(probe, {})
                asked = handler.get("httpGet", handler.get("tcpSocket", {})).get("port")
                assert asked is None or asked in ports
            assert container["livenessProbe"].get("httpGet", {}).get("path") != "/ready", "liveness is not readiness"


def test_a_router_may_start_for_as_long_as_workers_keep_what_its_clients_come_back_to() -> None:
    routers = [
        container
        for objects in RENDERED.values()
        for one in workloads(objects)
        if one["metadata"]["name"] == "tandem-router"
        for container in containers(one)
        if container["name"] == "router"
    ]
    assert routers
    for router in routers:
        probe = router["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == Deadlines().router_restart_s


@every
def test_selectors_find_pods_of_the_chart(objects: list[Json]) -> None:
    templates = [(one["metadata"]["namespace"], one["spec"]["template"]) for one in workloads(objects)]
    for workload in workloads(objects):
        assert selects(workload["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"])
    for service in of_kind(objects, "Service"):
        namespace, selector = service["metadata"]["namespace"], service["spec"]["selector"]
        found = [t for where, t in templates if where == namespace and selects(selector, t["metadata"]["labels"])]
        assert len(found) == 1, service["metadata"]["name"]
        named = {port["name"] for port in found[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for budget in of_kind(objects, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]
        assert sum(selects(selector, template["metadata"]["labels"]) for _, template in templates) == 1
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        (target,) = of_kind(objects, "Deployment", scaler["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"], "who scales it owns the number"


@every
def test_no_secret_lies_outside_of_secrets(objects: list[Json]) -> None:
    for obj in objects:
        if obj["kind"] != "Secret":
            assert not _SECRETS.search(str(obj).replace("sha256:" + "a" * 64, "")), obj["metadata"]["name"]


@every
def test_secrets_that_pods_mount_are_made_or_named_by_the_user(objects: list[Json]) -> None:
    made = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in of_kind(objects, "Secret")}
    made |= {(one["metadata"]["namespace"], one["spec"]["secretName"]) for one in of_kind(objects, "Certificate")}
    given = {"keys", "hub", "redis-url", "key", "certificates"}
    for workload in workloads(objects):
        spec, namespace = workload["spec"]["template"]["spec"], workload["metadata"]["namespace"]
        asked = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        for container in spec["containers"]:
            sources = (each.get("valueFrom", {}).get("secretKeyRef") for each in container.get("env", ()))
            asked |= {source["name"] for source in sources if source}
            asked |= {each["secretRef"]["name"] for each in container.get("envFrom", ())}
        assert {name for name in asked if (namespace, name) not in made} <= given


def test_images_come_from_where_the_values_say() -> None:
    images = {
        workload["metadata"]["name"]: containers(workload)[0]["image"]
        for workload in workloads(RENDERED["everything"])
    }
    assert images == {
        "tandem-operator": "registry.example/serving/tandem-core:0.1.0",
        "tandem-router": "registry.example/serving/core@sha256:" + "a" * 64,
        "tandem-redis": "redis:8.2.3-alpine",
        "tandem-kv-store": "registry.example/serving/tandem-core:0.1.0",
    }


def test_a_redis_elsewhere_is_not_run_here() -> None:
    objects = RENDERED["a Redis elsewhere"]
    assert of_kind(objects, "Deployment", "tandem-redis") == []
    (secret,) = of_kind(objects, "Secret", "tandem-redis")
    assert secret["stringData"]["url"] == "rediss://cache.example:6390/0"
    (router,) = of_kind(objects, "NetworkPolicy", "tandem-router")
    assert {"protocol": "TCP", "port": 6390} in [p for rule in router["spec"]["egress"] for p in rule["ports"]]


def test_a_redis_in_a_secret_is_found_by_its_key_and_let_through_at_its_port() -> None:
    objects = RENDERED["a Redis in a Secret"]
    assert of_kind(objects, "Secret", "redis-url") == of_kind(objects, "Secret", "tandem-redis") == []
    (router,) = of_kind(objects, "Deployment", "tandem-router")
    (variable,) = (each for each in containers(router)[0]["env"] if each["name"] == "TANDEM_INDEX__REDIS_URL")
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "redis-url", "key": "uri"}}
    (operator,) = of_kind(objects, "Deployment", "tandem-operator")
    assert "--redis_secret=redis-url/uri" in containers(operator)[0]["args"]
    for name in ("tandem-router", "tandem-workers"):
        (policy,) = of_kind(objects, "NetworkPolicy", name)
        ports = [rule.get("ports") for rule in policy["spec"]["egress"]]
        assert [{"protocol": "TCP", "port": 6390}] in ports


def test_there_is_no_model_in_the_chart() -> None:
    for objects in RENDERED.values():
        assert not {"ModelService", "EnginePool", "CustomResourceDefinition"} & {obj["kind"] for obj in objects}


def test_extra_objects_are_templates() -> None:
    found = of_kind(RENDERED["everything"], "ConfigMap")
    assert {("prompts", NAMESPACE), ("text", NAMESPACE)} <= {
        (one["metadata"]["name"], one["metadata"]["namespace"]) for one in found
    }


def test_services_that_notes_and_documentation_show_are_good() -> None:
    page = (CHART.parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
    shown = [
        *re.findall(r"<<YAML\n(.*?)\n *YAML", notes(), re.DOTALL),
        *(each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: ModelService" in each),
    ]
    assert len(shown) == 2
    for text in shown:
        service = service_of(yaml.safe_load(textwrap.dedent(text)))
        assert service.model_name == "demo"


def test_the_notes_say_how_to_ask_and_what_is_open() -> None:
    said = notes()
    assert "kind: ModelService" in said
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in said
    assert "router.apiKeysSecret" in said
    assert "WARNING" not in said
    assert "plain text" in notes({"tls": {"enabled": False}})
    assert "Bearer $KEY" in notes({"router": {"apiKeysSecret": "keys"}})
    assert RELEASE in said


_COMMAND = re.compile(r"(?:^|`)((?:kubectl|helm) [^`#\n]+)", re.MULTILINE)
_DOCS = Path(__file__).parents[2] / "docs"
_ANYWHERE = ("namespace", "crd", "explain")
_HERE = {"modelservice", "modelservices", "enginepool", "enginepools", "modelservices,enginepools,pods"}


def commands() -> list[list[str]]:
    """The commands of the docs' walk and of what follows it, word for word."""
    text = "".join((_DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("kubernetes", "autoscaling"))
    found = [shlex.split(line.removesuffix(" &")) for line in _COMMAND.findall(text)]
    return [words for words in found if len(words) > 2]


def option(words: list[str], *names: str) -> str:
    return next((value for name, value in pairwise(words) if name in names), "")


def test_the_docs_walk_says_everywhere_in_which_namespace() -> None:
    (install,) = (words for words in commands() if words[:3] == ["helm", "install", "tandem"])
    release = option(install, "--namespace")
    (given,) = (word for word in install if word.startswith("namespaces={"))
    (models,) = given.removeprefix("namespaces={").removesuffix("}").split(",")
    assert models != release, "services have a namespace apart from the operator's"
    assert ["kubectl", "create", "namespace", models] in commands()
    with helm.Chart.load(CHART) as chart:
        asked = {"namespaces": [models], "image": {"registry": "registry.example/team"}}
        texts = chart.render(asked, name=install[2], namespace=release)
    objects = [
        obj for name, text in texts.items() if name.endswith(".yaml") for obj in yaml.safe_load_all(text) if obj
    ]
    walked = [words for words in commands() if words[0] == "kubectl" and not {*words} & {*_ANYWHERE}]
    assert len(walked) > 8
    for words in walked:
        assert "-l" not in words, f"{words}: nobody labels a ModelService"
        where, file = option(words, "-n", "--namespace"), option(words, "-f", "--filename")
        kinds = {word.partition("/")[0] for word in words}
        if kinds & _HERE or file.startswith("deploy/"):
            assert where == models, words
        if "service" in kinds:
            (target,) = (word.partition("/")[2] for word in words if word.startswith("service/"))
            (service,) = of_kind(objects, "Service", target)
            assert service["metadata"]["namespace"] == where == release, words
            local, port = words[words.index(f"service/{target}") + 1].split(":")
            assert int(port) in [each["port"] for each in service["spec"]["ports"]]
            assert f"http://127.0.0.1:{local}/" in (_DOCS / "kubernetes.md").read_text(encoding="utf-8")
        if file.startswith("deploy/"):
            example = yaml.safe_load((_DOCS.parent / file).read_text(encoding="utf-8"))
            assert "namespace" not in example["metadata"]


def test_the_first_service_of_the_docs_is_where_the_walk_looks_for_it() -> None:
    text = (_DOCS / "kubernetes.md").read_text(encoding="utf-8")
    (manifest,) = (each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: ModelService" in each)
    service = service_of(yaml.safe_load(manifest))
    assert service.metadata.namespace == "models"
    waiting = next(words for words in commands() if words[1] == "wait")
    assert f"modelservice/{service.metadata.name}" in waiting
    pools = {f"enginepool/{service.metadata.name}-{pool.name}" for pool in service.spec.pools}
    assert pools & {word for words in commands() for word in words}
