"""The operator against a cluster in memory: what users see of its rollouts, and what it leaves alone."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from control_plane.objects.names import POOL, REVISION, labels_of
from tandem.apps.simulation.loop import run
from tandem.kube.cluster import Selector
from tandem.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    JOB,
    MODEL_SERVICE,
    POD,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SERVICE,
    TRIGGER_AUTHENTICATION,
    Json,
    Kind,
    Ref,
)
from tests.worlds.operator_world import NAME, NAMESPACE, NEVER_READY, NO_ROOM, REFUSED, WRONG, World, notes

CHILDREN = (CONFIG_MAP, CONTROLLER_REVISION, DEPLOYMENT, ENGINE_POOL, JOB, POD, POD_DISRUPTION_BUDGET, SERVICE)
Story = Callable[[World], Awaitable[None]]


def in_world(story: Story, **given: Any) -> None:
    """Tell a story on virtual time, from a service that is up."""

    async def told() -> None:
        world = World(**given)
        try:
            await world.submit()
            await world.settle()
            assert world.condition("Ready")["status"] == "True", world.object["status"]
            await story(world)
        finally:
            await world.close()

    run(lambda _loop: told())


def images(world: World) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.pods()}


def new_image(image: str, **rollout: Any) -> Callable[[Json], None]:
    def change(spec: Json) -> None:
        for pool in spec["pools"]:
            pool["image"] = image
        spec["rollout"] |= rollout

    return change


def test_a_service_gets_its_objects_and_then_peace() -> None:
    async def story(world: World) -> None:
        assert len(world.pods("prefill", ready=True)) == 2
        assert len(world.pods("decode", ready=True)) == 3
        assert {kind.kind: len(world.of(kind)) for kind in CHILDREN} == {
            "ConfigMap": 2,
            "ControllerRevision": 1,
            "Deployment": 2,
            "EnginePool": 2,
            "Job": 0,
            "Pod": 5,
            "PodDisruptionBudget": 2,
            "Service": 2,
        }
        asked = world.cluster.asked
        assert asked <= 25, "11 objects, events, and of three of them what they become"
        await world.run(1200)
        world.crash()
        await world.run(300)
        assert world.cluster.asked == asked, "neither time nor a new operator is a reason to write"
        assert notes(world).count("Complete") == 1

    in_world(story)


def test_a_new_service_of_one_pool_costs_seven_writes_with_the_users_own_and_one_event() -> None:
    async def told() -> None:
        world = World()
        world.spec["pools"] = [{"name": "all", "role": "unified", "replicas": 0, "image": "one"}]
        try:
            await world.submit()
            await world.settle()
            assert world.condition("Ready")["reason"] == "ScaledToZero"
            assert len(notes(world)) == 1
            assert world.cluster.asked <= 6 + len(notes(world))
        finally:
            await world.close()

    run(lambda _loop: told())


def test_everything_goes_with_its_service() -> None:
    async def story(world: World) -> None:
        await world.cluster.delete(Ref(MODEL_SERVICE, NAMESPACE, NAME))
        await world.run(60)
        assert not any(world.of(kind) for kind in CHILDREN)

    in_world(story)


def test_a_new_revision_replaces_the_old_one_without_a_gap() -> None:
    async def story(world: World) -> None:
        gaps: list[str] = []

        def watch() -> None:
            if not world.reachable():
                gaps.append(f"{world.clock.now()}: no revision can be reached")
            gaps.extend(
                f"{pool} has {world.available(pool)}"
                for pool, least in (("prefill", 2), ("decode", 3))
                if world.available(pool) < least
            )

        world.cluster.seen = watch
        await world.edit(new_image("two"))
        await world.settle()
        assert gaps == []
        assert images(world) == {"two"}
        assert len(world.of(DEPLOYMENT)) == 2, "nothing of the old revision is left but its record"
        assert len(world.of(CONTROLLER_REVISION)) == 2
        assert world.status.update_revision == ""

    in_world(story)


def test_applying_the_old_specification_again_brings_its_revision_back() -> None:
    async def story(world: World) -> None:
        first = world.status.current_revision
        await world.edit(new_image("two"))
        await world.settle()
        await world.edit(new_image("one"))
        await world.settle()
        assert world.status.current_revision == first
        assert images(world) == {"one"}
        assert len(world.of(CONTROLLER_REVISION)) == 2

    in_world(story)


def test_a_weight_holds_a_rollout_until_it_is_raised() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image("two", weight=30))
        await world.settle()
        assert world.condition("Ready")["reason"] == "WeightReached"
        assert world.condition("Ready")["status"] == "True"
        weights = {each.name: each.weight for each in world.status.revisions}
        assert 0 < weights[world.status.update_revision] <= 30
        await world.edit(lambda spec: spec["rollout"].update(weight=100))
        await world.settle()
        assert images(world) == {"two"}

    in_world(story)


def test_a_revision_that_does_not_start_is_taken_back() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image(NEVER_READY))
        await world.settle(quiet_s=400)
        assert world.condition("Stalled")["reason"] == "RolledBack"
        assert world.condition("Available")["status"] == "True"
        assert images(world) == {"one"}
        assert "RolledBack" in notes(world)
        await world.edit(new_image("two"))
        await world.settle()
        assert world.condition("Ready")["status"] == "True"
        assert images(world) == {"two"}

    in_world(story)


def test_a_revision_whose_answers_fail_is_taken_back() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image(WRONG))
        await world.settle()
        assert world.condition("Stalled")["reason"] == "RolledBack"
        assert "requests failed" in world.condition("Stalled")["message"] or "failed" in str(world.status.rollout)
        assert images(world) == {"one"}

    in_world(story)


def test_a_gate_lets_the_good_pass_and_stops_the_others_before_traffic() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image("two", gate={"agreement": 0.9}))
        await world.settle()
        assert images(world) == {"two"}
        assert world.of(JOB) == [], "a gate that is over is cleared away"
        shifts = notes(world).count("TrafficShifted")
        await world.edit(new_image(REFUSED))
        await world.settle()
        assert world.condition("Stalled")["reason"] == "RolledBack"
        assert images(world) == {"two"}
        assert notes(world).count("TrafficShifted") == shifts, "it never had traffic"

    in_world(story)


def test_pools_can_be_added_and_removed() -> None:
    async def story(world: World) -> None:
        gaps: list[float] = []
        world.cluster.seen = lambda: None if world.reachable() else gaps.append(world.clock.now())
        await world.edit(lambda spec: spec["pools"].append({"name": "both", "role": "unified", "replicas": 1}))
        await world.settle()
        assert {labels_of(pod)[POOL] for pod in world.pods(ready=True)} == {"prefill", "decode", "both"}
        await world.edit(lambda spec: spec.update(pools=[spec["pools"][-1]]))
        await world.settle()
        assert {labels_of(pod)[POOL] for pod in world.pods()} == {"both"}
        assert len(world.of(ENGINE_POOL)) == 1
        assert gaps == [], "what serves is not taken before something else can"

    in_world(story)


def test_who_scales_a_pool_has_its_replicas() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["pools"][1].pop("replicas"))
        await world.settle()
        assert len(world.pods("decode")) == 3, "handing over keeps what there is"
        await world.scale("decode", 5)
        await world.settle()
        assert len(world.pods("decode", ready=True)) == 5
        revision = world.status.current_revision
        await world.edit(lambda spec: spec["pools"][1].update(replicas=1))
        await world.settle()
        assert len(world.pods("decode", ready=True)) == 1
        assert world.status.current_revision == revision

    in_world(story)


def test_a_scaled_object_is_there_while_the_pool_is_scaled_by_load() -> None:
    def automatic(spec: Json) -> None:
        for pool in spec["pools"]:
            pool.pop("replicas", None)
            pool["autoscaling"] = {"minReplicas": 0, "maxReplicas": 4, "idleAfterSeconds": 60}

    def by_hand(spec: Json) -> None:
        for pool in spec["pools"]:
            del pool["autoscaling"]

    async def story(world: World) -> None:
        await world.edit(automatic)
        await world.settle()
        assert {obj["spec"]["minReplicaCount"] for obj in world.of(SCALED_OBJECT)} == {0}
        for pool in ("prefill", "decode"):
            await world.scale(pool, 0)
        await world.settle()
        assert world.pods() == []
        assert world.condition("Available")["reason"] == "ScaledToZero"
        for pool in ("prefill", "decode"):
            await world.scale(pool, 1)
        await world.settle()
        assert world.condition("Ready")["status"] == "True"
        await world.edit(by_hand)
        await world.settle()
        assert world.of(SCALED_OBJECT) == []

    in_world(story, lacks=frozenset[Kind]())


def test_keda_and_the_scaler_know_each_other_by_the_certificate_of_the_installation() -> None:
    def automatic(spec: Json) -> None:
        for pool in spec["pools"]:
            pool.pop("replicas", None)
            pool["autoscaling"] = {"minReplicas": 0, "maxReplicas": 4, "idleAfterSeconds": 60}

    def by_hand(spec: Json) -> None:
        for pool in spec["pools"]:
            del pool["autoscaling"]

    async def story(world: World) -> None:
        await world.close()
        world.installation = replace(world.installation, tls_secret="tandem-tls", scaler_secure=True)
        await world.edit(automatic)
        await world.settle()
        known = {obj["metadata"]["name"]: obj["spec"] for obj in world.of(TRIGGER_AUTHENTICATION)}
        scaled = world.of(SCALED_OBJECT)
        assert len(scaled) == len(known) == 2
        for obj in scaled:
            (trigger,) = obj["spec"]["triggers"]
            assert trigger["metadata"]["enableTLS"] == "true"
            assert trigger["authenticationRef"] == {"name": obj["metadata"]["name"]}
            references = known[obj["metadata"]["name"]]["secretTargetRef"]
            assert {each["parameter"]: (each["name"], each["key"]) for each in references} == {
                "caCert": ("tandem-tls", "ca.crt"),
                "tlsClientCert": ("tandem-tls", "tls.crt"),
                "tlsClientKey": ("tandem-tls", "tls.key"),
            }
        await world.edit(by_hand)
        await world.settle()
        assert world.of(SCALED_OBJECT) == world.of(TRIGGER_AUTHENTICATION) == []

    in_world(story, lacks=frozenset[Kind]())


def test_pods_without_a_node_are_told_of() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image(NO_ROOM, progressDeadlineSeconds=3000))
        await world.run(400)
        ready = world.condition("Ready")
        assert ready["reason"] == "InsufficientCapacity"
        assert "no node has room for 1 pods (0/2 nodes are available)" in ready["message"]
        assert world.condition("Available")["status"] == "True"

    in_world(story)


def test_the_history_has_a_limit() -> None:
    async def story(world: World) -> None:
        for number in range(5):
            await world.edit(new_image(f"image-{number}", revisionHistoryLimit=2))
            await world.settle(quiet_s=30)
        kept = {labels_of(obj)[REVISION] for obj in world.of(CONTROLLER_REVISION)}
        assert len(kept) == 3
        assert world.status.current_revision in kept

    in_world(story)


def test_idle_workers_go_first() -> None:
    async def story(world: World) -> None:
        busy = world.pods("decode")[0]["metadata"]["name"]
        world.routers.running = {busy: 7}
        await world.edit(lambda spec: spec["pools"][1].update(replicas=1))
        await world.settle()
        assert [pod["metadata"]["name"] for pod in world.pods("decode")] == [busy]

    in_world(story)


def test_what_others_change_is_put_right() -> None:
    async def story(world: World) -> None:
        await world.cluster.scale(Ref(DEPLOYMENT, NAMESPACE, world.of(DEPLOYMENT)[0]["metadata"]["name"]), 9)
        await world.settle()
        assert len(world.pods("decode")) == 3
        page = await world.cluster.list_page(Selector(SERVICE, NAMESPACE), 10)
        await world.cluster.delete(Ref(SERVICE, NAMESPACE, page.items[0]["metadata"]["name"]))
        await world.settle()
        assert len(world.of(SERVICE)) == 2

    in_world(story)
