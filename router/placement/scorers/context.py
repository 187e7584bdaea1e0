"""The values that all scorers of one decision share: everything a price depends on besides the worker, computed
once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from kv_transfer.index.protocol import Held
from router.placement.costs import CostModel
from router.placement.decision import PlacementRequest
from router.placement.learning.prefill_costs import PrefillTerms
from router.placement.learning.step_costs import StepTerms
from router.placement.scorers.stakes import Stakes
from router.settings import PlacementSettings

SpeculativeBlocks = Mapping[tuple[bytes, str], int]
"""Leading blocks of a prompt that a worker is expected to have soon, by root name and worker id."""
NO_SPECULATION: Final[SpeculativeBlocks] = MappingProxyType({})
EVEN: Final[Mapping[str, float]] = MappingProxyType({})
"""All sequences have as much still to come."""


class PromptPlan(msgspec.Struct, frozen=True, gc=False):
    """How a worker obtains the prompt: milliseconds, and the tokens that are to be computed. `prefill_ms` is what
    these tokens add to steps."""

    fetch_ms: float
    prefill_ms: float
    uncached: int
    new: int
    """Tokens that the worker's pool does not have yet: their blocks are as large when they are brought."""
    new_ms: float
    """Milliseconds that computing all `new` tokens would take."""


class Trend(msgspec.Struct, frozen=True, gc=False):
    """Trends of the last placements, as an estimate of those to come."""

    arrivals_per_ms: float = 0.0
    """Requests, at the whole fleet."""
    reuse: float = 0.0
    """The share of prompt tokens that some worker had already."""
    fills: Mapping[str, float] = {}
    """How much each worker's cache has taken up lately, by worker id and in any unit."""
    mean_fill: float = 0.0
    """The mean of all `fills`."""
    beside: float = 0.0
    """Sequences that ran on the mean worker when prompts came, while the caches were turned over once; each counts as
    much as a millisecond of it did."""
    slowdown: float = 0.0
    """First tokens of late, expected: how many times as long as they take alone, or as a second."""


class Batches(msgspec.Struct, frozen=True, gc=False):
    """The batches of the workers that may generate: the means of their `sequences` and `attended_tokens`, and how
    many requests it takes to make the batches even, at least one for each worker. `lasting_*` are the same means,
    with each worker counting as much as `ScoringContext.lasting` says."""

    sequences: float
    attended_tokens: float
    to_even: float
    lasting_sequences: float
    lasting_attended: float
    decoding: float
    """The mean of `decoding`."""


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A worker that holds the prompt's first `blocks` blocks, of which `tokens` tokens need not be computed: at most
    all of the prompt but its last token. Bringing some of the blocks takes `begin_ms`, and `block_ms` for each."""

    worker_id: str
    kind: str
    blocks: int
    tokens: int
    begin_ms: float
    block_ms: float


@dataclass(slots=True)
class ScoringContext:
    """One request. `holders` are who may be asked for its leading blocks, by pairing, the longest first; `promised`
    leading blocks are on their way to be computed on a worker."""

    request: PlacementRequest
    costs: CostModel
    settings: PlacementSettings
    prefill_terms: Mapping[str, PrefillTerms]
    """Terms of prompts by worker id, as `costs` knows them; likewise `step_terms`."""
    step_terms: Mapping[str, StepTerms]
    held: Mapping[str, Held]
    holders: Mapping[int, tuple[Holder, ...]]
    promised: SpeculativeBlocks
    batches: Batches
    answer_tokens: float
    """Expected of each sequence."""
    later_sequences: float
    """Sequences of a batch, with this request, when batches are even again; likewise `later_attended`."""
    later_attended: float
    needed: float
    """Positions for which it needs room in the end, all its sequences together."""
    stream_weight: float
    """Weight of a millisecond of a running stream relative to one of waiting for a first token: 1 where the request
    has an objective, whose misses are priced separately."""
    uneven_weight: float
    """`stream_weight` times the number of steps of the answer that a difference between batches counts for."""
    stalled: float
    """Cost to a sequence of each millisecond of a prompt beside it; `usually` is the cost to all sequences on the
    mean worker together."""
    usually: float
    arrivals_per_ms: float
    """Prompts, at each worker that computes them."""
    trend: Trend
    displacing: float
    """Share of what new blocks push out of a cache that has to be computed again, per unit of `trend.fills` that the
    cache has taken up."""
    lasting: Mapping[str, float]
    """By worker id, how much its sequences have still to generate compared to those under way on average; 1 for a
    worker that is missing."""
    stakes: Stakes | None
    """The stakes of objectives in this decision; None where the request has no objective."""
    ways: dict[tuple[int, int, float, float], PromptPlan] = field(default_factory=dict)
    """Plans for the prompt, computed once for all workers that are alike: by pairing, leading blocks in their pool,
    and milliseconds per token and attended position. Workers with more of the prompt below their pool are not among
    them."""
