"""The verdict of a gate, from its Job and the last words of its pods."""

import json
from collections.abc import Iterable
from typing import Any, Final

from control_plane.objects.gate import baseline_of
from control_plane.objects.names import GATE, labels_of
from control_plane.observe.observed import Gate
from control_plane.observe.pods import pod_of, seconds
from control_plane.rollout.model import GateResult
from tandem.kube.kinds import Json
from tandem.spec.rollout import TOO_DIFFERENT

_BY_POLICY: Final = "PodFailurePolicy"
"""Why a Job failed that fails by the exit status of a comparison that was made, and by nothing else."""
_OF_PODS_THAT_RAN: Final = ("ready", "terminating", "failed", "uncountedTerminatedPods")
"""What a Job's status has of pods that have run, or at least were no longer waited for."""


def read_gate(job: Json, pods: Iterable[Json]) -> Gate:
    """`pods` are all of this gate."""
    known = tuple(pods)
    failed = _conditions(job).get("Failed", {})
    ended = ": ".join(filter(None, (failed.get("reason", ""), failed.get("message", ""))))
    revision = labels_of(job)[GATE]
    status = job.get("status") or {}
    had_run = any(status.get(each) for each in _OF_PODS_THAT_RAN)
    return Gate(
        revision,
        baseline_of(job),
        _result(job, known),
        job,
        seconds(status.get("startTime")) or seconds(job["metadata"].get("creationTimestamp")) or 0.0,
        ended,
        tuple(pod_of(pod, "", revision) for pod in known),
        suspended=bool((job.get("spec") or {}).get("suspend")),
        had_pod=had_run or bool(status.get("active")),
        had_run=had_run,
    )


def _conditions(job: Json) -> dict[str, Json]:
    stated = (job.get("status") or {}).get("conditions") or ()
    return {each["type"]: each for each in stated if each.get("status") == "True"}


def _result(job: Json, pods: tuple[Json, ...]) -> GateResult:
    """The result of a gate's Job. A pod that could not ask its prompts says nothing about the answers: the Job tries
    again, and when it gives up nothing was compared."""
    conditions = _conditions(job)
    if "Complete" in conditions or (job.get("status") or {}).get("succeeded"):
        return "passed"
    failed = conditions.get("Failed")
    if any(_refused(pod) for pod in pods) or (failed is not None and failed.get("reason") == _BY_POLICY):
        return "failed"
    return "unknown" if failed is None else "not_compared"


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
