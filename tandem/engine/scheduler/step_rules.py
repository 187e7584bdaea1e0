"""The rules by which a step is planned, as plain arithmetic: who is next, who may enter, how long a chunk is.

The scheduler plans with them, and so does the fleet simulator. Pure: numbers in, numbers out; no sequence, no pool.
"""

from collections.abc import Collection
from typing import Final, Literal, Protocol

import msgspec

from tandem.engine.scheduler.step_model import PromptCost

Order = tuple[int, int]
"""Sort key of a request: (-priority, arrival)."""

Way = Literal["compute", "fetch", "bring"]
"""The way in which a request that enters the batch gets its prompt's KV: `compute` computes it, `fetch` fetches what
a prefill worker computes, `bring` fetches the blocks that peers or tiers have and computes the rest."""

_NO_BLOCKS: Final[frozenset[int]] = frozenset()


class StepBounds(Protocol):
    """The bounds on the prompts of a step. With `itl_target_s` None, running sequences have no target."""

    @property
    def max_batched_tokens(self) -> int: ...
    @property
    def min_prefill_tokens(self) -> int: ...
    @property
    def itl_target_s(self) -> float | None: ...


class Budget(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens that one prompt may take of the next step, and the sentence that explains them."""

    tokens: int
    reason: str


class Allowance(msgspec.Struct, gc=False):
    """What is left of one step for prompts. With `seconds` None, `tokens` alone bounds them."""

    tokens: int
    floor: int
    seconds: float | None
    cost: PromptCost
    rows: int
    """Sequences that decode in the step."""
    target_s: float

    @property
    def beside(self) -> str:
        return f"beside {self.rows} decoding (ITL target {self.target_s * 1e3:g} ms)"

    @property
    def spent(self) -> bool:
        return self.tokens <= 0

    @property
    def exhausted(self) -> bool:
        """Whether no prompt can get a token more, wherever it stands."""
        if self.seconds is None or self.floor > 0:
            return self.tokens <= 0
        return self.tokens <= 0 or self.cost.tokens_within(self.seconds, 0.0) < 1

    def tokens_for(self, start: float) -> int:
        """The tokens of `offer`, without their reason."""
        if self.seconds is None:
            return self.tokens
        return min(self.tokens, max(self.floor, int(self.cost.tokens_within(self.seconds, start))))

    def offer(self, start: float) -> Budget:
        """The tokens that the prompt with `start` computed tokens may take now; 0 when its turn comes in a later
        step."""
        if self.seconds is None:
            return Budget(self.tokens, "no ITL target" if self.rows else "prefill alone: max_batched_tokens")
        fits = int(self.cost.tokens_within(self.seconds, start))
        if fits >= self.tokens:
            return Budget(self.tokens, f"chunk bounded by max_batched_tokens {self.beside}")
        if fits < self.floor:
            return Budget(min(self.floor, self.tokens), f"chunk at its floor {self.beside}: the target is full")
        return Budget(fits, f"chunk held to the target {self.beside}")

    def take(self, start: int, count: int) -> None:
        """`count` tokens of a prompt go into the step."""
        self.tokens -= count
        self.floor = max(0, self.floor - count)
        if self.seconds is not None:
            self.seconds -= self.cost.seconds(start, count)


def open_allowance(bounds: StepBounds, rows: int, running_s: float, margin: float, cost: PromptCost) -> Allowance:
    """The room of a step beside `rows` decoding sequences, which take `running_s` seconds by themselves.

    What they leave of the target, which is divided by `margin` because steps may take longer than expected, goes to
    prompts; where they leave nothing, prompts still get `min_prefill_tokens`. Nothing decodes, or there is no
    target: `max_batched_tokens` alone bounds the prompts.
    """
    tokens, target_s = bounds.max_batched_tokens - rows, bounds.itl_target_s
    if rows == 0 or target_s is None:
        return Allowance(max(1, tokens), 0, None, cost, rows, target_s or 0.0)
    return Allowance(max(1, tokens), bounds.min_prefill_tokens, target_s / margin - running_s, cost, rows, target_s)


def chunk_end(start: int, length: int, tokens: int, block_tokens: int, filled: Collection[int] = _NO_BLOCKS) -> int:
    """The position at which the chunk that begins at `start` ends, in a prompt of `length` tokens. The chunk has at
    most `tokens` tokens, ends at a block boundary where possible, and stops before the first of the `filled` blocks
    after its own first block, because their KV is here already."""
    end = min(length, start + tokens)
    if end < length:
        aligned = end - end % block_tokens
        end = aligned if aligned > start else end
    if filled:
        for block in range(start // block_tokens + 1, -(-end // block_tokens)):
            if block in filled:
                return block * block_tokens
    return end


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens, the last perhaps in part."""
    return -(-tokens // block_tokens)


def spare_blocks(watermark: float, blocks: int, busy: bool) -> int:
    """The number of blocks of a pool that stay free when a request enters beside others, so that their growth does
    not cause preemption at once; 0 when nothing runs."""
    return int(watermark * blocks) if busy else 0


def may_export(exported: int, blocks: int, pool: int, share: float) -> bool:
    """Whether a prompt of `blocks` may enter that will be exported, `exported` blocks of the pool being so or to be.

    Exports stay within their share. A prompt that is larger than the share may exceed it, where the pool has room
    for it: else it would wait until nothing at all is exported, and everybody behind it.
    """
    limit = share * pool
    return not exported or exported + blocks <= (limit if blocks <= limit else pool)


def may_enter(way: Way, budget_left: bool, brought_ahead: int, fetch_ahead: int) -> bool:
    """Whether the first waiting sequence of this `way` may enter, apart from the blocks and the place it needs.

    Computing uses the budget of the step; the fetch of a hand-off uses none. Without budget, blocks are brought for
    up to `fetch_ahead` requests, including the `brought_ahead` requests that are there already.
    """
    return budget_left or way == "fetch" or (way == "bring" and brought_ahead < fetch_ahead)


def order_of(priority: int, arrival: int) -> Order:
    """Higher priority first, then earlier arrival. Preemption goes from the other end."""
    return (-priority, arrival)


def urgency(order: Order, branch: int) -> tuple[Order, int]:
    """Sorts the sequences of a batch, the most urgent first: by their work, then by branch."""
    return (order, branch)


def turn(ready: bool, order: Order, branch: int) -> tuple[bool, Order, int]:
    """Sorts waiting sequences: those whose work is ready first, then by urgency."""
    return (not ready, order, branch)
