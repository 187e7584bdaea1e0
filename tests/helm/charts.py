"""Charts rendered by Helm itself, as objects, with every switch of their values."""

from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="renders with helm-python-sdk, which has no wheel for this machine")

Json = dict[str, Any]

CHART: Final = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tandem"
RELEASE: Final = "tandem"
NAMESPACE: Final = "tandem-system"

EXTRAS: Final[Json] = {
    "podAnnotations": {"example.com/team": "serving"},
    "podLabels": {"team": "serving"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "example.com/only", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}
PROCESS_EXTRAS: Final[Json] = {
    **EXTRAS,
    "extraArgs": ["--log.level=debug"],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "serviceAccount": {"annotations": {"example.com/identity": "tandem"}},
}
EVERYTHING: Final[Json] = {
    "namespaces": ["llm", "search"],
    "image": {"registry": "registry.example/serving/", "pullPolicy": "Always", "pullSecrets": [{"name": "pull"}]},
    "priorityClassName": "serving",
    "commonLabels": {"cost-center": "12"},
    "commonAnnotations": {"example.com/owner": "serving"},
    "telemetry": {"otlpEndpoint": "http://collector.observability:4319"},
    "operator": PROCESS_EXTRAS,
    "workers": {
        "serviceAccountName": "worker",
        "acceleratorLabel": "gpu",
        "cacheHostPath": "/var/lib/tandem",
        "sharedHostPath": "/run/tandem",
        "cacheSize": "300Gi",
        "podLabels": {"team": "serving"},
        "podAnnotations": {"example.com/note": "$(HOME) <&>"},
        "runtimeClassName": "nvidia",
        "priorityClassName": "workers",
        "tolerations": [{"key": "example.com/only", "operator": "Exists"}],
        "resources": {"requests": {"cpu": 8}, "limits": {"memory": "64Gi"}},
        "podSecurityContext": {"runAsUser": 1000680000, "supplementalGroups": [44]},
        "securityContext": {"seLinuxOptions": {"level": "s0:c26,c5"}},
        "template": {
            "secrets": ["tokens"],
            "volumes": ["nfs", "/mnt/weights"],
            "capabilities": [],
            "serviceAccounts": ["reader"],
            "root": True,
            "lockedMemory": True,
        },
    },
    "router": {
        **PROCESS_EXTRAS,
        "image": {"repository": "core", "digest": "sha256:" + "a" * 64},
        "apiKeysSecret": "keys",
        "cache": {"size": "4Gi", "credentialsSecret": "hub"},
        "autoscaling": {"enabled": True},
        "service": {
            "type": "LoadBalancer",
            "loadBalancerClass": "example.com/lb",
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "annotations": {"example.com/internal": "true"},
        },
    },
    "redis": {"enabled": True, **EXTRAS},
    "kvStore": {
        "enabled": True,
        "modelService": "llama",
        "namespace": "llm",
        "nvme": "100Gi",
        "storageClassName": "local",
        "extraArgs": ["--collect.after_s=1"],
        **EXTRAS,
    },
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}],
        "apiServer": {"peers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]},
        "modelSources": {"peers": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]},
        "extraEgress": [{"ports": [{"protocol": "TCP", "port": 3128}]}],
    },
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "alerts", "dashboard")},
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "prompts", "namespace": "{{ .Release.Namespace }}"},
            "data": {"prompts.jsonl": "{}"},
        },
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text, namespace: '{{ .Release.Namespace }}'}\ndata: {}\n",
    ],
}
VARIANTS: Final[dict[str, Json]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "two namespaces": {"namespaces": ["llm", "search"]},
    "tenants": {
        "tenants": [
            {"namespace": "llm", "models": ["llm/*", "common"], "credentialsSecret": "hub"},
            {"namespace": "search", "models": ["*"]},
        ],
        "redis": {"enabled": True},
        "kvStore": {"enabled": True, "modelService": "llama", "namespace": "llm"},
    },
    "tenants of a cluster's issuer": {
        "tenants": [{"namespace": "llm", "models": ["llm/*"]}],
        "kvKey": {"existingSecret": "key", "tenantsSecret": "keys"},
        "redis": {"existingSecret": "redis-url"},
        "tls": {"source": "certManager", "certManager": {"issuerRef": {"name": "company"}}},
    },
    "all namespaces": {"allNamespaces": True, "redis": {"enabled": True}},
    "a Redis elsewhere": {"redis": {"enabled": True, "url": "rediss://cache.example:6390/0"}},
    "a Redis in a Secret": {"redis": {"existingSecret": "redis-url", "existingSecretKey": "uri", "port": 6390}},
    "a store in memory": {"kvStore": {"enabled": True, "modelService": "demo"}},
    "Secrets of others": {
        "kvKey": {"existingSecret": "key"},
        "tls": {"source": "existing", "existingSecret": "certificates"},
    },
    "cert-manager": {"tls": {"source": "certManager"}},
    "a cluster's issuer": {
        "namespaces": ["llm"],
        "tls": {"source": "certManager", "certManager": {"issuerRef": {"name": "company"}}},
    },
    "users that the platform assigns": {"assignedUser": True, "redis": {"enabled": True}},
    "no TLS": {"tls": {"enabled": False}},
    "KEDA in plain text": {"tls": {"keda": False}},
    "no policies, rights, budgets": {
        "networkPolicy": {"enabled": False},
        "rbac": {"create": False},
        "operator": {"podDisruptionBudget": {"enabled": False}},
        "router": {"podDisruptionBudget": {"enabled": False}},
    },
    "nothing but the operator": {"router": {"enabled": False}},
    "nothing but routers": {"operator": {"enabled": False}},
    "everybody may scrape and nobody resolves": {
        "networkPolicy": {"monitoring": [], "keda": [], "dns": [], "modelSources": {"ports": []}}
    },
}


def render(values: Json | None = None, *, config: Any = None, upgrade: bool = False) -> list[Json]:
    """The objects of the chart. With a `config` of a cluster, `lookup` asks it."""
    with helm.Chart.load(CHART) as chart:
        asked = {"name": RELEASE, "namespace": NAMESPACE, "is_install": not upgrade, "is_upgrade": upgrade}
        asking = chart.render if config is None else partial(config.render, chart)
        found: dict[str, str] = asking(values or {}, **asked)
    texts = (text for name, text in sorted(found.items()) if name.endswith(".yaml"))
    return [obj for text in texts for obj in yaml.safe_load_all(text) if obj]


@cache
def rendered() -> dict[str, list[Json]]:
    """Every variant, once for all tests of this process; nobody changes them."""
    return {name: render(values) for name, values in VARIANTS.items()}


def notes(values: Json | None = None) -> str:
    """What Helm says after an installation."""
    with helm.Chart.load(CHART) as chart:
        found: dict[str, str] = chart.render(values or {}, name=RELEASE, namespace=NAMESPACE)
    return next(text for name, text in found.items() if name.endswith("NOTES.txt"))


def of_kind(objects: list[Json], kind: str, name: str | None = None) -> list[Json]:
    return [obj for obj in objects if obj["kind"] == kind and name in (None, obj["metadata"]["name"])]


def workloads(objects: list[Json]) -> list[Json]:
    """Everything with a pod template."""
    return [obj for obj in objects if "template" in obj.get("spec", {})]


def containers(workload: Json) -> list[Json]:
    spec = workload["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def selects(selector: Json | None, labels: Json) -> bool:
    """Whether a LabelSelector, or a plain mapping of labels, selects them."""
    asked = selector or {}
    plain = asked.get("matchLabels", {}) if {"matchLabels", "matchExpressions"} & asked.keys() else asked
    return all(labels.get(key) == value for key, value in plain.items()) and all(
        _matches(expression, labels) for expression in asked.get("matchExpressions", ())
    )


def _matches(expression: Json, labels: Json) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "In":
            return value in expression["values"]
        case other:
            raise AssertionError(f"no test knows the operator {other}")
