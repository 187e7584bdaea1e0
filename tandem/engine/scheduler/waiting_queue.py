"""Sequences that wait to be admitted, the most urgent first, and those that wait for the load of another."""

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


class WaitingQueues:
    """All sequences that wait for admission: a queue for each way in which a prompt gets its KV, and those that wait
    for a block which is being loaded for another request."""

    def __init__(self) -> None:
        self.fetchable = WaitingQueue()
        """Decode requests whose blocks are to be reserved here and fetched from the worker that computes them."""
        self.bringable = WaitingQueue()
        """Requests of which some blocks are to be fetched before the rest is computed."""
        self.computable = WaitingQueue()
        """Everything else that waits: it needs a share of a step's budget."""
        self.blocked_on_prefix: dict[Sequence, bytes] = {}
        """Sequences that wait for a block to come, or not to come, for another request."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self.fetchable) + len(self.bringable) + len(self.computable) + len(self.blocked_on_prefix)

    @property
    def tokens(self) -> int:
        """Known tokens of all that wait, without those that are to be fetched."""
        blocked = sum(sequence.beyond_bring for sequence in self.blocked_on_prefix)
        return self.computable.tokens + self.bringable.tokens + blocked

    def next_arrival(self) -> int:
        """Give the next number in the order in which requests arrived."""
        self._arrivals += 1
        return self._arrivals

    def push(self, sequence: Sequence) -> None:
        """Put a sequence into the queue that it belongs to now."""
        self._queue_of(sequence).push(sequence)

    def _queue_of(self, sequence: Sequence) -> WaitingQueue:
        job = sequence.job
        if sequence.status is SequenceStatus.PREEMPTED:
            return self.computable
        if job.handed_over:
            return self.fetchable
        return self.bringable if job.bring else self.computable

    def remove(self, sequence: Sequence) -> None:
        """The sequence waits no longer: admitted or gone."""
        self.fetchable.discard(sequence)
        self.bringable.discard(sequence)
        self.computable.discard(sequence)
        self.blocked_on_prefix.pop(sequence, None)

    def take_blocked_on(self, name: bytes) -> list[Sequence]:
        """Remove and return the sequences that have waited for block `name`."""
        freed = [sequence for sequence, awaited in self.blocked_on_prefix.items() if awaited == name]
        for sequence in freed:
            del self.blocked_on_prefix[sequence]
        return freed
