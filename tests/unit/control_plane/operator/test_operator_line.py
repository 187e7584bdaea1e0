"""The line for new defaults at the operator: each look reads what has changed, not every service."""

import asyncio
from typing import Any

import pytest

from control_plane.objects.installation import Installation
from control_plane.observe.pods import PodLoad
from control_plane.operator import controller as controller_module
from control_plane.operator.applier import Applier
from control_plane.operator.controller import Controller, ControllerDeps
from control_plane.operator.mirror import Mirror, Watched
from control_plane.operator.models import KnownModels
from control_plane.rollout import Health
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.metrics import NullMeter
from tandem.kube.kinds import MODEL_SERVICE, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tests.worlds.loop_clock import LoopClock

SERVICES = 40


class Silence:
    """No routers."""

    def health(self, key: tuple[str, str], revision: str) -> Health:
        return Health()

    def loads(self, key: tuple[str, str]) -> dict[str, PodLoad]:
        return {}

    def routers(self, key: tuple[str, str]) -> dict[str, frozenset[str]]:
        return {}


def service(number: int, image: str = "one") -> Json:
    pools = [{"name": "both", "role": "unified", "replicas": 1, "image": image}]
    metadata = {"name": f"s{number:02}", "namespace": "n"}
    spec = {"engine": {"type": "simulated"}, "pools": pools}
    return {
        "apiVersion": MODEL_SERVICE.api_version,
        "kind": MODEL_SERVICE.kind,
        "metadata": metadata,
        "spec": spec,
    }


def test_a_look_finds_out_the_standing_of_those_that_have_changed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def waits(*told: Any) -> str:
        counted.append(told)
        return "waits"

    monkeypatch.setattr(controller_module, "state_of", waits)

    def turns(controller: Controller, number: int) -> tuple[int, int]:
        """Services before this one, and how many standings were found out for that."""
        counted.clear()
        observed = controller.observed(("n", f"s{number:02}"))
        assert observed is not None
        return observed.turns, len(counted)

    async def main(loop: VirtualLoop) -> None:
        clock, cluster, meter = LoopClock(loop), MemoryCluster(LoopClock(loop)), NullMeter()
        for number in range(SERVICES):
            await cluster.apply(service(number), "user")
        queue: WorkQueue[tuple[str, str]] = WorkQueue(clock)
        mirror = Mirror(cluster, Watched(), clock, SeededEntropy(1), queue.add)
        recorder = EventRecorder(cluster, clock, "tandem.dev/operator", "test")
        applier, installation = Applier(cluster, clock, recorder, meter), Installation(rollouts_at_once=2)
        controller = Controller(
            ControllerDeps(mirror, Silence(), KnownModels(None), applier, recorder, queue, clock, meter, installation)
        )
        task = asyncio.create_task(mirror.run())
        await asyncio.sleep(1)
        await mirror.synced()
        assert turns(controller, 30) == (29, SERVICES + 1), "its own, and all once"
        assert turns(controller, 31) == (30, 1), "its own"
        await cluster.apply(service(0, "two"), "user")
        await cluster.delete(Ref(MODEL_SERVICE, "n", "s01"))
        await asyncio.sleep(1)
        assert turns(controller, 31) == (29, 2), "its own, and the one that has changed"
        task.cancel()
        queue.close()

    run(main)
