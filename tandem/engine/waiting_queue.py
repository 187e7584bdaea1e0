"""Sequences that wait to be admitted, the most urgent first."""

import heapq

from tandem.engine.sequence import Phase, Sequence


class WaitingQueue:
    """A heap by (priority, arrival, branch). What stops waiting in another way is skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int, Sequence]] = []
        self._waiting: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Known tokens of all that wait."""
        return sum(sequence.length for sequence in self._waiting)

    def push(self, sequence: Sequence) -> None:
        assert sequence.phase is Phase.WAITING
        assert sequence not in self._waiting
        self._waiting[sequence] = None
        heapq.heappush(self._heap, (sequence.job.order, sequence.index, sequence))

    def head(self) -> Sequence | None:
        """Who is next; stays in the queue."""
        while self._heap and self._heap[0][2] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def discard(self, sequence: Sequence) -> None:
        """The sequence waits no longer: admitted or gone."""
        self._waiting.pop(sequence, None)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in self._waiting]
            heapq.heapify(self._heap)
