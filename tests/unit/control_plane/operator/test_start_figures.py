"""How long workers took to start is told by pool and stage, of the worker that became ready last."""

from typing import Any

from control_plane.operator.start_figures import start_figures
from tandem.kube.kinds import Json


def at(second: int) -> str:
    return f"2026-11-28T10:{second // 60:02}:{second % 60:02}Z"


def pod(name: str, ready: int, *, placed: int = 5, fetched: int = 50, began: int = 60, **more: Any) -> Json:
    """Created at 0. Its files are fetched from 10 on."""
    labels = {"tandem.dev/service": "a", "tandem.dev/pool": "decode", "tandem.dev/role": "decode", **more}
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed)},
        {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": at(ready or 1)},
    ]
    done = {"terminated": {"startedAt": at(10), "finishedAt": at(fetched)}}
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": labels, "creationTimestamp": at(0)},
        "status": {
            "conditions": conditions,
            "initContainerStatuses": [{"name": "own", "state": done}, {"name": "fetch", "state": done}],
            "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": at(began)}}}],
        },
    }


def test_the_newest_ready_worker_of_a_pool_counts() -> None:
    pods = [
        pod("old", 100),
        pod("new", 200, placed=15, fetched=70, began=80),
        pod("coming", 0, placed=40),
        pod("other", 300, **{"tandem.dev/service": "b"}),
        pod("follower", 300, **{"tandem.dev/role": ""}),
    ]
    del pods[-1]["metadata"]["labels"]["tandem.dev/role"]
    assert start_figures(pods, {"llm/a"}) == {
        ("llm/a", "decode", "schedule"): 15.0,
        ("llm/a", "decode", "fetch"): 60.0,
        ("llm/a", "decode", "start"): 120.0,
    }


def test_what_a_pod_does_not_say_is_not_told() -> None:
    bare = pod("a", 100)
    bare["status"].pop("initContainerStatuses")
    bare["status"]["containerStatuses"][0]["state"] = {"waiting": {}}
    assert start_figures([bare, {"metadata": {"name": "x"}}], {"llm/a"}) == {("llm/a", "decode", "schedule"): 5.0}
