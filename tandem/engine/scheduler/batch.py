"""Admitted sequences by phase, and who has to make room first."""

from collections.abc import Iterator

from tandem.engine.scheduler.sequence import Phase, Sequence
from tandem.engine.scheduler.step_rules import Order, urgency


class Batch:
    """Sequences that hold blocks. Iteration order is the order in which they entered a phase."""

    def __init__(self) -> None:
        self.decoding: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.parked: dict[Sequence, None] = {}
        self._width: dict[Sequence, int] = {}
        self.width = 0
        """The number of sequences admitted, where a trunk counts as many as will fork from it."""

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.prefilling
        yield from self.parked

    def move(self, sequence: Sequence, phase: Phase) -> None:
        """Put a sequence into a phase; phases without blocks take it out of the batch."""
        old, new = self._group(sequence.phase), self._group(phase)
        sequence.phase = phase
        if old is new:
            return
        if old is not None:
            del old[sequence]
        if new is not None:
            new[sequence] = None
        if old is None:
            self._width[sequence] = sequence.job.live if sequence.is_parent else 1
            self.width += self._width[sequence]
        elif new is None:
            self.width -= self._width.pop(sequence)

    def width_of(self, sequence: Sequence) -> int:
        """The width that an admitted sequence contributes to the batch."""
        return self._width[sequence]

    def _group(self, phase: Phase) -> dict[Sequence, None] | None:
        if phase is Phase.DECODE:
            return self.decoding
        if phase is Phase.PREFILL:
            return self.prefilling
        return self.parked if phase is Phase.PARKED else None

    def prefills(self) -> list[Sequence]:
        """Sequences with prompt tokens to compute, the most urgent first."""
        prefilling = self.prefilling
        return sorted(prefilling, key=_urgency) if len(prefilling) > 1 else list(prefilling)

    def victim(self) -> Sequence | None:
        """The sequence to preempt: lowest priority, then latest arrival. Slots being filled cannot be taken."""
        return max((sequence for sequence in self if not sequence.being_fetched), key=_urgency, default=None)


def _urgency(sequence: Sequence) -> tuple[Order, int]:
    return urgency(sequence.job.order, sequence.index)
