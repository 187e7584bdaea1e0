"""What vLLM's CPU kernel for rotary positions does to latents: why some models of them are not handed over there."""

import pytest
import torch

from tandem.engine.vllm.exchange import wrong_rotation

HEADS, NOPE, ROPE, LATENT = 4, 64, 64, 512
UNSCALED = {"rope_type": "default", "rope_theta": 10000.0}
SCALED = {
    "rope_type": "deepseek_yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}


def turned(parameters: dict[str, object], count: int, operations: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of `count` tokens, of the shape and the strides that vLLM's MLA layer gives them, turned by
    what it would use."""
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT, get_rope

    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=["all", *operations]))
    with set_current_vllm_config(config):
        # What was built under another configuration is kept by vLLM.
        _ROPE_DICT.clear()
        rope = get_rope(ROPE, 2048, is_neox_style=False, rope_parameters=dict(parameters), dtype=torch.float32)
        drawn = torch.Generator().manual_seed(1)
        queries = torch.randn(8, HEADS, NOPE + ROPE, generator=drawn)[:count]
        latents = torch.randn(8, LATENT + ROPE, generator=drawn)[:count]
        found = rope(torch.arange(8)[:count] + 3, queries[..., NOPE:], latents[:, LATENT:].unsqueeze(1))
        _ROPE_DICT.clear()
    return found[0].reshape(count, HEADS, ROPE), found[1].reshape(count, ROPE)


def right(parameters: dict[str, object], operations: list[str]) -> bool:
    """Whether tokens are turned as vLLM's own Python does it."""
    found, python = turned(parameters, 8, operations), turned(parameters, 8, ["-rotary_embedding"])
    return all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in zip(found, python, strict=True))


@pytest.mark.parametrize(
    ("parameters", "operations"),
    [(UNSCALED, []), (UNSCALED, ["-rotary_embedding"]), (SCALED, []), (SCALED, ["-rotary_embedding"])],
    ids=["unscaled", "unscaled without the kernel", "scaled", "scaled without the kernel"],
)
def test_latents_are_handed_over_where_vllm_turns_them_rightly(
    parameters: dict[str, object], operations: list[str]
) -> None:
    """Where this fails since vLLM turns all of them rightly, `wrong_rotation` has no reason any more."""
    refused = bool(wrong_rotation(parameters, {"custom_ops": operations}))
    assert refused == (not right(parameters, operations))
