"""The Job that compares a new revision with the old one before it gets traffic, and what it asks them."""

from typing import Final

from control_plane.objects.gate_prompts import PROMPTS
from control_plane.objects.installation import Installation
from control_plane.objects.names import GATE, annotations_of, gate_name, owner_reference, service_labels
from control_plane.objects.pods import CONTAINER as WORKER
from control_plane.objects.pods import USER
from tandem.kube.kinds import CONFIG_MAP, JOB, Json
from tandem.spec.rollout import TOO_DIFFERENT, Gate
from tandem.spec.service import API_GROUP

BASELINE: Final = f"{API_GROUP}/gate-baseline"
"""Annotation with the revision that the new one is compared with."""
_DIRECTORY: Final = "/etc/tandem/gate"
_PROMPTS: Final = "prompts.jsonl"
_REPORT: Final = "/dev/termination-log"
_DEADLINE_S: Final = 1800
_TRIES: Final = 2
_CONTAINER: Final = "verify"
_PULLED_BY: Final = ("imagePullSecrets", "serviceAccountName", "nodeSelector", "tolerations")
"""What decides where the image of a pool's pods can be pulled, and by whose leave."""
_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}
"""A comparison holds prompts and answers and computes nothing; quotas want every container to say what it takes."""


def gate_job(
    owner: Json, gate: Gate, model: str, old: str, new: str, workers: Json, installation: Installation
) -> Json:
    """Asks the routers for the model in one revision and in the other. Its report is its termination message.

    `workers` is the pod template of a pool of the new revision: the comparison runs from the image of its worker,
    which the nodes of that pool have already."""
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    prompts = gate.prompts_config_map or gate_name(name, new)
    bounds = f"agreement={gate.agreement:g},kl={gate.kl:g}"
    url = installation.service_url
    container = {
        "name": _CONTAINER,
        **_image(workers),
        "command": ["python", "-m", "tandem.apps.cli", "verify", url, url],
        "args": [
            *("--model-a", f"{model}@{old}", "--model-b", f"{model}@{new}"),
            *("--prompts", f"{_DIRECTORY}/{_PROMPTS}", "--threshold", bounds, "--json", _REPORT),
        ],
        "env": _key(installation),
        "resources": _RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "prompts", "mountPath": _DIRECTORY, "readOnly": True}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    labels = {**service_labels(name), GATE: new}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            **({"runAsUser": USER} if "runAsUser" in (workers["spec"].get("securityContext") or {}) else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "prompts", "configMap": {"name": prompts}}],
        **{key: workers["spec"][key] for key in _PULLED_BY if key in workers["spec"]},
    }
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            "name": gate_name(name, new),
            "namespace": namespace,
            "labels": labels,
            "annotations": {BASELINE: old},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "backoffLimit": _TRIES,
            "podFailurePolicy": _failure_policy(),
            "activeDeadlineSeconds": _DEADLINE_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _image(workers: Json) -> Json:
    worker = next(each for each in workers["spec"]["containers"] if each["name"] == WORKER)
    return {key: worker[key] for key in ("image", "imagePullPolicy") if key in worker}


def _failure_policy() -> Json:
    """A comparison that was made is not made again; one whose node went away costs no try."""
    made = {"containerName": _CONTAINER, "operator": "In", "values": [TOO_DIFFERENT]}
    evicted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": made},
            {"action": "Ignore", "onPodConditions": [evicted]},
        ]
    }


def _key(installation: Installation) -> list[Json]:
    if installation.gate_key_secret is None:
        return []
    secret, _, key = installation.gate_key_secret.partition("/")
    source = {"secretKeyRef": {"name": secret, "key": key or "operator"}}
    return [{"name": "OPENAI_API_KEY", "valueFrom": source}]


def gate_prompts(owner: Json, new: str) -> Json:
    """The prompts that are asked where the service names none."""
    name = owner["metadata"]["name"]
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": gate_name(name, new),
            "namespace": owner["metadata"]["namespace"],
            "labels": {**service_labels(name), GATE: new},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": {_PROMPTS: "".join(f"{line}\n" for line in PROMPTS)},
    }


def baseline_of(job: Json) -> str:
    """The revision that a gate compares with."""
    return annotations_of(job).get(BASELINE, "")
