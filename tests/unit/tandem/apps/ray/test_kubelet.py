"""Reports of workers as Pods, and what is deployed and deleted for them, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from router.discovery.pods import worker_of
from tandem.apps.ray.discovery_file import targets
from tandem.apps.ray.kubelet import MANAGER, SILENT_S, Kubelet
from tandem.apps.ray.operator_parts import HubObjects
from tandem.apps.ray.pods import NAMESPACE, pod_of, status_of
from tandem.apps.ray.serving import WorkerTold
from tandem.apps.simulation.loop import run
from tandem.kube.cluster import NotFound, Selector
from tandem.kube.kinds import MODEL_SERVICE, POD, SCALED_OBJECT, Json
from tests.worlds.loop_clock import LoopClock
from tests.worlds.memory_serving import MemoryServing

TOLD = WorkerTold(
    name="chat-1-d-1", service="chat", pool="d", role="decode", revision="1111111111", address="127.0.0.2:7000"
)


@dataclass
class Stage:
    """A kubelet over one service named `chat`. `clock` may be moved by hand: `skipped_s`."""

    cluster: HubObjects
    kubelet: Kubelet
    clock: "HandClock"
    said: list[str] = field(default_factory=list)

    @property
    def pods(self) -> list[Json]:
        return self.cluster.objects(POD)

    async def looks(self, seconds: float) -> None:
        """Look every half second for so long, as a hub does."""
        for _ in range(int(seconds * 2)):
            await self.kubelet.expire()
            await self.kubelet.look()
            await asyncio.sleep(0.5)


class HandClock(LoopClock):
    """Time as seen by a process that stood still for `skipped_s`."""

    skipped_s = 0.0

    def now(self) -> float:
        return super().now() + self.skipped_s


def story(tell: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = HandClock(asyncio.get_running_loop())
        cluster = HubObjects(clock)

        async def allowed() -> None: ...

        said: list[str] = []
        kubelet = Kubelet(cluster, MemoryServing(clock), clock, allowed, said.append)
        metadata = {"name": "chat", "namespace": NAMESPACE}
        await cluster.create({"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata})
        await tell(Stage(cluster, kubelet, clock, said))

    run(lambda _loop: main())


def ready(pod: Json) -> tuple[str, str]:
    (condition,) = pod["status"]["conditions"]
    return condition["status"], condition["lastTransitionTime"]


def test_a_worker_is_a_pod_that_routers_understand() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(msgspec.structs.replace(TOLD, address=""))
        (pod,) = stage.pods
        assert worker_of(pod) is None, "it does not listen yet"
        await stage.kubelet.report(TOLD)
        worker = worker_of(stage.pods[0])
        assert worker is not None
        assert (worker.address, worker.service, worker.pool) == ("tcp://127.0.0.2:7000", "ray/chat", "d")
        assert not worker.ready
        assert worker.drain_within_s is None

    story(tell)


def test_the_time_of_readiness_is_that_of_the_change() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(TOLD)
        await asyncio.sleep(2.0)
        await stage.kubelet.report(msgspec.structs.replace(TOLD, ready=True))
        first = ready(stage.pods[0])
        await asyncio.sleep(2.0)
        await stage.kubelet.report(msgspec.structs.replace(TOLD, ready=True, pid=7))
        assert ready(stage.pods[0]) == first
        assert first[0] == "True"

    story(tell)


def test_every_rank_of_a_gang_is_a_member_that_says_which_it_is() -> None:
    async def tell(stage: Stage) -> None:
        for rank in range(2):
            metrics = f"127.0.0.2:900{rank}"
            await stage.kubelet.report(
                msgspec.structs.replace(TOLD, name=f"chat-{rank}", gang="g", rank=rank, metrics=metrics)
            )
        assert [each.rank for each in stage.kubelet.members()] == [0, 1]
        assert targets(stage.kubelet.members()).count(b"127.0.0.2:900") == 2
        assert len(stage.pods) == 1

    story(tell)


def test_an_unchanged_report_writes_nothing() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(TOLD)
        writes = stage.cluster.writes
        for _ in range(3):
            await stage.kubelet.report(TOLD)
        assert stage.cluster.writes == writes

    story(tell)


def test_a_report_that_was_broken_off_is_taken_over_by_the_next_one() -> None:
    async def tell(stage: Stage) -> None:
        told = msgspec.structs.replace(TOLD, ready=True)
        for turns in range(1, 4):
            each = msgspec.structs.replace(told, name=f"chat-1-d-{turns}")
            reporting = asyncio.create_task(stage.kubelet.report(each))
            for _ in range(turns):
                await asyncio.sleep(0)
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await stage.kubelet.report(each)
            assert ready(stage.pods[-1])[0] == "True"

    story(tell)


def test_a_worker_that_leaves_is_a_pod_that_is_being_deleted() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(TOLD)
        leaving = msgspec.structs.replace(TOLD, leaving_s=12.0)
        await stage.kubelet.report(leaving)
        (pod,) = stage.pods
        assert "deletionTimestamp" in pod["metadata"]
        worker = worker_of(pod)
        assert worker is not None
        assert worker.drain_within_s == 12.0
        await stage.kubelet.report(leaving)
        assert stage.pods
        await stage.kubelet.report(msgspec.structs.replace(leaving, gone=True))
        assert not stage.pods
        await stage.kubelet.report(leaving)
        assert not stage.pods, "a report that comes late brings nobody back"

    story(tell)


def test_silence_ends_a_pod_and_a_report_brings_it_back() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(TOLD)
        await stage.looks(SILENT_S)
        assert stage.pods
        await stage.looks(1.0)
        assert not stage.pods
        assert any(TOLD.name in each for each in stage.said)
        await stage.kubelet.report(TOLD)
        assert stage.pods

    story(tell)


def test_a_hub_that_stood_still_holds_it_against_nobody() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(TOLD)
        await stage.kubelet.expire()
        stage.clock.skipped_s = 60.0
        await stage.kubelet.expire()
        assert stage.pods
        await stage.looks(SILENT_S + 1.0)
        assert not stage.pods

    story(tell)


def test_only_the_first_rank_of_a_gang_is_a_pod() -> None:
    async def tell(stage: Stage) -> None:
        await stage.kubelet.report(msgspec.structs.replace(TOLD, name="follower", gang="g", rank=1))
        assert not stage.pods
        await stage.kubelet.report(msgspec.structs.replace(TOLD, gang="g"))
        assert [pod["metadata"]["name"] for pod in stage.pods] == [TOLD.name]

    story(tell)


def test_a_worker_of_no_service_is_no_pod_and_is_not_known() -> None:
    async def tell(stage: Stage) -> None:
        other = msgspec.structs.replace(TOLD, service="nobody")
        await stage.kubelet.look()
        assert not await stage.kubelet.report(other)
        assert not stage.pods

    story(tell)


def test_restored_pods_have_their_time_to_report() -> None:
    async def tell(stage: Stage) -> None:
        await stage.cluster.apply(pod_of(TOLD), MANAGER)
        await stage.cluster.apply_status(status_of(TOLD, None, "2027-01-01T00:00:00Z"), MANAGER)
        stage.kubelet.adopt()
        await stage.looks(SILENT_S)
        assert stage.pods
        await stage.looks(1.0)
        assert not stage.pods

    story(tell)


def test_kinds_of_keda_are_not_there() -> None:
    async def tell(stage: Stage) -> None:
        with pytest.raises(NotFound):
            await stage.cluster.list_page(Selector(SCALED_OBJECT), 1)
        assert (await stage.cluster.list_page(Selector(MODEL_SERVICE), 1)).items

    story(tell)
