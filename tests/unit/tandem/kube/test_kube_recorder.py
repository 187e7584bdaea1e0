"""Events: repeated ones are counted, and one object cannot write without bound."""

import asyncio

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.kube.kinds import EVENT, Json
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.recorder import EventRecorder
from tests.worlds.loop_clock import LoopClock

ABOUT: Json = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "llama", "namespace": "llm", "uid": "u-1"},
}


def test_the_same_event_is_counted_and_written_once_a_minute() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = MemoryCluster(LoopClock(loop))
        recorder = EventRecorder(cluster, LoopClock(loop), "tandem.dev/operator", "operator-0")
        for _ in range(120):
            await recorder.record(ABOUT, "Normal", "Progressing", "2 pods have yet to change.")
            await asyncio.sleep(1)
        await recorder.record(ABOUT, "Warning", "RolledBack", "x" * 5000)
        counted, other = sorted(cluster.objects(EVENT), key=lambda event: str(event["reason"]))
        assert counted["series"]["count"] == 61
        assert counted["regarding"]["uid"] == "u-1"
        assert other["type"] == "Warning"
        assert len(other["note"]) == 1024
        assert cluster.writes == 3

    run(main)


def test_an_object_that_flaps_has_a_budget() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = MemoryCluster(LoopClock(loop))
        recorder = EventRecorder(cluster, LoopClock(loop), "tandem.dev/operator", "operator-0")
        written = [await recorder.record(ABOUT, "Normal", "Scaled", f"to {number}") for number in range(40)]
        assert sum(written) == 25
        assert recorder.dropped == 15
        await asyncio.sleep(300)
        assert await recorder.record(ABOUT, "Normal", "Scaled", "to 41")

    run(main)
