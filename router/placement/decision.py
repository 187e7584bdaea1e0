"""The requests that placement takes and the answers it gives. Values only."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kv_transfer.index.protocol import Held
from tandem.core.slo import Slo


class Needs(NamedTuple):
    """The needs of a request that not every worker meets: features of its engine, and a LoRA adapter of this
    content."""

    features: tuple[str, ...] = ()
    adapter: str = ""
    adapter_hash: str = ""


class Objective(NamedTuple):
    """Upper bounds that a request is to hold, in milliseconds: time to its first token since it arrived, and mean
    time per token after that. None for no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @classmethod
    def of(cls, slo: Slo, *, begun: bool = False) -> "Objective | None":
        """The objective that `slo` sets; None where it sets none. The bound of the gap between tokens also bounds
        their mean. A request that has `begun` to answer waits for no first token."""
        ttft_ms = None if slo.ttft_s is None or begun else 1e3 * slo.ttft_s
        tpot_ms = None if slo.step_s is None else 1e3 * slo.step_s
        return None if ttft_ms is None and tpot_ms is None else cls(ttft_ms, tpot_ms)


class PlacementRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as placement sees it.

    `prompt_tokens` includes output tokens that are replayed on a resumption; `held` gives, per worker id, how many
    leading blocks of the prompt a worker has, in its pool and below. `excluded` incarnations, (worker id, epoch),
    have failed this request: they are used only when nothing else can serve it. `local_only` forbids a hand-off.
    """

    model: str
    prompt_tokens: int
    sequences: int
    max_tokens: int
    held: Mapping[str, Held] = {}
    excluded: tuple[tuple[str, int], ...] = ()
    local_only: bool = False
    names: Mapping[bytes, Sequence[bytes]] = {}
    """The names of the prompt's full blocks by the root name of the workers that use them: one entry, but for a
    rollout. Workers of different roots never share blocks."""
    prompt_cache_key: str = ""
    """The client's key: requests with equal keys are said to have a prefix in common. Empty where nothing is said."""
    request_id: str = ""
    needs: Needs | None = None
    """None for a request that any worker of its model can serve."""
    revision: str = ""
    """Whose workers may take it; empty for any."""
    objective: Objective | None = None
    """The bounds that the request is to hold; None where nothing sets any. A request that has begun to answer waits
    for no first token."""
    age_ms: float = 0.0
    """Milliseconds since the request arrived."""
    weight: float = 1.0
    """Weight of the request's objective relative to those of others; 1 for requests without a priority."""

    def figures(self) -> "PlacementRequest":
        """All but what its blocks are called and who has them, which for a long prompt is much to keep."""
        return PlacementRequest(
            self.model,
            self.prompt_tokens,
            self.sequences,
            self.max_tokens,
            excluded=self.excluded,
            local_only=self.local_only,
            prompt_cache_key=self.prompt_cache_key,
            request_id=self.request_id,
            needs=self.needs,
            revision=self.revision,
            objective=self.objective,
            age_ms=self.age_ms,
            weight=self.weight,
        )


class Candidate(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A choice by worker ids; without `prefill`, `decode` computes the prompt itself."""

    decode: str
    prefill: str = ""

    def __str__(self) -> str:
        return f"{self.prefill}→{self.decode}" if self.prefill else self.decode


class Breakdown(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The expected cost of a candidate in milliseconds. `fetch` is for blocks that other workers or lower tiers
    bring. `interference` is what other requests lose, not this one. `misses` is what the misses of objectives cost
    that the choice makes more likely, the request's own and others'."""

    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    interference_ms: float
    fetch_ms: float = 0.0
    misses_ms: float = 0.0

    @property
    def completion_ms(self) -> float:
        """Milliseconds until the request's own end."""
        return self.queue_ms + self.fetch_ms + self.prefill_ms + self.transfer_ms + self.decode_ms

    @property
    def total_ms(self) -> float:
        """The cost that placement minimizes: the request's own time, what others lose by it, and misses of
        objectives."""
        return self.completion_ms + self.interference_ms + self.misses_ms


class SourceChoice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A holder from whom fetching leading blocks is expected to beat computing them.

    `kind` is `peer` or `store`. The computing worker has fewer than `blocks` leading blocks itself; `expected_ms` is
    what bringing those it lacks takes.
    """

    holder: str
    kind: str
    blocks: int
    expected_ms: float


class Work(NamedTuple):
    """The work that one attempt puts on one worker, as the worker's view counts it."""

    sequences: int
    prompt_tokens: int = 0
    """Prompt tokens to compute on this worker."""
    prompt_ms: float = 0.0
    """Milliseconds that fetching and computing the prompt tokens is expected to take."""
    context_tokens: int = 0
    """Positions that its sequences will attend to, all together."""


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where a request goes. `mode` is `disaggregated` or `local`; `costs` has the winner first.

    `path` is the transport that last carried blocks from `prefill` to `decode`. `unproved` are pairs, (prefill,
    decode), left out because their canary has not been requested yet. `prefill_tokens` are the prompt tokens expected
    to be computed, `cached_tokens` those expected not to be. `decode_cached_tokens` are the leading ones that decode
    holds in whole blocks, so that they are not sent.
    """

    mode: str
    decode: str
    prefill: str | None
    prefill_tokens: int
    cached_tokens: int
    costs: tuple[tuple[Candidate, Breakdown], ...]
    reasons: tuple[str, ...]
    decode_cached_tokens: int = 0
    path: str = ""
    unproved: tuple[tuple[str, str], ...] = ()
    sources: tuple[SourceChoice, ...] = ()
    """Whom the worker that computes the prompt may fetch leading blocks from, the cheapest first; at most two."""
    new_tokens: int = 0
    """Prompt tokens that the computing worker's pool does not have yet, whether they are computed or brought."""
    answer_tokens: float = 0.0
    """Expected of all its sequences together."""
    turned: float = 0.0
    """The request's new tokens, as a share of all tokens that caches like the computing worker's hold together."""
    beside: float = 0.0
    """Sequences that run on the mean worker, each counting as much as a millisecond of it does."""

    @property
    def computing(self) -> str:
        """The worker that computes the prompt."""
        return self.decode if self.prefill is None else self.prefill

    @property
    def first_ms(self) -> float:
        """Milliseconds from now until the first token is expected; 0 where nothing was priced."""
        if not self.costs:
            return 0.0
        candidate, cost = self.costs[0]
        chosen = candidate == Candidate(self.decode, self.prefill or "")
        return cost.queue_ms + cost.fetch_ms + cost.prefill_ms if chosen else 0.0

    def work(self, sequences: int) -> tuple[Work, Work | None]:
        """The work that an attempt of so many sequences puts on decode, and on prefill if there is one."""
        candidate, cost = self.costs[0]
        chosen = candidate == Candidate(self.decode, self.prefill or "")
        prompt_ms = cost.fetch_ms + cost.prefill_ms if chosen else 0.0
        context = sequences * (self.prefill_tokens + self.cached_tokens)
        if self.prefill is None:
            return Work(sequences, self.prefill_tokens, prompt_ms, context), None
        return Work(sequences, context_tokens=context), Work(sequences, self.prefill_tokens, prompt_ms)

    def cost_table(self) -> str:
        """The costs as text, one candidate per line, for traces."""
        return "\n".join(
            f"{candidate}: {cost.total_ms:.1f} ms = queue {cost.queue_ms:.1f} + fetch {cost.fetch_ms:.1f}"
            f" + prefill {cost.prefill_ms:.1f} + transfer {cost.transfer_ms:.1f} + decode {cost.decode_ms:.1f}"
            f" + interference {cost.interference_ms:.1f} + misses {cost.misses_ms:.1f}"
            for candidate, cost in self.costs
        )


class Unplaced(msgspec.Struct, frozen=True):
    """The answer when no worker can take the request now. `code` is `no_workers`, `queue_full` (all workers are
    saturated) or `out_of_blocks` (the request can never fit); `reasons` say why, worker by worker or counted."""

    code: str
    reasons: tuple[str, ...]
