"""Admitted sequences by state, and who has to make room first."""

from collections.abc import Iterator
from itertools import chain

from tandem.engine.scheduler.sequence import Sequence
from tandem.engine.scheduler.sequence_status import NEXT, SequenceStatus
from tandem.engine.scheduler.step_rules import Order, urgency


class Batch:
    """Sequences that hold blocks. Iteration order is the order in which they entered a state."""

    def __init__(self) -> None:
        self.decoding: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.loading: dict[Sequence, None] = {}
        """Sequences that wait for remote KV."""
        self.awaiting_first: dict[Sequence, None] = {}
        """Sequences that wait for their first token."""
        self._groups = {
            SequenceStatus.RUNNING_DECODE: self.decoding,
            SequenceStatus.RUNNING_PREFILL: self.prefilling,
            SequenceStatus.WAITING_FOR_REMOTE_KVS: self.loading,
            SequenceStatus.WAITING_FOR_FIRST_TOKEN: self.awaiting_first,
        }
        self._width: dict[Sequence, int] = {}
        self.width = 0
        """The number of sequences admitted, where a trunk counts as many as will fork from it."""

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._groups.values())

    def move(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Change the state of a sequence; states without blocks take it out of the batch."""
        before = sequence.status
        if before is status:
            return
        assert status in NEXT[before], f"{before.name} is not followed by {status.name}"
        sequence.status = status
        old, new = self._groups.get(before), self._groups.get(status)
        if old is not None:
            del old[sequence]
        if new is not None:
            new[sequence] = None
            if old is None:
                self._width[sequence] = sequence.job.live if sequence.is_parent else 1
                self.width += self._width[sequence]
        elif old is not None:
            self.width -= self._width.pop(sequence)

    def width_of(self, sequence: Sequence) -> int:
        """The width that an admitted sequence contributes to the batch."""
        return self._width[sequence]

    def prefills(self) -> list[Sequence]:
        """Sequences with prompt tokens to compute, the most urgent first."""
        prefilling = self.prefilling
        return sorted(prefilling, key=_urgency) if len(prefilling) > 1 else list(prefilling)

    def victim(self) -> Sequence | None:
        """The sequence to preempt: lowest priority, then latest arrival. Slots being filled cannot be taken."""
        return max(chain(self.decoding, self.prefilling, self.awaiting_first), key=_urgency, default=None)


def _urgency(sequence: Sequence) -> tuple[Order, int]:
    return urgency(sequence.job.order, sequence.index)
