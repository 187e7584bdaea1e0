"""The status of a pod from that of its containers. Pure."""

from collections.abc import Sequence

from tandem.kube.kinds import Json

_WHY = "ContainersNotReady"


def phase(codes: Sequence[int | None], running: bool, policy: str) -> str:
    """Of the main containers: `codes` are exit codes, None of those that have not ended for good."""
    if any(code is None for code in codes) or policy == "Always":
        return "Running" if running else "Pending"
    return "Succeeded" if all(code == 0 for code in codes) else "Failed"


def conditions(
    old: Sequence[Json], initialized: bool, unready: Sequence[str], gates: Sequence[str], now: str
) -> list[Json]:
    """The conditions that a kubelet keeps; `gates` are of readiness, which others set. Times change with statuses."""
    held = {condition["type"]: condition for condition in old}
    open_gates = [gate for gate in gates if held.get(gate, {}).get("status") != "True"]
    contained = initialized and not unready
    told = {
        "PodReadyToStartContainers": (True, "", ""),
        "Initialized": (initialized, "ContainersNotInitialized", "init containers have not ended"),
        "ContainersReady": (contained, _WHY, f"containers with unready status: [{' '.join(unready)}]"),
        "Ready": (
            contained and not open_gates,
            "ReadinessGatesNotReady" if contained else _WHY,
            f"readiness gates not open: {open_gates}" if contained else f"unready containers: {list(unready)}",
        ),
    }
    return [_condition(held.get(kind), kind, *what, now) for kind, what in told.items()]


def _condition(old: Json | None, kind: str, holds: bool, reason: str, message: str, now: str) -> Json:
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old and old.get("status") == status and "lastTransitionTime" in old else now
    told = {} if holds else {"reason": reason, "message": message}
    return {"type": kind, "status": status, "lastTransitionTime": since, **told}
