"""What the scheduler tells a runner to compute, and what the runner answers. Values only.

A runner is stateless between steps except for the KV bytes themselves: each plan carries all it needs. Values created
once per token are `msgspec.Struct`s: creating one costs a fifteenth of creating a frozen dataclass.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tandem.core.messages import TokenLogprob
from tandem.core.request import Sampling
from tandem.engine.protocol import BlockMemory, EngineInfo
from tandem.engine.scheduler.stall_detection import ProcessSample


class Draw(msgspec.Struct, frozen=True, gc=False):
    """Sample one position from a row's last logits.

    `seed`, `sequence`, `position` give the random word (`tandem.core.entropy.position_unit`).
    `prompt` and `output` (packed uint32) are set only when `sampling.needs_history`.
    `forbidden` are token ids that may not be drawn yet (end tokens below `min_tokens`).
    """

    work_id: int
    sequence: int
    seed: int
    position: int
    sampling: Sampling
    prompt: bytes = b""
    output: bytes = b""
    forbidden: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of a step: compute KV and activations of `tokens`, which stand at `start`.

    `table` is the sequence's block table, packed uint32 slots, covering start + len(tokens) positions.
    `write` False recomputes without writing KV (the last token of a fully cached prompt).
    `draws` sample from the last token's logits; several for the n branches of one prompt, none for a chunk
    in the middle of a prompt.
    """

    tokens: bytes
    start: int
    table: bytes
    write: bool = True
    draws: tuple[Draw, ...] = ()

    @property
    def count(self) -> int:
        return len(self.tokens) // 4


class BlockRef(msgspec.Struct, frozen=True, gc=False):
    """A block in its slot. For `Step.complete`: `tokens` < block_tokens is a tail whose rest must be zeroed."""

    slot: int
    tokens: int


class Lane(msgspec.Struct, frozen=True, gc=False):
    """The part of a sequence that stays the same from token to token: its identity, and how its tokens are drawn."""

    work_id: int
    sequence: int
    seed: int
    sampling: Sampling


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Rows of one written token and one draw each, a column per field: there is one for every token of everybody.

    Only sequences whose tokens the logits, the seed and the position alone decide: no log-probabilities, no bias, no
    history, nothing forbidden.
    """

    lanes: list[Lane]
    positions: list[int]
    """Output positions to draw."""
    tokens: bytes
    """Packed uint32, one of each row."""
    starts: list[int]
    tables: list[bytes]


class Step(msgspec.Struct, frozen=True):
    """One forward pass. Order: `copies` (src slot, dst slot), then columns and rows, then digests of `complete`."""

    number: int
    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()
    landed: tuple[int, ...] = ()
    """Slots filled from outside since the last step; a runner whose KV is not host memory loads them first."""
    complete: tuple[BlockRef, ...] = ()
    """Blocks that are complete after this step and whose digests are wanted."""
    columns: Columns | None = None
    """Never for a runner whose `EngineInfo.columns` is False: there these are rows like all others."""


class Drawn(msgspec.Struct, frozen=True, gc=False):
    """A sampled token. `logprob` is set when the sampling asked for it."""

    work_id: int
    sequence: int
    position: int
    token: int
    logprob: TokenLogprob | None = None


class StepResult(msgspec.Struct, frozen=True):
    """`digests[i]` are the unbound content words of `complete[i]`; `compute_s` is measured by the runner.

    `tokens[i]` is what was drawn for row i of the step's columns, `drawn` what was for all other rows.
    """

    number: int
    drawn: tuple[Drawn, ...]
    digests: tuple[bytes, ...]
    compute_s: float
    tokens: Sequence[int] = ()


class Runner(Protocol):
    """The computing half of an engine. One step at a time; the caller awaits each result."""

    @property
    def memory(self) -> BlockMemory:
        """The bytes behind the slots of its plans; there once `load` has returned."""
        ...

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        """Report samples of the process that computes to `seen` from now on, several times a second. A runner that
        computes in this process reports nothing."""
        ...

    async def load(self) -> EngineInfo:
        """Load weights and allocate KV memory. Raises `bad_model`, `bad_setting`."""
        ...

    async def execute(self, step: Step) -> StepResult:
        """Run one step. Raises `engine_failed`; after that the runner is not used again."""
        ...

    async def close(self) -> None: ...
