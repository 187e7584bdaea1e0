"""What replicas ask of Ray, from the pools of a service."""

from typing import Any

import pytest

from tandem.apps.ray.placing import actor_options, deployment_plan, ray_type, refusals, replica_times, revision_app
from tandem.apps.ray.serving import ActorOptions
from tandem.core.errors import TandemError
from tandem.spec.pool import Accelerator
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService


def service(*pools: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> ModelService:
    """A checked service named `chat` with these pools."""
    return service_of(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": {"name": "chat", "annotations": annotations or {}},
            "spec": {"pools": list(pools), **spec},
        }
    )


def wide(nodes: int, per_node: int = 8) -> dict[str, Any]:
    """A unified pool whose workers span so many nodes of `per_node` accelerators."""
    return {
        "name": "all",
        "role": "unified",
        "accelerator": {"type": "h100-sxm", "perNode": per_node},
        "parallelism": {"tensor": per_node, "pipeline": nodes},
    }


VLLM = {"type": "vllm", "device": "cuda"}


def options(found: ModelService) -> ActorOptions:
    return actor_options(found, found.spec.pools[0])


def test_a_pool_without_accelerator_asks_for_one_cpu() -> None:
    assert options(service({"name": "all", "role": "unified"})) == ActorOptions(num_cpus=1.0)


def test_ranks_become_gpus_of_one_node_with_rays_name_of_the_type() -> None:
    pool = {"name": "all", "role": "unified", "accelerator": {"type": "h100-sxm"}, "parallelism": {"tensor": 4}}
    found = options(service(pool, engine=VLLM))
    assert (found.num_gpus, found.accelerator_type, found.resources) == (4.0, "H100", {})


def test_a_shared_accelerator_is_a_part_of_one() -> None:
    pool = {"name": "all", "role": "unified", "accelerator": {"type": "h100-sxm", "sharedBy": 4}}
    assert options(service(pool, engine=VLLM)).num_gpus == 0.25


def test_what_is_no_gpu_is_a_custom_resource() -> None:
    pool = {"name": "all", "role": "unified", "accelerator": {"type": "h100-sxm", "resource": "example.com/npu"}}
    found = options(service(pool, engine=VLLM))
    assert (found.num_gpus, found.accelerator_type, found.resources) == (0.0, None, {"example.com/npu": 1.0})


@pytest.mark.parametrize(
    ("ours", "rays"),
    [
        ("h100-sxm", "H100"),
        ("H100", "H100"),
        ("a100-80g-sxm", "A100-80G"),
        ("a100-pcie", "A100"),
        ("a10g", "A10G"),
        ("l40s", "L40S"),
        ("nvidia-l4", "L4"),
        ("mi300x", "AMD-Instinct-MI300X-OAM"),
        ("frobnicator", None),
    ],
)
def test_names_of_accelerators(ours: str, rays: str | None) -> None:
    assert ray_type(Accelerator(type=ours)) == rays


def test_annotations_say_what_the_specification_has_no_field_for() -> None:
    noted = {
        "ray.tandem.dev/all.cpus": "2.5",
        "ray.tandem.dev/all.resources": "n1=1, rdma/hca=0.5",
        "ray.tandem.dev/all.max-replicas-per-node": "3",
        "ray.tandem.dev/other.cpus": "99",
    }
    found = options(service({"name": "all", "role": "unified"}, annotations=noted))
    assert found == ActorOptions(2.5, 0.0, None, {"n1": 1.0, "rdma/hca": 0.5}, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpus", "many"),
        ("cpus", "-1"),
        ("cpus", "nan"),
        ("resources", "n1"),
        ("max-replicas-per-node", "0"),
        ("max-replicas-per-node", "101"),
        ("max-replicas-per-node", "1.5"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(key: str, value: str) -> None:
    where = f"ray.tandem.dev/all.{key}"
    found = service({"name": "all", "role": "unified"}, annotations={where: value})
    with pytest.raises(TandemError, match=where):
        options(found)
    assert any(where in each for each in refusals(found))


def test_a_worker_over_nodes_is_a_gang_with_the_ranks_of_one_node_each() -> None:
    found = service(wide(2, 4), engine=VLLM, annotations={"ray.tandem.dev/all.max-replicas-per-node": "1"})
    plan = deployment_plan(found, found.spec.pools[0], 3)
    assert (plan.gang, plan.first, plan.options.num_gpus) == (2, 3, 4.0)
    assert plan.options.max_replicas_per_node is None, "Serve refuses it beside a gang"


def test_the_application_has_every_pool_and_those_not_named_begin_with_none() -> None:
    pools = ({"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "drainSeconds": 30})
    app = revision_app(service(*pools), "0123456789", {"d": 2})
    assert app.name == "chat-0123456789"
    assert [(each.pool, each.first, each.drain_s) for each in app.pools] == [("p", 0, 120.0), ("d", 2, 30.0)]


def test_serve_kills_only_after_the_drain() -> None:
    assert replica_times(120.0).graceful_shutdown_timeout_s > 120.0


@pytest.mark.parametrize(
    ("spec", "pool", "said"),
    [
        ({"store": {}}, {}, "spec.store"),
        ({"model": {"source": "pvc://models/a"}}, {}, "spec.model.source"),
        ({"redisSecretRef": {"name": "redis"}}, {}, "spec.redisSecretRef"),
        ({}, {"image": "mine:1"}, "spec.pools[0].image"),
        ({}, {"template": {"spec": {"hostNetwork": True}}}, "spec.pools[0].template"),
        ({}, {"topology": {"near": "zone"}}, "spec.pools[0].topology"),
        ({}, {"network": {"resources": {"rdma/ib": 1}}}, "spec.pools[0].network"),
    ],
)
def test_what_only_kubernetes_has_is_refused_with_its_path(
    spec: dict[str, Any], pool: dict[str, Any], said: str
) -> None:
    found = list(refusals(service({"name": "all", "role": "unified", **pool}, **spec)))
    assert len(found) == 1
    assert said in found[0]


def test_a_plain_service_is_refused_nothing() -> None:
    assert not list(refusals(service({"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"})))
