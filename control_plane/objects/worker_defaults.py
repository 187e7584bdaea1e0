"""What an installation gives to each worker pod where its pool's template says nothing."""

from typing import Any, Final

import msgspec

from control_plane.objects.merging import merged
from tandem.kube.kinds import Json

_ASSIGNED: Final[Json] = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))


class WorkerDefaults(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Parts of a pod, in Kubernetes' own words. A change makes a new revision of every service."""

    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}
    runtime_class_name: str = ""
    priority_class_name: str = ""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Besides those that pools have for their accelerators."""
    resources: dict[str, Any] = {}
    """Of the container `worker`, under what accelerators and networks ask for."""
    pod_security_context: dict[str, Any] = {}
    security_context: dict[str, Any] = {}
    """Of every container."""
    assigned_user: bool = False
    """The platform gives each namespace its users, as OpenShift does: no user, group or fsGroup is set."""

    @property
    def plain(self) -> Json:
        """What is not as it is by default, as plain values."""
        found: Json = msgspec.json.decode(msgspec.json.encode(self))
        return found

    def over(self, template: Json, container: str) -> Json:
        """The pod template with these defaults over it; `container` is the worker's name."""
        spec = template["spec"]
        security = {**(_ASSIGNED if self.assigned_user else {}), **self.pod_security_context}
        patch: Json = {
            "runtimeClassName": self.runtime_class_name,
            "priorityClassName": self.priority_class_name,
            "tolerations": [*spec.get("tolerations", ()), *self.tolerations] if self.tolerations else [],
            "securityContext": security,
            "containers": [{"name": container, "resources": self.resources}] if self.resources else [],
        }
        metadata = {"labels": self.pod_labels, "annotations": self.pod_annotations}
        found: Json = merged(
            template, {"metadata": metadata, "spec": {key: each for key, each in patch.items() if each}}
        )
        return found
