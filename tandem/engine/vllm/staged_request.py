"""A work inside the stage: its blocks, their slots, and what of them is there."""

from dataclasses import dataclass, field

from tandem.core.kv import chain_names, tail_name
from tandem.engine.protocol import EngineRequest, FetchTarget, FirstTokens
from tandem.engine.vllm.stage_params import NO_SLOT


@dataclass(frozen=True)
class Sources:
    """Where a request's prompt tokens came from: the engine's own cache (`cached`), slots that were complete when the
    request came (`staged`), or fetches (`fetched`); the rest was computed. Tokens in slots may be in the engine's
    cache as well.

    `loaded` is the number of blocks copied from slots for the request's first sequence, by the rank that copied
    fewest.
    """

    cached: int = 0
    staged: int = 0
    fetched: int = 0
    loaded: int = 0


class StagedRequest:
    """A request in the stage. Its blocks are those of its prompt: tokens that a branch was forced to are not part of
    them.

    `names` has full blocks only. `slots[i]` is the slot of block i, or `NO_SLOT`; blocks beyond `slots` have none.
    """

    def __init__(self, work: EngineRequest, block_tokens: int, arrival: int, now: float, *, save: bool) -> None:
        self.work = work
        self.work_id = work.work_id
        self.order = (-work.priority, arrival)
        self.opened = now
        self.block_tokens = block_tokens
        self.tokens = len(work.prompt) // 4
        self.blocks = -(-self.tokens // block_tokens)
        self.names = chain_names(work.root, work.prompt, block_tokens)
        self.leased = work.mode == "prefill" and work.lease_id != ""
        self.save = save
        """Whether the blocks that the engine computes are to be saved."""
        self.slots: list[int] = []
        self.complete: dict[int, None] = {}
        self.pending: dict[int, FetchTarget] = {}
        self.withheld: dict[int, None] = {}
        self.saved_by: dict[int, set[int]] = {}
        """Ranks that have written their part of a block, by block, for blocks that are not complete."""
        self.digesting: dict[int, None] = {}
        self.bring = 0
        self.fetching = self.hand_off = False
        self.told = self.closed = self.prefill_lost = False
        self.first: FirstTokens | None = None
        self.firsts: dict[int, int] = {}
        """Next positions by sequence, that came before it had slots."""
        self.loads_over: dict[tuple[int, int], int] = {}
        """Blocks copied, by rank and sequence, of loads that have been reported."""
        self.ended_at: set[int] = set()
        """Ranks that touch no slot for it any more."""
        self.close_by = float("inf")
        self.staged = self.fetched = self.cached = 0

    @property
    def tail(self) -> bytes | None:
        """The hand-off name of the partial last block."""
        full = len(self.names)
        if self.tokens % self.block_tokens == 0:
            return None
        parent = self.names[-1] if full else self.work.root
        return tail_name(parent, self.work.prompt[4 * full * self.block_tokens :])

    def all_names(self) -> tuple[bytes, ...]:
        """Names of all blocks, the partial tail's last."""
        return self.names if self.tail is None else (*self.names, self.tail)

    def tokens_in(self, index: int) -> int:
        """Positions in use of a block."""
        return min(self.block_tokens, self.tokens - index * self.block_tokens)

    @property
    def handed_over(self) -> bool:
        """Whether another worker computes its blocks."""
        return self.work.mode == "decode" and not self.prefill_lost

    def can_be_saved(self, index: int) -> bool:
        """Whether the block has a slot that only the engine fills, and has not filled yet. A block that is being
        fetched is not saved before the fetch has ended."""
        elsewhere = (self.complete, self.withheld, self.digesting, self.pending)
        return (
            index < len(self.slots) and self.slots[index] != NO_SLOT and all(index not in each for each in elsewhere)
        )

    @property
    def unsaved(self) -> list[int]:
        """Blocks with a slot that the engine may still write to."""
        if not self.save:
            return []
        return [
            index
            for index, slot in enumerate(self.slots)
            if slot != NO_SLOT and index not in self.complete and index not in self.withheld
        ]

    def sources(self) -> Sources:
        first = self.work.branches[0].sequence
        loaded = [copied for (_, sequence), copied in self.loads_over.items() if sequence == first]
        return Sources(self.cached, self.staged, self.fetched, min(loaded, default=0))


@dataclass
class Opened:
    """The outcome of taking a request. If `waiting`, `on_admitted` gives the parameters later; otherwise they are in
    `params`."""

    waiting: bool
    params: dict[str, object] | None = field(default=None)
