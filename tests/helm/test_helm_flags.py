"""Pods start their processes with settings that these take, and listen where ports, probes and clients expect it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from control_plane.__main__ import flags as operator_flags
from control_plane.objects import names
from control_plane.objects.installation import LINK_PORT, TLS_DIRECTORY, Installation
from control_plane.objects.worker_defaults import WorkerDefaults
from control_plane.objects.worker_flags import settings_map
from control_plane.operator.mirror import ROUTERS
from control_plane.operator.settings import OperatorSettings
from kv_store.settings import StoreSettings
from kv_transfer.index.redis_settings import RedisSettings
from router.__main__ import _flags as router_flags
from router.discovery.model_service import service_of as seen_by_router
from router.discovery.pods import worker_of
from router.process_settings import ProcessSettings
from tandem.process.settings import load_settings
from tandem.process.tls_settings import TlsSettings
from tandem.spec.reading import read_service
from tandem.spec.service import API_VERSION, KIND, Metadata
from tests.helm.charts import EVERYTHING, NAMESPACE, VARIANTS, Json, of_kind, render, rendered, selects

RENDERED: Final = rendered()
_POD: Final = {"POD_NAME": "pod-0", "POD_NAMESPACE": NAMESPACE, "POD_IP": "192.0.2.7"}


def command_of(objects: list[Json], kind: str, name: str) -> tuple[list[str], list[str], dict[str, str]]:
    """(command, arguments, environment) as the kubelet would give them."""
    (workload,) = of_kind(objects, kind, name)
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    arguments = [each.replace("$$(", "\0") for each in container["args"]]
    for variable, value in _POD.items():
        arguments = [each.replace(f"$({variable})", value) for each in arguments]
    assert not [each for each in arguments if "$(" in each], "a variable that the pod does not have"
    return container["command"], [each.replace("\0", "$(") for each in arguments], environment


def operator(variant: str) -> OperatorSettings:
    return operator_of(RENDERED[variant])


def operator_of(objects: list[Json]) -> OperatorSettings:
    command, arguments, environment = command_of(objects, "Deployment", "tandem-operator")
    assert command == ["python", "-m", "control_plane"]
    return load_settings(OperatorSettings, operator_flags(arguments), environment)


def router(variant: str) -> ProcessSettings:
    command, arguments, environment = command_of(RENDERED[variant], "Deployment", "tandem-router")
    assert command == ["python", "-m", "router"]
    return load_settings(ProcessSettings, router_flags(arguments), environment)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "nothing but routers"])
def test_operators_take_their_flags(variant: str) -> None:
    settings = operator(variant)
    assert settings.own_namespace == NAMESPACE
    assert settings.identity == "pod-0"
    assert settings.bind.endswith(":8080")
    assert settings.scaler_bind.endswith(":9090")
    assert settings.kubeconfig is None


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "nothing but the operator"])
def test_routers_take_their_flags(variant: str) -> None:
    settings = router(variant)
    assert (settings.host, settings.port, settings.grpc_port) == ("::", 8000, 9000)
    assert settings.metrics_bind == "[::]:8001"
    (workload,) = of_kind(RENDERED[variant], "Deployment", "tandem-router")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert ports[container[probe]["httpGet"]["port"]] == 8001, "clients can fill the other port's connections"
    assert settings.kubernetes
    assert settings.core.deadlines.drain_s == 120


def test_both_look_where_services_are() -> None:
    for variant, expected in (
        ("defaults", (NAMESPACE,)),
        ("two namespaces", ("llm", "search")),
        ("all namespaces", ()),
    ):
        assert operator(variant).namespace == router(variant).namespace == expected


def test_workers_get_what_the_chart_has() -> None:
    plain, full = operator("defaults").installation, operator("everything").installation
    image, elsewhere = "tandem-worker:0.1.0", "registry.example/serving/tandem-worker:0.1.0"
    assert plain == Installation(
        worker_image=image,
        vllm_image="tandem-worker-vllm:0.1.0",
        image_pull_policy="IfNotPresent",
        key_secret="tandem-kv-key",
        tls_secret="tandem-tls",
        scaler_secure=True,
        scaler_address=f"tandem-operator.{NAMESPACE}:9090",
        service_url=f"http://tandem-router.{NAMESPACE}:80",
        rollouts_at_once=4,
    )
    assert full.worker_image == elsewhere
    assert full.image_pull_secrets == ("pull",)
    assert full.redis_secret == "tandem-redis/url"
    assert full.otlp_endpoint == "http://collector.observability:4319"
    assert (full.service_account, full.accelerator_label, full.cache_host_path) == (
        "worker",
        "gpu",
        "/var/lib/tandem",
    )
    assert full.cache_size == "300Gi"
    assert full.shared_host_path == "/run/tandem"
    assert full.worker_defaults == WorkerDefaults(
        pod_labels={"team": "serving"},
        pod_annotations={"example.com/note": "$(HOME) <&>"},
        runtime_class_name="nvidia",
        priority_class_name="workers",
        tolerations=({"key": "example.com/only", "operator": "Exists"},),
        resources={"requests": {"cpu": 8}, "limits": {"memory": "64Gi"}},
        pod_security_context={"runAsUser": 1000680000, "supplementalGroups": [44]},
        security_context={"seLinuxOptions": {"level": "s0:c26,c5"}},
    )
    assert operator("users that the platform assigns").installation.worker_defaults.plain == {"assignedUser": True}
    assert (full.template_secrets, full.template_volumes) == (("tokens",), ("nfs", "/mnt/weights"))
    assert (full.template_capabilities, full.template_service_accounts) == ((), ("reader",))
    assert (plain.template_root, full.template_root) == (False, True)
    assert (plain.template_locked_memory, full.template_locked_memory) == (False, True)
    assert operator("no TLS").installation.tls_secret is None
    assert not operator("no TLS").installation.scaler_secure
    assert operator("Secrets of others").installation.tls_secret == "certificates"
    assert operator("Secrets of others").installation.key_secret == "key"


DEFAULTS: Final = (
    "podLabels",
    "podAnnotations",
    "runtimeClassName",
    "priorityClassName",
    "tolerations",
    "resources",
    "podSecurityContext",
    "securityContext",
)
NEW_VALUES: Final[tuple[Json, ...]] = (
    {"operator": {"rollout": None}, "workers": {"template": None, "cacheSize": None}, "gitops": None},
    {
        "operator": {"rollout": {"maxConcurrent": None, "inPlaceAfterSeconds": None}},
        "assignedUser": None,
        "workers": {
            **dict.fromkeys(DEFAULTS),
            "template": dict.fromkeys(("secrets", "volumes", "capabilities", "serviceAccounts", "root")),
        },
    },
)


@pytest.mark.parametrize("without", NEW_VALUES, ids=("parts", "values"))
def test_values_of_the_version_before_do_as_they_are(without: Json) -> None:
    """As `helm upgrade --reuse-values` has them: without those that are new, and without their defaults."""
    assert operator_of(render(without)) == operator("defaults")


def test_no_bound_on_rollouts_and_no_capabilities_are_not_taken_for_nothing_said() -> None:
    said = {
        "operator": {"rollout": {"maxConcurrent": 0, "inPlaceAfterSeconds": 900}},
        "workers": {"template": {"capabilities": []}},
    }
    told = operator_of(render(said)).installation
    assert (told.rollouts_at_once, told.template_capabilities, told.in_place_after_s) == (0, (), 900.0)


def test_the_scaler_and_the_routers_are_where_the_operator_says() -> None:
    objects, told = RENDERED["everything"], operator("everything").installation
    for address, name in ((told.scaler_address, "tandem-operator"), (told.service_url, "tandem-router")):
        host, _, port = address.removeprefix("http://").rpartition(":")
        (service,) = of_kind(objects, "Service", name)
        assert host == f"{name}.{service['metadata']['namespace']}"
        assert int(port) in [each["port"] for each in service["spec"]["ports"]]


def test_the_operator_finds_routers_by_their_labels() -> None:
    (workload,) = of_kind(RENDERED["defaults"], "Deployment", "tandem-router")
    key, _, value = ROUTERS.partition("=")
    assert selects({key: value}, workload["spec"]["template"]["metadata"]["labels"])


def test_routers_look_blocks_up_under_the_name_that_workers_tell_them_under() -> None:
    service = read_service(Path("deploy/examples/cpu-demo.yaml"))
    service = msgspec.structs.replace(service, metadata=Metadata(name="llama", namespace="llm"))
    told = settings_map(service, service.spec.pools[0], "r", operator("everything").installation)["data"]
    metadata = {"name": "llama", "namespace": "llm"}
    whole = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": msgspec.to_builtins(service.spec)}
    asked = seen_by_router(whole).facts.index
    assert asked == told["TANDEM_INDEX__SERVICE"] == store("everything").index.service == "llm.llama"
    assert router("everything").index.service == RedisSettings().service


def test_operator_and_gates_ask_routers_with_the_operators_key() -> None:
    leader = operator("everything")
    (secret,) = [
        volume["secret"]
        for volume in of_kind(RENDERED["everything"], "Deployment", "tandem-operator")[0]["spec"]["template"]["spec"][
            "volumes"
        ]
        if volume["name"] == "router-key"
    ]
    (item,) = secret["items"]
    assert leader.router_key_file is not None
    assert leader.router_key_file.name == item["path"]
    assert leader.installation.gate_key_secret == f"{secret['secretName']}/{item['key']}"
    assert (operator("defaults").router_key_file, operator("defaults").installation.gate_key_secret) == (None, None)


def mounted(objects: list[Json], kind: str, name: str) -> list[str]:
    (workload,) = of_kind(objects, kind, name)
    return [mount["mountPath"] for mount in workload["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]]


def test_files_are_mounted_where_processes_look_for_them() -> None:
    objects, settings, leader = RENDERED["everything"], router("everything"), operator("everything")
    files = [settings.ticket_key_file, settings.api_keys, settings.link_tls.certificate, settings.link_tls.authority]
    for file in files:
        assert file is not None
        assert str(file.parent) in mounted(objects, "Deployment", "tandem-router")
    assert settings.cache is not None
    assert str(settings.cache) in mounted(objects, "Deployment", "tandem-router")
    assert leader.router_key_file is not None
    assert str(leader.router_key_file.parent) in mounted(objects, "Deployment", "tandem-operator")
    assert settings.link_tls.certificate is not None
    assert str(settings.link_tls.certificate.parent) == TLS_DIRECTORY
    assert settings.link_tls.server_name == "tandem-worker"
    assert router("no TLS").link_tls == TlsSettings()


def test_the_operator_and_those_it_talks_to_show_each_other_certificates() -> None:
    leader, settings = operator("defaults"), router("defaults")
    assert leader.router_port == settings.peer_port == 8443
    assert leader.router_tls == settings.link_tls
    assert leader.scaler_tls == replace(leader.router_tls, server_name=None)
    assert leader.router_tls.certificate is not None
    assert str(leader.router_tls.certificate.parent) in mounted(RENDERED["defaults"], "Deployment", "tandem-operator")
    assert leader.installation.tls_name == leader.router_tls.server_name
    plain = operator("no TLS")
    assert (plain.router_port, router("no TLS").peer_port) == (8000, None)
    assert plain.router_tls == plain.scaler_tls == TlsSettings()
    assert TLS_DIRECTORY not in mounted(RENDERED["no TLS"], "Deployment", "tandem-operator")
    without = operator("KEDA in plain text")
    assert without.installation.tls_secret is not None
    assert not without.installation.scaler_secure
    assert without.scaler_tls == TlsSettings()


def store(variant: str) -> StoreSettings:
    command, arguments, environment = command_of(RENDERED[variant], "DaemonSet", "tandem-kv-store")
    assert command == ["python", "-m", "kv_store"]
    return load_settings(StoreSettings, arguments, environment)


def test_stores_take_their_flags_and_are_found_by_routers() -> None:
    settings = store("everything")
    assert settings.link.bind.endswith(f":{LINK_PORT}")
    assert settings.link.advertise == "192.0.2.7"
    assert settings.kubernetes == "llm/llama"
    assert settings.tiers.dram_bytes == 8 << 30
    assert settings.tiers.nvme_bytes == 100 << 30
    assert settings.index.service == "llm.llama"
    assert settings.link.tls.certificate == settings.link_tls.certificate is not None
    assert store("a store in memory").tiers.nvme_bytes == 0
    (workload,) = of_kind(RENDERED["everything"], "DaemonSet", "tandem-kv-store")
    metadata: dict[str, Any] = {**workload["spec"]["template"]["metadata"], "name": "store-0", "namespace": "llm"}
    found = worker_of({"metadata": metadata, "status": {"podIP": "192.0.2.7"}})
    assert found is not None
    assert (found.service, found.address) == ("llm/llama", f"tcp://192.0.2.7:{LINK_PORT}")
    key, _, value = names.MANAGED.partition("=")
    assert metadata["labels"][key] == value
    assert EVERYTHING["kvStore"]["modelService"] == metadata["labels"][names.SERVICE]
