"""What placement is asked and what it answers. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True)
class PlacementRequest:
    """A request as far as placement is concerned.

    `prompt_tokens` includes output tokens that are replayed on a resumption; `cached` gives, per worker id, how
    many leading tokens a worker has. `excluded` incarnations, (worker id, epoch), have failed this request:
    they are used only when nothing else can serve it. `local_only` forbids a hand-off.
    """

    model: str
    prompt_tokens: int
    sequences: int
    max_tokens: int
    cached: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[tuple[str, int], ...] = ()
    local_only: bool = False


class Candidate(msgspec.Struct, frozen=True, order=True):
    """A choice by worker ids; without `prefill`, `decode` computes the prompt itself."""

    decode: str
    prefill: str = ""

    def __str__(self) -> str:
        return f"{self.prefill}→{self.decode}" if self.prefill else self.decode


class Breakdown(msgspec.Struct, frozen=True, gc=False):
    """Expected cost in milliseconds. `interference` is what running sequences lose, not this request."""

    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    interference_ms: float

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms + self.transfer_ms + self.decode_ms + self.interference_ms


class Placement(msgspec.Struct, frozen=True):
    """Where a request goes. `mode` is `disaggregated` or `local`; `costs` has the winner first.

    `path` is the transport that carried last from `prefill` to `decode`. `unproved` are pairs, (prefill, decode),
    left out because nobody has asked for their canary yet.
    `prefill_tokens` are the prompt tokens expected to be computed, `cached_tokens` those expected not to be.
    `decode_cached_tokens` are the leading ones that decode has in whole blocks, so that nobody sends them.
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

    def cost_table(self) -> str:
        """The costs as text, one candidate per line, for traces."""
        return "\n".join(
            f"{candidate}: {cost.total_ms:.1f} ms = queue {cost.queue_ms:.1f} + prefill {cost.prefill_ms:.1f}"
            f" + transfer {cost.transfer_ms:.1f} + decode {cost.decode_ms:.1f}"
            f" + interference {cost.interference_ms:.1f}"
            for candidate, cost in self.costs
        )


class Unplaced(msgspec.Struct, frozen=True):
    """No worker can take the request now. `code` is `no_workers`, `queue_full` (all saturated) or
    `out_of_blocks` (it can never fit); `reasons` say why, worker by worker or counted."""

    code: str
    reasons: tuple[str, ...]
