"""Which changes of a status can wait for others: while pods come and go, counts change many times a second. Pure.

Everything that triggers an action is written at once: conditions, weights, what a rollout must not forget. The first
status of an object that only says that its parts are being made waits, too: mostly the next look has a better one.
"""

from typing import Any, Final

from tandem.kube.kinds import Json

INTERIM_AFTER_S: Final = 1.0
"""What can wait is written so long after the first such change, all together. The last one always is."""
_COUNTS: Final = (
    "observedGeneration",
    "pools",
    "readyWorkers",
    "wantedWorkers",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "drainingReplicas",
    "load",
)
_BEGINS: Final = "Progressing"
_PROGRESS: Final = ("aim", "wanted", "left", "since")


def interim(before: Json | None, after: Json) -> bool:
    """Whether two objects' statuses differ in counts, sentences and times alone, or the first one only says that the
    object is on its way."""
    told: Json = (before or {}).get("status") or {}
    return _essence(told) == _essence(after["status"]) if told else _only_begins(after["status"])


def _only_begins(status: Json) -> bool:
    reasons = {each["type"]: each["reason"] for each in _listed(status, "conditions")}
    weighed = any(each.get("weight") for each in _listed(status, "revisions"))
    return reasons.get("Ready") == _BEGINS and not weighed


def _essence(status: Json) -> Json:
    """The status without counts, sentences and times. Lists of named things become mappings, since the API server
    keeps them in an order of its own."""
    found: Json = {key: value for key, value in status.items() if key not in _COUNTS}
    rollout: Json = found.get("rollout") or {}
    found["rollout"] = {key: value for key, value in rollout.items() if key not in _PROGRESS}
    found["conditions"] = {each["type"]: (each["status"], each["reason"]) for each in _listed(status, "conditions")}
    revisions = _listed(status, "revisions")
    found["revisions"] = {each["name"]: each for each in revisions if each.get("weight")}
    return found


def _listed(status: Json, name: str) -> list[Any]:
    found: list[Any] = status.get(name) or []
    return found
