"""What a peer's policy is asked, and the shape they all have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(slots=True)
class CandidateView:
    """One candidate as its router sees it. `in_flight` and `prefill_tokens` it counts itself: requests it sent that
    have not ended, and their uncached prompt tokens while no first token has come; `waiting` and `kv_usage` (a share)
    it scrapes. `hbm`, `dram` and `nvme` are leading prompt tokens by where they are, as told by block events."""

    in_flight: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefill_tokens: int = 0
    hbm: int = 0
    dram: int = 0
    nvme: int = 0

    @property
    def cached(self) -> int:
        """Leading prompt tokens in whatever tier."""
        return self.hbm + self.dram + self.nvme


@dataclass(slots=True)
class PeerContext:
    """One request and its candidates. A choice is a position in `seen`."""

    number: int
    blocks: Sequence[int]
    block_tokens: int
    input_tokens: int
    seen: Sequence[CandidateView]
    now: float = 0.0

    def tokens(self, blocks: int) -> int:
        """In the first so many blocks."""
        return min(blocks * self.block_tokens, self.input_tokens)


@dataclass(frozen=True)
class PoolFacts:
    """What whoever configures a router knows of the workers that one of its policies chooses among. `kv_tokens` each
    worker's pool holds; `prefill_tokens_per_s` is what an idle one computes of a chunk as large as it takes."""

    workers: int
    kv_tokens: int
    prefill_tokens_per_s: float


class Peer:
    """A policy over a fixed pool of candidates. What it does not need it does not override."""

    in_flight_to_end: ClassVar[bool] = False
    """Whether a request counts as in flight on the prefill worker it was sent to until its answer has ended, not only
    until its first token."""

    def choose(self, ask: PeerContext) -> int:
        """The candidate for a request, which is sent there in any case."""
        raise NotImplementedError

    def local(self, ask: PeerContext, chosen: int) -> bool:
        """Of a pool beside prefill workers, asked after `choose`: whether its choice computes the prompt itself."""
        return False

    def first_token(self, number: int, chosen: int) -> None:
        """The prompt of request `number` has been computed, by whom this pool chose."""

    def finished(self, number: int, chosen: int) -> None:
        """The request has ended."""


def least(costs: Sequence[float]) -> list[int]:
    """All positions with the least cost."""
    best = min(costs)
    return [position for position, cost in enumerate(costs) if cost == best]
