"""Why pods do not come up or do not stay up, each cause as one phrase that names pod, container and reason. Pure.

A phrase stays the same as long as its cause does, so that a status is written and an Event recorded once: it has no
counts and no times, it goes on naming the pod that it named before, and a reason that differs only in numbers, or
that the kubelet leaves out while it waits for its next try, stays as it was written.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from control_plane.observe.observed import Container, Gate, Observed, Pod, Workers
from control_plane.rollout import GateResult

UNPLACED_S: Final = 20.0
"""Seconds that a pod may wait for a node, or on it for its volumes, before that is reported."""
ATTACHED_S: Final = 300.0
"""The same for volumes that have to be attached or fetched."""
GATE_START_S: Final = 600.0
"""Seconds after which a comparison that something keeps from starting is given up."""
NO_ROOM: Final = "InsufficientCapacity"
HELD_UP: Final = " Held up: "
"""What stands in the message of a service before the causes for which its workers do not come up."""
_CAUSES_MAX: Final = 3
_DETAIL_MAX: Final = 160
_IMAGE_MAX: Final = 100
_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_PULLED: Final = re.compile(r"^.*?ErrImagePull: |^Back-off pulling image \S+$")
_CRASHES: Final = "CrashLoopBackOff"
_OUT_OF_MEMORY: Final = "OOMKilled"
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")
_NODES: Final = re.compile(r"^\d+/\d+ nodes are available[:.]? *")
_GENERATED: Final = re.compile(r'^pods "[^"]*" is ')
_USED: Final = re.compile(r", used: .*?(?=, limited: )")
"""What others in the namespace have changes all the time."""
_COUNT: Final = re.compile(r"(^|, )\d+ ")
_SEPARATOR: Final = "; "


@dataclass(frozen=True)
class Cause:
    """`reason` is one word, `place` names pod and container, `what` is what happens to it, `detail` why."""

    reason: str
    place: str
    what: str
    detail: str = ""

    @property
    def stem(self) -> str:
        return f"{self.place}: {self.what}"

    @property
    def phrase(self) -> str:
        """Without a full stop."""
        return f"{self.stem}: {self.detail}" if self.detail else self.stem


def pod_causes(pods: Iterable[Pod], before: str, now: float) -> tuple[Cause, ...]:
    """What keeps pods from working, worst first, each cause of a pool once. `before` is what was said of it last."""
    found: dict[tuple[int, str, str, str], Cause] = {}
    ailing = (pod for pod in pods if pod.failing or pod.unmounted_s is not None or pod.unplaced_s is not None)
    # Of several pods with one trouble the one is named that was named before, else the oldest.
    for pod in sorted(ailing, key=lambda pod: (_pod(pod) not in before, pod.created_s, pod.name)):
        for rank, cause in _of_pod(pod, now):
            found.setdefault((rank, pod.pool, cause.reason, cause.place.removeprefix(_pod(pod))), cause)
    return tuple(cause for _, cause in sorted(found.items(), key=lambda each: each[0]))


def worker_causes(
    observed: Observed, before: str, now: float, *, pool: str | None = None, revision: str | None = None
) -> tuple[Cause, ...]:
    """What keeps workers from coming up, of one pool and revision or of all; see `pod_causes`."""

    def asked(each: Pod | Workers) -> bool:
        return pool in (None, each.pool) and revision in (None, each.revision)

    refused = sorted((each for each in observed.workers if asked(each) and each.refused), key=_workload)
    pods = (pod for pod in (*observed.pods, *observed.followers) if asked(pod) and not pod.leaving)
    return (*(_refusal(each) for each in refused), *pod_causes(pods, before, now))


def _workload(workers: Workers) -> str:
    return f"{workers.object['kind']} {workers.object['metadata']['name']}"


def _refusal(workers: Workers) -> Cause:
    why = _USED.sub("", _GENERATED.sub("", workers.refused))
    return Cause("PodsRefused", _workload(workers), "the API server refuses its pods", _short(why))


def told(causes: Iterable[Cause], before: str) -> str:
    """The causes in one text without a full stop, bounded, and in the words of `before` where nothing is new."""
    known = phrases(before)
    return _SEPARATOR.join(_settled(cause, known) for cause in tuple(causes)[:_CAUSES_MAX])


def news(causes: Iterable[Cause], before: str) -> tuple[Cause, ...]:
    """The causes that `before` does not tell of."""
    known = phrases(before)
    return tuple(
        cause for cause in tuple(causes)[:_CAUSES_MAX] if not any(old.startswith(cause.stem) for old in known)
    )


def phrases(text: str) -> list[str]:
    """The causes in a text that `told` made."""
    return text.rstrip(".").split(_SEPARATOR) if text else []


def gate_causes(gate: Gate, before: str, now: float) -> tuple[Cause, ...]:
    """What keeps a gate from comparing."""
    found = pod_causes(gate.pods, before, now)
    absent = not (gate.pods or gate.had_pod or gate.suspended)
    if absent and not gate.ended and now - gate.since >= UNPLACED_S:
        refused = "it may not make a pod, as a quota or an admission policy can have it (kubectl describe job)"
        found += (Cause("PodsRefused", f"Job {gate.object['metadata']['name']}", refused),)
    return found


def gate_verdict(gate: Gate, before: str, now: float) -> tuple[GateResult, str]:
    """The result of a gate, and what keeps it from comparing. A gate that cannot start gives up long before its Job
    does, whose controller takes the pods away and the cause with them."""
    if gate.result not in ("unknown", "not_compared"):
        return gate.result, ""
    found = told(gate_causes(gate, before, now), before)
    if gate.result == "not_compared":
        return "not_compared", _SEPARATOR.join(filter(None, (found, _short(gate.ended)))) or "its Job failed"
    begun = gate.had_run or any(pod.ran for pod in gate.pods)
    if found and not begun and not gate.suspended and now - gate.since >= GATE_START_S:
        return "not_compared", found
    return "unknown", found


def cut(text: str, most: int, *, from_end: bool = False) -> str:
    """At most so many characters of a text, from its beginning or from its end."""
    if len(text) <= most:
        return text
    return f"…{text[1 - most :]}" if from_end else f"{text[: most - 1]}…"


def next_due_s(pods: Iterable[Pod], now: float) -> float | None:
    """Seconds until something is a cause that is none yet, and that nothing in the cluster will tell of."""
    dues = (due for pod in pods for due in (_unplaced_due(pod), _unmounted_due(pod)) if due is not None)
    return min((due - now for due in dues if due > now), default=None)


def _unplaced_due(pod: Pod) -> float | None:
    return None if pod.unplaced_s is None else pod.unplaced_s + UNPLACED_S


def _unmounted_due(pod: Pod) -> float | None:
    return None if pod.unmounted_s is None else pod.unmounted_s + (ATTACHED_S if pod.attaches else UNPLACED_S)


def _pod(pod: Pod) -> str:
    return f"Pod {pod.name}"


def _of_pod(pod: Pod, now: float) -> Iterator[tuple[int, Cause]]:
    """The pod's causes, each with its rank."""
    for container in pod.failing:
        yield _of_container(container, f"{_pod(pod)}, container {container.name}")
    due = _unmounted_due(pod)
    if due is not None and now >= due:
        needs = f"it needs {', '.join(pod.mounts)}" if pod.mounts else ""
        yield 5, Cause("VolumesNotMounted", _pod(pod), "its volumes or its network are not ready", _short(needs))
    due = _unplaced_due(pod)
    if due is not None and now >= due:
        yield 6, Cause(NO_ROOM, _pod(pod), "no node has room", _placing(pod.unplaced_why))


def _of_container(container: Container, place: str) -> tuple[int, Cause]:
    if container.waiting in _IMAGE:
        what = f"image {cut(container.image, _IMAGE_MAX, from_end=True)} cannot be pulled"
        why = _PULLED.sub("", container.waiting_why)
        return 1, Cause("ImageNotPulled", place, what, _short(why, from_end=True))
    if container.waiting and container.waiting != _CRASHES and not container.ended:
        return 2, Cause("ContainerNotStarted", place, container.waiting, _short(container.waiting_why))
    if container.ended == _OUT_OF_MEMORY:
        return 3, Cause(_OUT_OF_MEMORY, place, "it was killed for using more memory than its limit", _last(container))
    if not container.ended:
        return 4, Cause("ContainerCrashes", place, "it ends again and again")
    why = ": ".join(filter(None, (f"status {container.exit_code}", _last(container))))
    return 4, Cause("ContainerCrashes", place, "it ended", why)


def _last(container: Container) -> str:
    """The last line of what it said, which is where an error is."""
    lines = [line.strip() for line in container.last_words.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _placing(message: str) -> str:
    """Why a scheduler found no node, without numbers of nodes, which change as nodes come and go."""
    plain = _NODES.sub("", message.partition(" preemption:")[0].strip()).rstrip(".")
    return _short(_COUNT.sub(r"\1", plain))


def _short(text: str, *, from_end: bool = False) -> str:
    plain = " ".join(text.split()).replace(_SEPARATOR, ", ").rstrip(".")
    return cut(plain, _DETAIL_MAX, from_end=from_end)


def _settled(cause: Cause, known: Iterable[str]) -> str:
    old = next((each for each in known if each.startswith(cause.stem)), None)
    same = old is not None and (not cause.detail or _plain(old) == _plain(cause.phrase))
    return old if old is not None and same else cause.phrase


def _plain(text: str) -> str:
    return _NUMBERS.sub("", text)
