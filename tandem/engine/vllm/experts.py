"""The placement of experts on ranks, and how unevenly tokens go to them. Pure; imports no vLLM."""

from collections.abc import Sequence

from tandem.engine.counts import ExpertBalance


def experts_of(rank: int, ranks: int, experts: int) -> range:
    """The experts of a rank as vLLM deals them out (`linear`): in order, the first ranks one more where that does not
    come out even."""
    assert 0 <= rank < ranks <= experts, f"rank {rank} of {ranks} with {experts} experts"
    each, more = divmod(experts, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def imbalance(loads: Sequence[int]) -> float:
    """The busiest's load over the mean; 1 when there is none."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def balance_of(layers: Sequence[Sequence[int]], ranks: int) -> ExpertBalance | None:
    """The expert balance, from the tokens per expert of each layer. `ranks` above 1 share the experts. None when no
    token was counted."""
    busy = [loads for loads in layers if sum(loads)]
    if not busy:
        return None
    over_experts = sum(imbalance(loads) for loads in busy) / len(busy)
    if ranks == 1:
        return ExpertBalance(over_experts, None)
    over_ranks = sum(imbalance(_by_rank(loads, ranks)) for loads in busy) / len(busy)
    return ExpertBalance(over_experts, over_ranks)


def _by_rank(loads: Sequence[int], ranks: int) -> list[int]:
    owned = (experts_of(rank, ranks, len(loads)) for rank in range(ranks))
    return [sum(loads[expert] for expert in experts) for experts in owned]
