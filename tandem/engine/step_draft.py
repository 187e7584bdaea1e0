"""A step while it is being planned, and the notes needed to read its result."""

from tandem.engine.plan import BlockRef, Row, Step
from tandem.engine.sequence import Sequence
from tandem.engine.step_budget import StepLoad


class Entry:
    """One row and what it will have brought about: `end` positions computed, `complete` block indexes."""

    __slots__ = ("complete", "copies", "end", "prefill", "row", "sequence")

    def __init__(self, sequence: Sequence, row: Row, end: int, complete: tuple[int, ...], prefill: bool) -> None:
        self.sequence = sequence
        self.row = row
        self.end = end
        self.complete = complete
        self.prefill = prefill


class Draft:
    """Rows so far. A sequence that is preempted while the step is planned is dropped again."""

    def __init__(self) -> None:
        self.entries: dict[Sequence, Entry] = {}
        self.copies: dict[Sequence, tuple[int, int]] = {}
        self.claims: dict[bytes, None] = {}
        """Names of blocks that complete in this step: others need not compute them too."""
        self.preempted = False
        self.decode_rows = 0

    def add(self, entry: Entry) -> None:
        self.entries[entry.sequence] = entry

    def drop(self, sequence: Sequence) -> None:
        entry = self.entries.pop(sequence, None)
        if entry is not None and not entry.prefill:
            self.decode_rows -= 1
        self.copies.pop(sequence, None)
        self.preempted = True

    def load(self) -> StepLoad:
        """The work in it, as the step-time model sees it."""
        tokens, context, pieces, decode_context = 0, 0.0, 0, 0.0
        for entry in self.entries.values():
            if entry.prefill:
                count = entry.row.count
                pieces += 1
                tokens += count
                context += count * (entry.row.start + count / 2)
            else:
                decode_context += entry.row.start
        return StepLoad(self.decode_rows, tokens, context, pieces, decode_context)

    def step(self, number: int, landed: tuple[int, ...], block_tokens: int) -> Step:
        """The finished plan. Only a root's last block can be partial when it is complete: a tail."""
        complete = []
        for entry in self.entries.values():
            for block in entry.complete:
                tokens = min(block_tokens, entry.end - block * block_tokens)
                complete.append(BlockRef(entry.sequence.table[block], tokens))
        return Step(
            number=number,
            rows=tuple(entry.row for entry in self.entries.values()),
            copies=tuple(self.copies.values()),
            landed=landed,
            complete=tuple(complete),
        )
