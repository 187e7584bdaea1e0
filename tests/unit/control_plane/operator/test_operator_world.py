"""The operator against a cluster in memory: what users see of its rollouts, and what it leaves alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from control_plane.objects.names import POOL, REVISION, labels_of
from control_plane.objects.names import SERVICE as OF
from control_plane.objects.worker_defaults import WorkerDefaults
from control_plane.observe.observed import ModelFacts
from control_plane.reconcile.pool_status import LOAD_EVERY_S
from tandem.apps.simulation.loop import run
from tandem.core.sizing import Shape
from tandem.kube.cluster import Selector
from tandem.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    EVENT,
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
from tandem.spec.status import WORD_MAX
from tests.worlds.operator_world import NAME, NAMESPACE, NEVER_READY, NO_ROOM, REFUSED, TROUBLES, WRONG, World, notes

CHILDREN = (CONFIG_MAP, CONTROLLER_REVISION, DEPLOYMENT, ENGINE_POOL, JOB, POD, POD_DISRUPTION_BUDGET, SERVICE)
SMALL = ({"name": "prefill", "role": "prefill", "replicas": 1}, {"name": "decode", "role": "decode", "replicas": 1})
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


def test_a_rollback_is_recorded_however_much_there_is_to_say_of_it() -> None:
    async def story(world: World) -> None:
        image = f"registry.example/{'team/' * 60}no-registry"
        pools = [*world.spec["pools"], {"name": "a-pool-of-long-name", "role": "unified", "replicas": 1}]
        await world.edit(lambda spec: spec.update(pools=pools))
        await world.settle()
        await world.edit(new_image(image))
        await world.run(400)
        await world.settle()
        assert world.status.rollout is not None
        said = world.status.rollout.failure_message
        assert said.startswith("no pod became ready within 300 s: Pod chat-")
        assert "no-registry cannot be pulled: …" in said
        assert len(said) == WORD_MAX
        assert world.condition("Stalled")["reason"] == "RolledBack"
        assert image not in images(world)

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


def test_a_gate_that_cannot_start_says_why_and_never_that_answers_differ() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image("not-asked", gate={}))
        await world.run(20 + 30)
        said = world.condition("Ready")["message"]
        assert "container verify: image not-asked cannot be pulled" in said
        assert "401 Unauthorized" in said
        writes = world.cluster.asked
        await world.run(400)
        assert world.cluster.asked == writes, "the kubelet's turns are no news"
        await world.settle()
        for type_ in ("Ready", "Stalled"):
            told = world.condition(type_)
            assert told["reason"] == "RolledBack"
            assert "it could not be compared: Pod chat-gate-" in told["message"]
            assert "cannot be pulled" in told["message"]
        assert world.status.rollout is not None
        assert "could not be compared" in world.status.rollout.failure_message
        assert not any("differ" in str(each["note"]) for each in world.of(EVENT))
        assert notes(world).count("ImageNotPulled") == 1
        assert images(world) == {"one"}
        assert world.of(JOB) == [], "a comparison with a revision that is gone is not made later"

    in_world(story)


def test_a_gate_whose_job_ends_without_a_verdict_has_compared_nothing() -> None:
    async def story(world: World) -> None:
        await world.edit(new_image("job-ended", gate={}))
        await world.settle()
        assert "it could not be compared: DeadlineExceeded" in world.condition("Stalled")["message"]
        assert images(world) == {"one"}

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
        assert (
            f"Pod {world.pods('decode', world.status.update_revision)[0]['metadata']['name']}: no node has room: "
            in (ready["message"])
        )
        assert ready["message"].endswith("no node has room: Insufficient nvidia.com/gpu.")
        await world.run(3000)
        assert "no node has room: Insufficient nvidia.com/gpu" in world.condition("Stalled")["message"]
        assert notes(world).count("InsufficientCapacity") == 2, "one for each pool"
        assert world.condition("Available")["status"] == "True"

    in_world(story)


@pytest.mark.parametrize(
    ("image", "reason", "said"),
    [
        ("no-image", "ImageNotPulled", "image no-image cannot be pulled: failed to resolve reference"),
        ("no-secret", "ContainerNotStarted", 'CreateContainerConfigError: secret "hub-token" not found'),
        ("crashes", "ContainerCrashes", "it ended: status 1: not_allowed: the hub answers 401 at 12:00:"),
        ("out-of-memory", "OOMKilled", "it was killed for using more memory than its limit"),
    ],
)
def test_what_keeps_containers_from_working_is_told_once_and_stays_in_the_verdict(
    image: str, reason: str, said: str
) -> None:
    assert image in TROUBLES

    async def story(world: World) -> None:
        await world.edit(new_image(image))
        await world.run(30)
        ready = world.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("False", reason)
        pods = [pod["metadata"]["name"] for pod in world.pods("decode", world.status.update_revision)]
        assert any(f"Pod {name}, container worker: {said}" in ready["message"] for name in pods)
        writes = world.cluster.asked
        await world.run(240)
        assert world.cluster.asked == writes, "the kubelet's turns are no news"
        pools = {condition["type"]: condition for condition in world.of(ENGINE_POOL)[0]["status"]["conditions"]}
        assert (pools["WorkersFailing"]["status"], pools["WorkersFailing"]["reason"]) == ("True", reason)
        assert said in pools["WorkersFailing"]["message"]
        await world.settle()
        assert world.condition("Stalled")["reason"] == "RolledBack"
        assert "no pod became ready within 300 s: Pod chat-" in world.condition("Stalled")["message"]
        assert said in world.condition("Stalled")["message"]
        pools = {condition["type"]: condition for condition in world.of(ENGINE_POOL)[0]["status"]["conditions"]}
        assert pools["WorkersFailing"]["status"] == "False"
        assert notes(world).count(reason) == 2, "one for each pool"

    in_world(story)


def test_a_first_revision_that_is_late_says_why() -> None:
    async def told() -> None:
        world = World()
        try:
            new_image("no-image")(world.spec)
            await world.submit()
            await world.run(400)
            stalled = world.condition("Stalled")
            assert stalled["reason"] == "ProgressDeadlineExceeded"
            assert "Held up: Pod chat-decode-" in stalled["message"]
            assert "image no-image cannot be pulled" in stalled["message"]
        finally:
            await world.close()

    run(lambda _loop: told())


def test_what_the_api_server_refuses_is_told_without_what_changes_by_itself() -> None:
    async def story(world: World) -> None:
        quota = 'pods "chat-decode-1-{0}" is forbidden: exceeded quota: gpus, requested: cpu=1, used: cpu={0}, '

        async def refuse(number: int) -> None:
            deployment = next(obj for obj in world.of(DEPLOYMENT) if labels_of(obj)[POOL] == "decode")
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
            metadata = {key: deployment["metadata"][key] for key in ("name", "namespace")}
            status = {"conditions": [{**failure, "message": f"{quota.format(number)}limited: cpu=4"}]}
            body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "status": status}
            await world.cluster.apply_status(body, "deployment-controller")

        await world.edit(lambda spec: spec["pools"][1].update(replicas=4, image="never-ready"))
        await world.run(5)
        await refuse(1)
        await world.run(5)
        ready = world.condition("Ready")
        assert ready["reason"] == "PodsRefused"
        assert (
            "the API server refuses its pods: forbidden: exceeded quota: gpus, requested: cpu=1, limited: cpu=4."
            in (ready["message"])
        )
        await world.run(60)
        asked = world.cluster.asked
        for number in range(2, 9):
            await refuse(number)
            await world.run(5)
        assert world.cluster.asked == asked, "what others use of a quota is no news"
        assert notes(world).count("PodsRefused") == 1

    in_world(story)


def test_of_two_services_with_one_model_name_the_later_is_told_and_starts_nothing() -> None:
    async def story(world: World) -> None:
        async def submit(namespace: str, name: str) -> None:
            metadata = {"name": name, "namespace": namespace}
            spec = {**world.spec, "model": {"name": NAME}}
            obj = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": spec}
            await world.cluster.apply(obj, "user")

        def ready(name: str) -> Json:
            (obj,) = (each for each in world.of(MODEL_SERVICE) if each["metadata"]["name"] == name)
            return next(each for each in obj["status"]["conditions"] if each["type"] == "Ready")

        before = len(world.of(DEPLOYMENT))
        await world.run(5)
        await submit("aaa", "squatter")
        await world.run(30)
        assert (ready("squatter")["status"], ready("squatter")["reason"]) == ("False", "NameConflict")
        assert "llm/chat serves a model called 'chat' already" in ready("squatter")["message"]
        assert len(world.of(DEPLOYMENT)) == before, "nothing that nobody could reach is started"
        assert ready(NAME)["status"] == "True"
        assert notes(world).count("NameConflict") == 1
        await world.cluster.delete(Ref(MODEL_SERVICE, NAMESPACE, NAME))
        await world.run(30)
        assert ready("squatter")["reason"] != "NameConflict"
        assert {obj["metadata"]["namespace"] for obj in world.of(DEPLOYMENT)} == {"aaa"}

    in_world(story)


def test_what_means_nothing_in_a_cluster_is_told_and_restarts_nothing() -> None:
    async def story(world: World) -> None:
        pods = {pod["metadata"]["uid"] for pod in world.pods()}
        await world.edit(lambda spec: spec.update(store={"dram": "4Gi"}, router={"port": 8001, "host": "127.0.0.1"}))
        await world.settle()
        told = world.condition("FieldsIgnored")
        assert told["status"] == "True"
        assert "spec.router and spec.store: for `tandem up` alone" in told["message"]
        assert world.condition("Ready")["status"] == "True"
        assert {pod["metadata"]["uid"] for pod in world.pods()} == pods
        assert notes(world).count("FieldsIgnored") == 1
        await world.edit(lambda spec: (spec.pop("store"), spec.pop("router")))
        await world.settle()
        assert "FieldsIgnored" not in {each.type for each in world.status.conditions}

    in_world(story)


def test_a_network_device_that_nothing_names_is_told_until_it_is_named() -> None:
    """Workers with adapters of a cloud move KV over TCP, at a small part of what was paid for."""
    limits = {"vpc.amazonaws.com/efa": 4}
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": limits}}]}}

    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["pools"][1].update(template=template))
        await world.settle()
        assert "Pods of pool decode get vpc.amazonaws.com/efa" in world.condition("NetworkNotNamed")["message"]
        assert notes(world).count("NetworkNotNamed") == 1
        await world.edit(lambda spec: spec["pools"][1].update(network={"resources": limits}))
        await world.settle()
        assert "NetworkNotNamed" not in {each.type for each in world.status.conditions}

    in_world(story)


@pytest.mark.parametrize(("path", "said"), [("nixl/ucx-tcp", " but over nixl/ucx-tcp"), ("", "")])
def test_workers_with_devices_for_rdma_whose_kv_goes_over_tcp_are_told(path: str, said: str) -> None:
    """Routers learn how it goes after the pods are ready, and nothing in the cluster tells of it."""
    network = {"resources": {"rdma/ib": 1}}

    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["pools"][1].update(network=network))
        await world.settle()
        assert "KvOverTcp" not in {each.type for each in world.status.conditions}, "nobody knows yet"
        first, *others = sorted(pod["metadata"]["name"] for pod in world.pods("decode"))
        world.routers.problems = {first: "nixl: only 8 MiB of 64 MiB can be locked"}
        world.routers.paths = {first: path, **dict.fromkeys(others, "nixl/ucx-rdma" if path else "")}
        await asyncio.sleep(2 * LOAD_EVERY_S)
        told = world.condition("KvOverTcp")
        assert told["message"] == (
            f"1 of {1 + len(others)} workers of pool decode do not move KV by RDMA{said}: nixl: only 8 MiB of 64 MiB "
            "can be locked."
        )
        assert world.condition("Ready")["status"] == "True"
        assert notes(world).count("KvOverTcp") == 1
        # Routers start anew, and know no paths yet.
        world.routers.problems, world.routers.paths, known = {}, {}, (world.routers.problems, world.routers.paths)
        await asyncio.sleep(4 * LOAD_EVERY_S)
        assert world.condition("KvOverTcp")["message"] == told["message"]
        world.routers.problems, world.routers.paths = known
        await asyncio.sleep(2 * LOAD_EVERY_S)
        assert notes(world).count("KvOverTcp") == 1
        await world.edit(lambda spec: spec["pools"][1].update(network={**network, "transports": ["tcp"]}))
        await world.settle()
        assert "KvOverTcp" not in {each.type for each in world.status.conditions}

    in_world(story)


def test_another_drain_holds_from_the_next_revision_and_the_condition_says_so() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["pools"][1].update(drainSeconds=900))
        await world.settle()
        assert (
            "drainSeconds 900 of pool decode holds from the next revision (now 120)"
            in (world.condition("AwaitsNextRevision")["message"])
        )
        assert notes(world).count("AwaitsNextRevision") == 1
        await world.edit(new_image("two"))
        await world.settle()
        assert "AwaitsNextRevision" not in {each.type for each in world.status.conditions}
        assert {pod["spec"]["terminationGracePeriodSeconds"] for pod in world.pods("decode")} == {930}

    in_world(story)


def test_scaling_a_pool_whose_number_the_service_says_is_undone_with_an_event() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["pools"][1].update(replicas=4))
        await world.settle()
        assert "ScaleUndone" not in notes(world)
        await world.scale("decode", 1)
        await world.settle()
        assert len(world.pods("decode", ready=True)) == 4
        (event,) = (each for each in world.of(EVENT) if each["reason"] == "ScaleUndone")
        assert event["regarding"]["kind"] == "EnginePool"
        assert "1 workers were asked for from outside; the ModelService says 4" in event["note"]

    in_world(story)


def test_workers_of_the_revision_before_are_not_told_to_move_no_kv_by_rdma() -> None:
    """They were given no devices."""

    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["rollout"].update(weight=50))
        await world.settle()
        before = [pod["metadata"]["name"] for pod in world.pods("decode")]
        await world.edit(lambda spec: spec["pools"][1].update(network={"resources": {"rdma/ib": 1}}))
        await world.settle()
        after = [pod["metadata"]["name"] for pod in world.pods("decode") if pod["metadata"]["name"] not in before]
        assert after
        world.routers.paths = {**dict.fromkeys(before, "tcp"), **dict.fromkeys(after, "nixl/ucx-rdma")}
        await asyncio.sleep(2 * LOAD_EVERY_S)
        assert "KvOverTcp" not in {each.type for each in world.status.conditions}
        world.routers.paths = dict.fromkeys((*before, *after), "tcp")
        await asyncio.sleep(2 * LOAD_EVERY_S)
        assert f"{len(after)} of {len(after)} workers" in world.condition("KvOverTcp")["message"]

    in_world(story)


async def make(world: World, name: str, *, held: bool = False, large: bool = False, **rollout: Any) -> None:
    """A service that goes by the installation's image, `held` by a finalizer when it is deleted. Whether a `large`
    one fits is worked out."""
    spec = {**world.spec, "pools": SMALL, "rollout": {**world.spec["rollout"], **rollout}}
    if large:
        pools = [{**pool, "accelerator": {"type": "h100-sxm"}} for pool in SMALL]
        spec |= {"engine": {"type": "torch"}, "pools": pools}
    metadata = {"name": name, "namespace": NAMESPACE, **({"finalizers": ["users.example/held"]} if held else {})}
    await world.cluster.apply(
        {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": spec}, "user"
    )
    await world.run(2)


def default_image(world: World, image: str, at_once: int) -> None:
    """The chart is upgraded."""
    world.installation = replace(world.installation, worker_image=image, rollouts_at_once=at_once)
    world.crash()


def ready_reasons(world: World) -> dict[str, str]:
    services = {obj["metadata"]["name"]: obj["status"]["conditions"] for obj in world.of(MODEL_SERVICE)}
    return {name: each["reason"] for name, found in services.items() for each in found if each["type"] == "Ready"}


def images_of(world: World, service: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.pods() if labels_of(pod)[OF] == service}


def in_fleet(story: Story) -> None:
    async def told() -> None:
        world = World()
        try:
            await story(world)
        finally:
            await world.close()

    run(lambda _loop: told())


def test_services_that_cannot_begin_do_not_hold_up_those_behind_them() -> None:
    async def story(world: World) -> None:
        await make(world, "leaves", held=True)
        await make(world, "large", large=True)
        await make(world, "next")
        await make(world, "last")
        await world.settle()
        assert set(ready_reasons(world).values()) == {"Complete"}
        world.models.known = ModelFacts(Shape(80, 8192, 64, 8, 128, 28672, 128256))
        await world.cluster.delete(Ref(MODEL_SERVICE, NAMESPACE, "leaves"))
        default_image(world, "two", at_once=1)
        await world.settle()
        assert ready_reasons(world)["large"] == "DoesNotFit"
        assert images_of(world, "next") == images_of(world, "last") == {"two"}
        assert images_of(world, "leaves") == images_of(world, "large") == {"one"}
        world.models.known = None
        world.crash()
        await world.settle()
        assert images_of(world, "large") == {"two"}, "it goes on by itself once it can"

    in_fleet(story)


def test_a_comparison_that_nobody_can_make_does_not_hold_up_those_behind_it() -> None:
    async def story(world: World) -> None:
        await make(world, "first", gate={})
        await make(world, "next")
        await world.settle()
        world.cluster.refused = frozenset({JOB})
        default_image(world, "two", at_once=1)
        await world.run(2000)
        assert images_of(world, "first") == {"one", "two"}
        assert images_of(world, "next") == {"one"}
        await world.run(900)
        assert images_of(world, "next") == {"two"}
        world.cluster.refused = frozenset()
        await world.run(1200)
        assert images_of(world, "first") == {"two"}, "it goes on by itself once it can"

    in_fleet(story)


def test_services_take_over_other_defaults_of_worker_pods_one_after_the_other() -> None:
    async def story(world: World) -> None:
        for name in ("first", "next"):
            await make(world, name)
        await world.settle()
        before = {pod["metadata"]["name"] for pod in world.pods()}
        world.crash()
        await world.settle()
        assert {pod["metadata"]["name"] for pod in world.pods()} == before
        defaults = WorkerDefaults(runtime_class_name="nvidia", pod_labels={"team": "serving"})
        world.installation = replace(world.installation, worker_defaults=defaults, rollouts_at_once=1)
        world.crash()
        seen = set[tuple[bool, ...]]()
        for _ in range(400):
            await world.tick()
            moved = {labels_of(pod)[OF] for pod in world.pods() if "runtimeClassName" in pod["spec"]}
            whole = {labels_of(pod)[OF] for pod in world.pods() if "runtimeClassName" not in pod["spec"]}
            seen.add(("next" in moved, "first" in whole))
        assert (True, True) not in seen, "the next one began before the first was done"
        assert (True, False) in seen
        assert whole == set()
        assert {labels_of(pod)["team"] for pod in world.pods()} == {"serving"}
        assert set(ready_reasons(world).values()) == {"Complete"}

    in_fleet(story)


def test_services_on_their_way_go_on_to_newer_defaults_and_not_back_first() -> None:
    async def story(world: World) -> None:
        for name in ("first", "next"):
            await make(world, name)
        await world.settle()
        for name in ("first", "next"):
            await make(world, name, weight=50)
        default_image(world, "two", at_once=2)
        await world.settle()
        default_image(world, "three", at_once=1)
        seen, end = set[str](), world.clock.now() + 200
        while world.clock.now() < end:
            await world.tick()
            seen.add(ready_reasons(world)["next"])
        assert seen <= {"Progressing", "WeightReached"}
        assert images_of(world, "next") == {"one", "three"}

    in_fleet(story)


def test_services_that_rest_part_of_the_way_wait_for_their_turn_where_they_are() -> None:
    """Their users are trying something else: new defaults start that anew, and not in all of them at once."""

    async def story(world: World) -> None:
        names = [f"s{number}" for number in range(4)]
        for name in names:
            await make(world, name, weight=50)
        await world.settle()
        world.spec["engine"]["blockTokens"] = 32
        for name in names:
            await make(world, name, weight=50)
        await world.settle()
        assert set(ready_reasons(world).values()) == {"WeightReached"}
        default_image(world, "two", at_once=1)
        most, end = 0, world.clock.now() + 600
        while world.clock.now() < end:
            await world.tick()
            moves = {name for name, reason in ready_reasons(world).items() if reason != "WeightReached"}
            most = max(most, len(moves))
            assert all("one" in images_of(world, name) for name in names), "what serves half of the requests stays"
        assert most == 1
        assert {name: images_of(world, name) for name in names} == {name: {"one", "two"} for name in names}
        stated = {obj["metadata"]["name"]: obj["status"] for obj in world.of(MODEL_SERVICE)}
        assert {each["updateWeight"] for each in stated.values()} == {50}

    in_fleet(story)


def test_revisions_that_others_keep_of_what_is_labelled_as_the_services_are_not_its_own() -> None:
    """A DaemonSet of stores has them; the operator ended whenever it looked at such a service."""

    async def told() -> None:
        world = World()
        world.installation = replace(world.installation, rollouts_at_once=2)
        metadata = {
            "name": "stores-5d8",
            "namespace": NAMESPACE,
            "labels": {OF: "s0", POOL: "kv-store", "app.kubernetes.io/managed-by": "tandem"},
        }
        others = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 1}
        await world.cluster.apply({**others, "data": {"spec": {"template": {}}}}, "daemonset-controller")
        await make(world, "s0")
        world.crash()
        try:
            await world.settle()
            assert ready_reasons(world) == {"s0": "Complete"}
        finally:
            await world.close()

    run(lambda _loop: told())


@pytest.mark.parametrize("image", ["two", NEVER_READY])
def test_services_take_over_a_new_default_some_at_once_and_all_in_the_end(image: str) -> None:
    async def told() -> None:
        world = World()
        world.installation = replace(world.installation, rollouts_at_once=2)
        names = [f"s{number}" for number in range(5)]
        for name in names:
            await make(world, name)

        def revisions(name: str) -> set[str]:
            return {labels_of(pod)[REVISION] for pod in world.pods() if labels_of(pod)[OF] == name}

        def reasons() -> list[str]:
            return list(ready_reasons(world).values())

        try:
            await world.settle()
            assert reasons() == ["Complete"] * 5
            world.installation = replace(world.installation, worker_image=image)
            world.crash()
            seen, end = list[int](), world.clock.now() + 1500
            while world.clock.now() < end:
                await world.tick()
                seen.append(sum(len(revisions(name)) > 1 for name in names))
            # One that is given up frees its place before the last of its pods are gone.
            assert max(seen) <= (2 if image == "two" else 4)
            assert reasons() == ["Complete" if image == "two" else "RolledBack"] * 5
            asked = world.cluster.asked
            await world.run(400)
            assert world.cluster.asked == asked
        finally:
            await world.close()

    run(lambda _loop: told())


def test_an_edit_of_the_users_own_does_not_wait_for_others() -> None:
    async def story(world: World) -> None:
        world.installation = replace(world.installation, rollouts_at_once=1)
        world.crash()
        await world.edit(new_image("two"))
        await world.settle()
        assert images(world) == {"two"}

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
