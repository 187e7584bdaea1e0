"""A step while it is being planned, and the notes needed to read its result."""

import msgspec

from tandem.engine.scheduler.plan import BlockRef, Columns, Row, Step
from tandem.engine.scheduler.sequence import Sequence
from tandem.engine.scheduler.step_budget import StepLoad


class Entry(msgspec.Struct, gc=False):
    """One row of a step and its effect: `end` is the number of positions computed after the step, `complete` holds
    the indexes of the blocks that it completes."""

    sequence: Sequence
    row: Row
    end: int
    complete: tuple[int, ...]
    prefill: bool


class Draft:
    """Rows so far. A sequence that is preempted while the step is planned is dropped again."""

    def __init__(self) -> None:
        self.entries: dict[Sequence, Entry] = {}
        self.generating: dict[Sequence, None] = {}
        """Sequences that get a token as part of the step's columns, in the columns' order."""
        self.filled: dict[Sequence, int] = {}
        """The generating sequences that complete a block in this step, and the index of that block."""
        self.copies: dict[Sequence, tuple[int, int]] = {}
        self.claims: dict[bytes, None] = {}
        """Names of blocks that complete in this step: others need not compute them too."""
        self.preempted = False
        self.unmeasured = False
        """Whether the step contains a private prompt, which is small and as often as not the first step ever: its
        time tells nothing."""
        self.decode_rows = 0
        self.decode_context = 0.0
        self._pieces = 0
        self._tokens = 0
        self._context = 0.0

    def add(self, entry: Entry) -> None:
        self.entries[entry.sequence] = entry
        self._count(entry, 1)

    @property
    def empty(self) -> bool:
        return not (self.entries or self.generating)

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.generating:
            del self.generating[sequence]
            self.filled.pop(sequence, None)
            self.decode_rows -= 1
            self.decode_context -= sequence.computed
        entry = self.entries.pop(sequence, None)
        if entry is not None:
            self._count(entry, -1)
        self.copies.pop(sequence, None)
        self.preempted = True

    def _count(self, entry: Entry, sign: int) -> None:
        if entry.prefill:
            count = entry.row.count
            self.unmeasured |= entry.sequence.job.work.private
            self._pieces += sign
            self._tokens += sign * count
            self._context += sign * count * (entry.row.start + count / 2)
        else:
            self.decode_rows += sign
            self.decode_context += sign * entry.row.start

    def load(self) -> StepLoad:
        """The work in it, as the step-time model sees it."""
        return StepLoad(self.decode_rows, self._tokens, self._context, self._pieces, self.decode_context)

    def step(self, number: int, landed: tuple[int, ...], block_tokens: int) -> Step:
        """The finished plan. Only a root's last block can be partial when it is complete: a tail."""
        complete = [BlockRef(sequence.table[block], block_tokens) for sequence, block in self.filled.items()]
        entries = self.entries.values()
        for entry in entries:
            for block in entry.complete:
                tokens = min(block_tokens, entry.end - block * block_tokens)
                complete.append(BlockRef(entry.sequence.table[block], tokens))
        return Step(
            number=number,
            rows=tuple([entry.row for entry in entries]),
            copies=tuple(self.copies.values()),
            landed=landed,
            complete=tuple(complete),
            columns=_columns(tuple(self.generating)) if self.generating else None,
        )


def _columns(generating: tuple[Sequence, ...]) -> Columns:
    return Columns(
        [sequence.lane for sequence in generating],
        [sequence.outputs + 1 for sequence in generating],
        b"".join([sequence.last for sequence in generating]),
        [sequence.computed for sequence in generating],
        [sequence.table_packed or sequence.packed_table() for sequence in generating],
    )
