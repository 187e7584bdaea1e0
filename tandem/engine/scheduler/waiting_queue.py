"""Sequences that wait to be admitted, the most urgent first."""

import heapq
from typing import Final

from tandem.engine.scheduler.sequence import Sequence
from tandem.engine.scheduler.sequence_status import SequenceStatus
from tandem.engine.scheduler.step_rules import Order, turn

_Key = tuple[bool, Order, int]
_QUEUED: Final = frozenset({SequenceStatus.WAITING, SequenceStatus.PREEMPTED})


class WaitingQueue:
    """A heap by (not ready, priority, arrival, branch). What stops waiting in another way is skipped later on.

    A work is *ready* when everything it waits for, but its place here, is there.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[_Key, Sequence]] = []
        self._waiting: dict[Sequence, _Key] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Known tokens of all that wait, without those that are to be fetched."""
        return sum(sequence.beyond_bring for sequence in self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def push(self, sequence: Sequence) -> None:
        """Let it wait; in the place that its work calls for now, when it waits already."""
        assert sequence.status in _QUEUED
        key = turn(sequence.job.ready, sequence.job.order, sequence.index)
        if self._waiting.get(sequence) != key:
            self._waiting[sequence] = key
            heapq.heappush(self._heap, (key, sequence))

    def head(self) -> Sequence | None:
        """The next sequence, which stays in the queue."""
        while self._heap and self._waiting.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def discard(self, sequence: Sequence) -> None:
        """The sequence waits no longer: admitted or gone."""
        self._waiting.pop(sequence, None)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[1]) == entry[0]]
            heapq.heapify(self._heap)
