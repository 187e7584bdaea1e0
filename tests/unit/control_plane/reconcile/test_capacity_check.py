"""Whether workers can hold their model: what is refused, what is not checked, and that what fits is not refused."""

from typing import Any

import msgspec
import pytest

from control_plane.observe.observed import ModelFacts
from control_plane.operator.model_facts import facts_of
from control_plane.reconcile.accelerators import memory_of_type
from control_plane.reconcile.capacity_check import (
    measured_memory,
    memory_of,
    pools_over_capacity,
    pools_unchecked,
    unfollowed,
    weight_bytes,
)
from tandem.core.sizing import Shape
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import Accelerator
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService
from tests.worlds.real_configs import CASES

LLAMA_70B = Shape(80, 8192, 64, 8, 128, 28672, 128256)
CONFIGS = {case.name: case.config for case in CASES}


def pools(tensor: int, type_: str, **engine: Any) -> ModelService:
    parallelism = {"tensor": tensor}
    pool = {
        "name": "all",
        "role": "unified",
        "accelerator": {"type": type_},
        "engine": {"type": "vllm", "device": "cuda", "parallelism": parallelism, **engine},
    }
    spec = {"engine": {"type": "vllm", "device": "cuda"}, "pools": [pool]}
    plain = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": {"name": "m"}, "spec": spec}
    return service_of(plain)


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    facts = ModelFacts(LLAMA_70B, "bfloat16", 8192)
    (why,) = pools_over_capacity(pools(1, "h100-sxm"), facts).values()
    assert "141.11 GB" in why
    assert "hold KV of 0 tokens" in why
    assert pools_over_capacity(pools(4, "h100-sxm"), facts) == {}


def test_ranks_have_to_divide_the_heads() -> None:
    (why,) = pools_over_capacity(pools(3, "h100-sxm"), ModelFacts(LLAMA_70B)).values()
    assert why == "tensor parallelism 3 does not divide the 64 attention heads"


def test_what_nobody_knows_is_not_refused() -> None:
    assert pools_over_capacity(pools(1, "h100-sxm"), None) == {}
    assert pools_over_capacity(pools(1, "something-new"), ModelFacts(LLAMA_70B)) == {}
    assert pools_over_capacity(pools(1, "h100-sxm", quantization="unheard-of"), ModelFacts(LLAMA_70B)) == {}


def test_what_is_missing_is_said_instead() -> None:
    service, known = pools(1, "h100-sxm"), ModelFacts(LLAMA_70B)
    assert pools_unchecked(service, known) == {}
    assert "config.json" in pools_unchecked(service, None)["all"]
    assert pools_unchecked(service, ModelFacts(None, unread="it has wings")) == {"all": "it has wings"}
    assert "accelerator.memory" in pools_unchecked(pools(1, "something-new"), known)["all"]
    assert (
        "unheard-of"
        in pools_unchecked(pools(1, "h100-sxm", quantization="unheard-of"), ModelFacts(LLAMA_70B, None))["all"]
    )
    assert pools_over_capacity(service, ModelFacts(None, unread="it has wings")) == {}


GEMMA_27B = Shape(62, 5376, 32, 16, 128, 21504, 262208, tied_embeddings=True, window=1024, windowed_layers=52)


def test_layers_with_a_window_keep_what_lies_in_it() -> None:
    facts = ModelFacts(GEMMA_27B, "bfloat16", 131_072)
    assert pools_over_capacity(pools(1, "NVIDIA-H100-80GB-HBM3"), facts) == {}
    (why,) = pools_over_capacity(pools(1, "NVIDIA-H100-80GB-HBM3", kvTransfer="always"), facts).values()
    assert "one sequence of 131072 tokens needs 66.57 GB" in why


def test_quantized_weights_are_smaller() -> None:
    facts = ModelFacts(LLAMA_70B, "bfloat16", 8192)
    assert pools_over_capacity(pools(2, "h100", quantization="fp8"), facts) == {}
    assert pools_over_capacity(pools(1, "h100", quantization="awq"), facts) == {}


@pytest.mark.parametrize(
    ("type_", "gigabytes"),
    [
        ("h100-sxm", 85.9),
        ("L40S", 51.5),
        ("a100-40gb", 42.9),
        ("h200", 151.4),
        ("odd", None),
        ("NVIDIA-H100-80GB-HBM3", 85.9),
        ("NVIDIA-H100-NVL", 100.9),
        ("NVIDIA-A100-SXM4-40GB", 42.9),
        ("NVIDIA-A10G", 25.8),
        ("NVIDIA-L40S", 51.5),
        ("NVIDIA-H20", 103.1),
        ("NVIDIA-H200", 151.4),
        ("NVIDIA-GB200", 199.7),
        ("NVIDIA-GH200-480GB", 103.1),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 10.7),
        ("NVIDIA-GeForce-RTX-4090", 25.8),
        ("NVIDIA-RTX-A6000", 51.5),
        ("Tesla-V100-SXM2-16GB", 17.2),
        ("AMD_Instinct_MI300X_OAM", 206.2),
        ("something-new-48GB", 51.5),
    ],
)
def test_memory_goes_by_the_type(type_: str, gigabytes: float | None) -> None:
    found = memory_of(Accelerator(type=type_))
    assert (None if found is None else round(found / 1e9, 1)) == gigabytes


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        # What drivers report, in MiB, under the names that they give.
        ("NVIDIA-A100-SXM4-40GB", 40_960),
        ("NVIDIA-A100-SXM4-80GB", 81_920),
        ("NVIDIA-A10G", 23_028),
        ("NVIDIA-H100-80GB-HBM3", 81_559),
        ("NVIDIA-H100-PCIe", 81_559),
        ("NVIDIA-H100-NVL", 95_830),
        ("NVIDIA-H200", 143_771),
        ("NVIDIA-H20-3e", 143_771),
        ("NVIDIA-GH200-480GB", 97_871),
        ("NVIDIA-GH200-144G-HBM3e", 146_831),
        ("NVIDIA-B200", 183_359),
        ("NVIDIA-GB200", 189_471),
        ("NVIDIA-L40S", 46_068),
        ("Tesla-T4", 15_360),
        ("Tesla-V100-SXM2-32GB", 32_768),
    ],
)
def test_no_name_stands_for_less_than_the_driver_reports(name: str, reported: int) -> None:
    found = memory_of_type(name)
    assert found is not None
    assert reported << 20 <= found <= (reported << 20) * 1.08


# -- Labels of nodes ------------------------------------------------------------------------------------------------

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
SLICED = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "nvidia.com/mig-1g.5gb.memory": "4864",
}
MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}


@pytest.mark.parametrize(
    ("accelerator", "nodes", "key", "expected"),
    [
        ({"type": "NVIDIA-H100-80GB-HBM3"}, [H100, SLICED], None, 81_559 << 20),
        # Pools may be bound to another label than the product's.
        ({"type": "big"}, [{**H100, "tier": "big"}, {**SLICED, "tier": "small"}], "tier", 81_559 << 20),
        ({"type": "NVIDIA-H100-80GB-HBM3"}, [{**H100, "tier": "big"}], "tier", None),
        # Handed out several times: the product's name says so, or the resource's.
        (
            {"type": "Tesla-T4", "resource": "nvidia.com/gpu"},
            [{"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360"}],
            None,
            15_360 << 20,
        ),
        ({"type": H100["nvidia.com/gpu.product"], "resource": "nvidia.com/gpu.shared"}, [H100], None, 81_559 << 20),
        ({"type": "NVIDIA-A100-SXM4-40GB", "resource": "nvidia.com/mig-1g.5gb"}, [SLICED], None, 4_864 << 20),
        # Rounded to whole GiB, so there may be half a one more.
        ({"type": "AMD_Instinct_MI300X_OAM", "resource": "amd.com/gpu"}, [MI300X], None, (192 << 30) + (1 << 29)),
        (
            {"type": "a", "resource": "amd.com/gpu"},
            [{"k": "a", "beta.amd.com/gpu.vram.64G": "8"}],
            "k",
            (64 << 30) + (1 << 29),
        ),
        # Of several sizes the largest may be meant.
        ({"type": "a"}, [{**H100, "k": "a"}, {**SLICED, "k": "a"}], "k", 81_559 << 20),
        ({"type": "h100-sxm"}, [H100], None, None),
        ({"type": "a"}, [{"k": "a", "nvidia.com/gpu.memory": "much"}], "k", None),
    ],
)
def test_nodes_tell_the_memory(
    accelerator: dict[str, Any], nodes: list[dict[str, str]], key: str | None, expected: int | None
) -> None:
    service = pools(1, accelerator["type"])
    (pool,) = service.spec.pools
    named = replace_accelerator(service, Accelerator(**accelerator))
    found = measured_memory(named, nodes, key)
    assert found == ({} if expected is None else {pool.name: expected})


def replace_accelerator(service: ModelService, accelerator: Accelerator) -> ModelService:
    (pool,) = service.spec.pools
    changed = msgspec.structs.replace(pool, accelerator=accelerator)
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, pools=(changed,)))


def test_what_nodes_tell_goes_before_the_name_and_after_what_is_stated() -> None:
    a100 = Accelerator(type="a100")
    assert memory_of(a100) == 80 << 30
    assert memory_of(a100, 81_920 << 20) == 80 << 30
    assert memory_of(a100, 40_960 << 20) == 80 << 30, "the large ones may be on nodes that have yet to come"
    assert memory_of(Accelerator(type="NVIDIA-A100-SXM4-40GB"), 40_960 << 20) == 40 << 30
    assert memory_of(Accelerator(type="no-such-name"), 40_960 << 20) == 40 << 30
    assert memory_of(Accelerator(type="a100", memory="60Gi"), 40_960 << 20) == 60 << 30
    assert memory_of(Accelerator(type="a100", resource="nvidia.com/mig-2g.20gb")) == 20 << 30
    facts = ModelFacts(Shape(80, 8192, 64, 8, 128, 28672, 128256), "bfloat16", 8192)
    service = pools(2, "a100")
    assert pools_over_capacity(pools(4, "a100"), facts, {"all": 81_920 << 20}) == {}
    (why,) = pools_over_capacity(pools(4, "odd"), facts, {"all": 32_768 << 20}).values()
    assert "34.36 GB" in why
    assert "accelerator.memory" in pools_unchecked(pools(2, "odd"), facts)["all"]
    assert pools_unchecked(pools(2, "odd"), facts, {"all": 81_920 << 20}) == {}
    assert service.spec.pools[0].accelerator == a100


# -- Nothing that fits is refused -----------------------------------------------------------------------------------


def test_chunks_of_attention_keep_a_chunk() -> None:
    # 107.8e9 weights of 2 bytes over 8: 26.9 GB; 516.6 GB of KV over 8: 64.6 GB; 141 GiB hold 136 GB of it. With all
    # layers whole the KV would be 257.7 GB for each.
    facts = facts_of(CONFIGS["Llama-4-Scout"])
    assert pools_over_capacity(pools(8, "NVIDIA-H200"), facts) == {}
    assert "257.70 GB" in pools_over_capacity(pools(8, "NVIDIA-H200", kvTransfer="always"), facts)["all"]


def test_hybrids_are_checked_by_their_state_and_few_layers_of_kv() -> None:
    # 159.35 GB of weights; 24,576 B x 262,144 = 6.44 GB of KV and 0.04 GB of state: two of 85.9 GB hold it, one not.
    facts = facts_of(CONFIGS["Qwen3-Next-80B-A3B"])
    assert pools_unchecked(pools(1, "h100"), facts) == {}
    assert pools_over_capacity(pools(2, "h200"), facts) == {}
    (why,) = pools_over_capacity(pools(1, "h100"), facts).values()
    assert "the state of one sequence 0.04 GB" in why


def test_gpt_oss_120b_fits_one_accelerator_of_80_gb() -> None:
    # Experts 36 x 128 x 3 x 2880 x 2880 = 114.66e9 numbers of 17/32 bytes, 60.9 GB; the rest 2.1e9 of 2: 65.1 GB.
    config = {**CONFIGS["gpt-oss-20b"], "num_hidden_layers": 36, "num_local_experts": 128}
    config["layer_types"] = ["sliding_attention", "full_attention"] * 18
    facts = facts_of(config)
    assert pools_over_capacity(pools(1, "NVIDIA-H100-80GB-HBM3"), facts) == {}
    (why,) = pools_over_capacity(pools(1, "a100-40gb"), facts).values()
    assert "weights 65.1" in why


def test_a_checkpoint_of_32_bits_is_loaded_in_16() -> None:
    facts = facts_of({**CONFIGS["Llama-3.1-8B"], "torch_dtype": "float32"})
    assert pools_over_capacity(pools(1, "l4", contextTokens=8192), facts) == {}
    assert weight_bytes(EngineSpec(type="vllm"), facts) == 2 * 8_030_261_248
    assert weight_bytes(EngineSpec(type="vllm", dtype="float32"), facts) == 4 * 8_030_261_248


def test_what_a_checkpoint_says_of_its_kv_counts() -> None:
    # 131,072 tokens of KV: 17.2 GB of 16 bits, 8.6 GB of 8; an L4 has 23.2 GB for it and for 9.08 GB of weights.
    plain = {**CONFIGS["Llama-3.1-8B"], "quantization_config": {"quant_method": "fp8"}}
    scaled = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"]}
    assert pools_over_capacity(pools(1, "l4"), facts_of(plain)).keys() == {"all"}
    assert pools_over_capacity(pools(1, "l4"), facts_of({**plain, "quantization_config": scaled})) == {}


def test_whole_experts_are_not_cut() -> None:
    shape = facts_of({**CONFIGS["GLM-4.5-Air"], "moe_intermediate_size": 1411}).shape
    assert shape is not None
    facts = ModelFacts(shape, "bfloat16", 8192)
    assert "does not divide" in pools_over_capacity(pools(8, "h100"), facts)["all"]
    assert pools_over_capacity(pools(8, "h100", parallelism={"tensor": 8, "expert": True}), facts) == {}


@pytest.mark.parametrize(
    ("config", "engine", "said"),
    [
        ({"model_type": "starcoder2"}, {}, "the parts of models of type 'starcoder2' are not known here"),
        (CONFIGS["Gemma-3n"], {}, "type 'gemma3n_text'"),
        ({**CONFIGS["gpt-oss-20b"], "quantization_config": {"quant_method": "quark"}}, {}, "the checkpoint says"),
        (CONFIGS["Llama-3.1-8B"], {"extraArgs": {"cpu_offload_gb": 10}}, "extraArgs.cpu_offload_gb"),
    ],
)
def test_what_is_uncertain_is_not_checked(config: dict[str, Any], engine: dict[str, Any], said: str) -> None:
    facts, service = facts_of(config), pools(1, "t4", **engine)
    assert pools_over_capacity(service, facts) == {}
    assert said in pools_unchecked(service, facts)["all"]


@pytest.mark.parametrize("method", ["modelopt", "gptq", "fp8"])
def test_a_checkpoint_whose_bits_are_not_known_is_not_counted_by_the_name_of_its_method(method: str) -> None:
    facts = ModelFacts(Shape(80, 8192, 64, 8, 128, 28672, 128256), None, 8192)
    assert weight_bytes(EngineSpec(type="vllm", quantization=method), facts) is None
    assert weight_bytes(EngineSpec(type="vllm"), facts) is None


def test_another_revision_of_a_checkpoint_is_not_counted_by_the_files_of_this_one() -> None:
    assert "extraArgs.revision" in unfollowed(EngineSpec(type="vllm", extra_args={"revision": "awq"}))
