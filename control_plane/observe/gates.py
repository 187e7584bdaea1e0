"""The verdict of a gate, from its Job and the last words of its pods."""

import json
from collections.abc import Iterable
from typing import Any

from control_plane.objects.gate import baseline_of
from control_plane.objects.names import GATE, labels_of
from control_plane.observe.observed import Gate
from control_plane.rollout.model import GateResult
from tandem.kube.kinds import Json
from tandem.spec.rollout import TOO_DIFFERENT


def read_gate(job: Json, pods: Iterable[Json]) -> Gate:
    """`pods` are all of this gate."""
    return Gate(labels_of(job)[GATE], baseline_of(job), _result(job, pods), job)


def _result(job: Json, pods: Iterable[Json]) -> GateResult:
    """The result of a gate's Job. A pod that could not ask its prompts says nothing about the answers: the Job tries
    again, and only its end counts."""
    status = job.get("status") or {}
    ended = {each["type"] for each in status.get("conditions") or () if each.get("status") == "True"}
    if "Complete" in ended or status.get("succeeded"):
        return "passed"
    if any(_refused(pod) for pod in pods) or "Failed" in ended:
        return "failed"
    return "unknown"


def _refused(pod: Json) -> bool:
    """Whether the pod compared both sides and found them too different."""
    statuses: list[Any] = (pod.get("status") or {}).get("containerStatuses") or []
    ended = [each.get("state", {}).get("terminated") or {} for each in statuses]
    # An image of a version before this one says it in its last words alone.
    return any(each.get("exitCode") == TOO_DIFFERENT or _passed(each.get("message", "")) is False for each in ended)


def _passed(message: str) -> bool | None:
    """The verdict in a report; one that is cut off in the middle still has it."""
    try:
        report = json.loads(message)
    except ValueError:
        squeezed = "".join(message.split())
        return False if '"passed":false' in squeezed else True if '"passed":true' in squeezed else None
    return report.get("passed") if isinstance(report, dict) else None
