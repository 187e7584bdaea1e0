"""What cannot be rolled out is refused before a pod starts, in a sentence, and what runs goes on."""

from collections.abc import Callable

import msgspec

from control_plane.observe.observed import ModelFacts
from control_plane.operator.model_facts import facts_of
from tandem.core.sizing import Shape
from tandem.kube.kinds import DEPLOYMENT, ENGINE_POOL, KINDS, LEADER_WORKER_SET, MODEL_SERVICE, Json, Ref
from tests.unit.control_plane.operator.test_operator_world import in_world
from tests.worlds.operator_world import NAME, NAMESPACE, World, notes


def test_a_bad_specification_stops_nothing_that_runs() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec["rollout"].update(maxSurge=0, maxUnavailable=0))
        await world.settle()
        assert world.condition("Stalled")["reason"] == "InvalidSpec"
        assert "maxSurge and maxUnavailable" in world.condition("Stalled")["message"]
        assert len(world.pods(ready=True)) == 5
        await world.kill(1)
        await world.settle()
        assert world.condition("Available")["status"] == "True"

    in_world(story)


def test_a_password_in_the_url_of_redis_is_refused_and_goes_nowhere() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec.update(redis="redis://:hunter2@cache:6379"))
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
        assert "spec.redis: redis has a user or a password" in stalled["message"]
        assert "name that in redisSecretRef instead" in stalled["message"]
        made = [each for kind in KINDS.values() if kind != MODEL_SERVICE for each in world.of(kind)]
        assert "hunter2" not in str([*made, msgspec.to_builtins(world.status)])
        assert len(world.pods(ready=True)) == 5, "what runs goes on"
        await world.edit(lambda spec: spec.pop("redis") and spec.update(redisSecretRef={"name": "redis"}))
        await world.settle()
        assert world.condition("Stalled")["status"] == "False"
        source = {"secretKeyRef": {"name": "redis", "key": "url"}}
        for pod in world.pods(ready=True):
            assert {"name": "TANDEM_INDEX__REDIS_URL", "valueFrom": source} in pod["spec"]["containers"][0]["env"]

    in_world(story)


def test_a_model_that_does_not_fit_gets_no_pod() -> None:
    def larger(spec: Json) -> None:
        spec["engine"] = {"type": "torch"}
        for pool in spec["pools"]:
            pool["accelerator"] = {"type": "h100-sxm"}

    async def story(world: World) -> None:
        world.models.known = ModelFacts(Shape(80, 8192, 64, 8, 128, 28672, 128256))
        await world.edit(larger)
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "DoesNotFit")
        assert "Pool prefill does not fit: weights 141.11 GB over 1 accelerators" in stalled["message"]
        assert len(world.of(DEPLOYMENT)) == 2, "the new revision has none"
        assert world.condition("Available")["status"] == "True", "the old one goes on"
        for pool in world.of(ENGINE_POOL):
            held = {each["type"]: each["status"] for each in pool["status"]["conditions"]}
            assert held["DoesNotFit"] == "True"
        assert notes(world).count("DoesNotFit") == 3

    in_world(story)


def test_an_accelerator_is_as_large_as_its_nodes_say() -> None:
    def held(world: World, type_: str) -> dict[str, Json]:
        pools = world.of(ENGINE_POOL)
        each = {pool["metadata"]["name"]: pool["status"]["conditions"] for pool in pools}
        return {name: next(one for one in conditions if one["type"] == type_) for name, conditions in each.items()}

    def on(type_: str) -> Callable[[Json], None]:
        def edit(spec: Json) -> None:
            spec["engine"] = {"type": "torch"}
            for pool in spec["pools"]:
                pool["accelerator"] = {"type": type_}

        return edit

    async def story(world: World) -> None:
        world.models.known = ModelFacts(Shape(32, 4096, 32, 8, 128, 14336, 128256), context=8192)
        await world.edit(on("NVIDIA-X9"))
        await world.settle()
        for told in held(world, "DoesNotFit").values():
            assert (told["status"], told["reason"]) == ("False", "NotChecked")
            assert "the memory of accelerator 'NVIDIA-X9' is not known" in told["message"]
        # 16.06 GB of weights and 1.07 GB of KV: 90 % of 16 GiB are too little for them, of 24 GiB enough.
        world.nodes.known = ({"nvidia.com/gpu.product": "NVIDIA-Y9", "nvidia.com/gpu.memory": "16384"},)
        await world.edit(on("NVIDIA-Y9"))
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "DoesNotFit")
        assert "of 17.18 GB, 10% are left to the runtime" in stalled["message"]
        world.nodes.known = ({"nvidia.com/gpu.product": "NVIDIA-Z9", "nvidia.com/gpu.memory": "24576"},)
        await world.edit(on("NVIDIA-Z9"))
        await world.settle()
        for told in held(world, "DoesNotFit").values():
            assert (told["status"], told["reason"]) == ("False", "Fits")

    in_world(story)


def test_prefill_and_decode_workers_do_not_span_nodes() -> None:
    def wide(spec: Json) -> None:
        spec["engine"] = {"type": "vllm"}
        for pool in spec["pools"]:
            pool |= {"accelerator": {"type": "h100-sxm", "perNode": 8}, "parallelism": {"tensor": 16}}

    async def story(world: World) -> None:
        await world.edit(wide)
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "CannotHandOver")
        assert stalled["message"].startswith(
            "Workers of pool prefill span nodes, and ranks on other nodes cannot hand"
        )
        assert world.of(LEADER_WORKER_SET) == []
        assert world.condition("Available")["status"] == "True", "the old one goes on"

    in_world(story)


def test_a_model_of_windows_alone_is_not_handed_over() -> None:
    """Served with no more context than a window has, it is."""

    def served(tokens: int | None) -> Callable[[Json], None]:
        def edit(spec: Json) -> None:
            spec["engine"] = {"type": "vllm"} | ({} if tokens is None else {"contextTokens": tokens})

        return edit

    async def story(world: World) -> None:
        world.models.known = facts_of({"sliding_window": 4096, "max_position_embeddings": 32_768})
        await world.edit(served(None))
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "CannotHandOver")
        assert stalled["message"].startswith("Workers of pool prefill would hand KV over, and cannot: all layers see")
        await world.edit(served(4096))
        await world.settle()
        assert world.condition("Stalled")["status"] == "False"

    in_world(story)


def test_auto_workers_stay_unified_where_they_must_and_their_pool_says_so() -> None:
    """A model of windows alone is not handed over: with fixed roles that is refused, workers of role auto serve."""

    def edit(engine: Json, **pool: Json | int | str) -> Callable[[Json], None]:
        def edited(spec: Json) -> None:
            spec["engine"] = engine
            spec["pools"] = [{"name": "all", "role": "auto", "replicas": 2, **pool}]

        return edited

    def said(world: World) -> tuple[str, str, str]:
        pool = next(each for each in world.of(ENGINE_POOL) if each["spec"]["pool"] == "all")
        (found,) = (each for each in pool["status"]["conditions"] if each["type"] == "SplitFollowsLoad")
        return found["status"], found["reason"], found["message"]

    async def story(world: World) -> None:
        world.models.known = facts_of({"sliding_window": 4096, "max_position_embeddings": 32_768})
        await world.edit(edit({"type": "vllm"}))
        await world.settle()
        assert world.condition("Stalled")["status"] == "False"
        assert said(world)[:2] == ("False", "CannotHandOver")
        assert "all layers see a sliding window only" in said(world)[2]
        assert "CannotHandOver" in notes(world)
        await world.edit(edit({"type": "vllm", "contextTokens": 4096}))
        await world.settle()
        assert said(world)[:2] == ("False", "StepsFixed")
        await world.edit(edit({"type": "simulated"}))
        await world.settle()
        assert said(world)[:2] == ("True", "RoutersChoose")

    in_world(story)


def test_names_of_other_tenants_are_refused_and_not_held() -> None:
    async def story(world: World) -> None:
        async def submit(namespace: str, name: str) -> None:
            metadata = {"name": name, "namespace": namespace}
            spec = {**world.spec, "model": {"name": "chat"}}
            obj = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata, "spec": spec}
            await world.cluster.apply(obj, "user")

        def ready(name: str) -> Json:
            (obj,) = (each for each in world.of(MODEL_SERVICE) if each["metadata"]["name"] == name)
            return next(each for each in obj["status"]["conditions"] if each["type"] == "Ready")

        await submit("aaa", "squatter")
        await world.run(30)
        assert (ready("squatter")["status"], ready("squatter")["reason"]) == ("False", "NameNotAllowed")
        assert "namespace aaa may call its models aaa/*, and not 'chat'" in ready("squatter")["message"]
        assert {obj["metadata"]["namespace"] for obj in world.of(DEPLOYMENT)} == {NAMESPACE}, "nothing is started"
        await world.cluster.delete(Ref(MODEL_SERVICE, NAMESPACE, NAME))
        await world.run(30)
        await submit(NAMESPACE, NAME)
        await world.run(90)
        assert ready(NAME)["status"] == "True", "the older service holds no name that it may not have"

    in_world(story, tenants=("llm=chat", "llm=llm/*", "aaa=aaa/*"))


def test_an_alias_that_is_not_allowed_stops_nothing_that_runs() -> None:
    async def story(world: World) -> None:
        await world.edit(lambda spec: spec.update(model={"aliases": ["llm/chat", "aaa/chat"]}))
        await world.settle()
        stalled = world.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "NameNotAllowed")
        assert "and not 'aaa/chat': take such a name" in stalled["message"]
        assert len(world.pods(ready=True)) == 5
        await world.edit(lambda spec: spec.update(model={"aliases": ["llm/chat"]}))
        await world.settle()
        assert world.condition("Ready")["status"] == "True"

    in_world(story, tenants=("llm=chat", "llm=llm/*"))
