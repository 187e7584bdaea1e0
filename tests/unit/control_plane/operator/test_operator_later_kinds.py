"""Kinds that come to the cluster after the operator, or go before it: settled services use them, and do without
them, and nobody touches the services."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from control_plane.operator.mirror import Mirror, Watched
from tandem.apps.simulation.loop import run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector
from tandem.kube.kinds import (
    CUSTOM_RESOURCE,
    ENGINE_POOL,
    EVENT,
    MODEL_SERVICE,
    SCALED_OBJECT,
    TRIGGER_AUTHENTICATION,
    Json,
    Kind,
)
from tandem.kube.memory_cluster import MemoryCluster
from tests.worlds.crashing_cluster import CrashingCluster
from tests.worlds.loop_clock import LoopClock
from tests.worlds.operator_world import NAME, World

KEDA = json.loads((Path(__file__).parents[3] / "cluster" / "data" / "keda_scaled_objects.json").read_text())
"""Which fields a ScaledObject has in versions of KEDA."""


def scale_decode(spec: Json) -> None:
    decode = next(pool for pool in spec["pools"] if pool["name"] == "decode")
    del decode["replicas"]
    decode["autoscaling"] = {"minReplicas": 1, "maxReplicas": 4}


def in_world(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            scale_decode(world.spec)
            await world.submit()
            await world.settle()
            await story(world)
        finally:
            await world.close()

    run(lambda _loop: main())


def definition(schema: Json) -> Json:
    """KEDA's definition of ScaledObject, with this schema."""
    version = {"name": SCALED_OBJECT.version, "served": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": CUSTOM_RESOURCE.api_version,
        "kind": CUSTOM_RESOURCE.kind,
        "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {"group": SCALED_OBJECT.group, "versions": [version]},
    }


def test_scaled_objects_follow_the_version_of_keda_that_is_there() -> None:
    async def story(world: World) -> None:
        def behavior() -> Json:
            (obj,) = world.of(SCALED_OBJECT)
            found: Json = obj["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
            return found

        def said() -> Json:
            pool = next(each for each in world.of(ENGINE_POOL) if each["metadata"]["name"] == f"{NAME}-decode")
            return next(each for each in pool["status"]["conditions"] if each["type"] == "ScalingActive")

        await MemoryCluster.apply(world.cluster, definition(KEDA["2.17.2"]), "keda")
        world.cluster.lacks = frozenset()
        await world.run(130)
        assert behavior() == {"stabilizationWindowSeconds": 0}
        assert said()["status"] == "True"
        assert (
            "behavior.scaleUp.tolerance, which it does not know: scaling is exact from 2.18 on" in said()["message"]
        )
        # KEDA is upgraded, and nobody touches the service.
        await MemoryCluster.apply(world.cluster, definition(KEDA["2.20.2"]), "keda")
        await world.run(130)
        assert behavior() == {"stabilizationWindowSeconds": 0, "tolerance": "0"}
        assert said()["message"] == "KEDA asks for the number of workers."
        await MemoryCluster.apply(world.cluster, definition({"type": "object", "properties": {}}), "keda")
        await world.run(130)
        assert (said()["status"], said()["reason"]) == ("False", "KedaTooOld")
        assert failures(world) == 0

    in_world(story)


def scaled(world: World) -> list[str]:
    return [each["metadata"]["name"] for each in world.of(SCALED_OBJECT)]


def of_decode(world: World) -> tuple[int, dict[str, tuple[str, str]]]:
    """How many workers its EnginePool asks for, and its conditions."""
    pool = next(each for each in world.of(ENGINE_POOL) if each["metadata"]["name"] == f"{NAME}-decode")
    conditions = {each["type"]: (each["status"], each["reason"]) for each in pool["status"]["conditions"]}
    return pool["spec"]["replicas"], conditions


def failures(world: World) -> int:
    """How often a look at a service failed."""
    failed = [event for event in world.of(EVENT) if event["reason"] == "ReconcileFailed"]
    return sum(event.get("series", {}).get("count", 1) for event in failed)


def test_a_kind_that_is_defined_anew_has_its_objects_again() -> None:
    async def story(world: World) -> None:
        world.cluster.lacks = frozenset()
        await world.run(120.0)
        await world.cluster.remove_kind(SCALED_OBJECT)
        await world.run(4.0)
        world.cluster.lacks = frozenset()
        await world.run(10.0)
        assert scaled(world) == [f"{NAME}-decode"]

    in_world(story)


def test_keda_that_is_installed_later_is_asked_for_services_that_are_settled() -> None:
    async def story(world: World) -> None:
        assert scaled(world) == []
        world.cluster.lacks = frozenset()
        await world.run(120.0)
        assert scaled(world) == [f"{NAME}-decode"]

    in_world(story)


def test_without_keda_again_pools_are_as_they_were_before_it() -> None:
    async def story(world: World) -> None:
        await world.scale("decode", 2)
        await world.settle()
        before = of_decode(world)
        assert before[1]["ScalingActive"] == ("False", "NoKeda")
        for _ in range(2):
            world.cluster.lacks = frozenset()
            await world.run(120.0)
            assert of_decode(world)[1]["ScalingActive"] == ("True", "Keda")
            await world.cluster.remove_kind(SCALED_OBJECT)
            await world.run(30.0)
            assert of_decode(world) == before
            assert world.condition("Ready")["status"] == "True"
            assert failures(world) == 0, "a kind that goes is no fault of the service's"
            told = len(world.of(EVENT))
            await world.settle(quiet_s=400.0)
            assert of_decode(world) == before
            assert len(world.of(EVENT)) == told
        await world.scale("decode", 3)
        await world.settle()
        assert of_decode(world)[0] == 3
        assert world.available("decode") == 3

    in_world(story)


def mirrored(story: Callable[[CrashingCluster, Mirror, list[tuple[str, str]]], Awaitable[None]]) -> None:
    """A mirror of a cluster with every kind, and what it has told to be looked at."""

    async def main() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        cluster, told = CrashingCluster(clock), list[tuple[str, str]]()
        mirror = Mirror(cluster, Watched(("a", "b")), clock, SeededEntropy(1), told.append)
        running = asyncio.create_task(mirror.run())
        try:
            await asyncio.sleep(1.0)
            await mirror.synced()
            await story(cluster, mirror, told)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(lambda _loop: main())


def service(namespace: str) -> Json:
    metadata = {"name": "s", "namespace": namespace}
    return {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": {}}


def test_a_mirror_stays_right_when_a_kind_goes_and_comes_again() -> None:
    async def story(cluster: CrashingCluster, mirror: Mirror, told: list[tuple[str, str]]) -> None:
        for namespace in ("a", "b"):
            await cluster.apply(service(namespace), "user")
        await cluster.remove_kind(SCALED_OBJECT)
        await asyncio.sleep(5.0)
        assert SCALED_OBJECT in mirror.stores("a"), "a moment without a kind says nothing"
        told.clear()
        await asyncio.sleep(15.0)
        assert all(SCALED_OBJECT not in mirror.stores(namespace) for namespace in ("a", "b"))
        assert sorted(set(told)) == [("a", "s"), ("b", "s")]
        for _ in range(15):
            await asyncio.sleep(60.0)
            cluster.bookmark()
            assert mirror.problem() is None
        cluster.lacks = frozenset()
        told.clear()
        await asyncio.sleep(65.0)
        assert all(SCALED_OBJECT in mirror.stores(namespace) for namespace in ("a", "b"))
        assert sorted(set(told)) == [("a", "s"), ("b", "s")]
        assert mirror.problem() is None

    mirrored(story)


def test_a_kind_that_is_missing_for_a_moment_is_mirrored_on() -> None:
    async def story(cluster: CrashingCluster, mirror: Mirror, told: list[tuple[str, str]]) -> None:
        before = mirror.stores("a")[SCALED_OBJECT]
        for _ in range(10):
            await cluster.remove_kind(SCALED_OBJECT)
            await asyncio.sleep(4.0)
            cluster.lacks = frozenset()
            await asyncio.sleep(10.0)
        assert mirror.stores("a")[SCALED_OBJECT] is before

    mirrored(story)


def test_what_every_cluster_has_is_missed_and_not_let_go() -> None:
    async def story(cluster: CrashingCluster, mirror: Mirror, told: list[tuple[str, str]]) -> None:
        await cluster.remove_kind(MODEL_SERVICE)
        for _ in range(6):
            await asyncio.sleep(60.0)
            cluster.bookmark()
        assert "nothing was heard of modelservices" in (mirror.problem() or "")

    mirrored(story)


def test_a_kind_that_goes_while_it_is_waited_for_holds_nobody_up() -> None:
    async def main() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        cluster = _Vanishing(clock, {SCALED_OBJECT: 0.0, TRIGGER_AUTHENTICATION: 5.0})
        mirror = Mirror(cluster, Watched(), clock, SeededEntropy(1), lambda _key: None)
        running = asyncio.create_task(mirror.run())
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60.0):
            await mirror.synced()
        assert not {SCALED_OBJECT, TRIGGER_AUTHENTICATION} & mirror.stores("a").keys()
        assert mirror.problem() is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(lambda _loop: main())


class _Vanishing(CrashingCluster):
    """Some kinds are seen once; then nobody answers for so many seconds, and then they are not there."""

    def __init__(self, clock: LoopClock, silent_s: Mapping[Kind, float]) -> None:
        super().__init__(clock)
        self._now = clock.now
        self._silent_s = silent_s
        self._seen: dict[Kind, float] = {}

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        kind = selector.kind
        if kind not in self._seen and kind in self._silent_s:
            self._seen[kind] = self._now()
        elif kind in self._seen:
            if self._now() < self._seen[kind] + self._silent_s[kind]:
                raise TandemError("link_lost", "the server is away")
            self.lacks |= {kind}
        page: Page = await super().list_page(selector, limit, token)
        return page
