"""Which rank has which experts, as Tandem has it and as vLLM deals them out."""

import pytest
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

from tandem.engine.vllm.experts import experts_of


@pytest.mark.parametrize(("ranks", "experts"), [(2, 4), (2, 5), (3, 8), (4, 4), (8, 60)])
def test_ranks_have_the_experts_that_vllm_gives_them(ranks: int, experts: int) -> None:
    for rank in range(ranks):
        count, where, _ = determine_expert_map(ranks, rank, experts)
        owned = experts_of(rank, ranks, experts)
        assert count == len(owned)
        assert where is not None
        assert [expert for expert in range(experts) if where[expert] >= 0] == list(owned)
