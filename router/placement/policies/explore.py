"""Sends a prompt now and then to a worker that would get none, as what was learned of it grows out of date. Pure.

A worker that looks slow gets only the prompts that no other worker has time for, or none, and keeps looking slow. So
a worker that looks slower than the others gets one prompt in a hundred of about each size, if that costs at most
three times as much as the best place and the prompt still meets its objective there. A worker that does not look
slower is not starved by how it looks, and gains nothing from a prompt that costs more there. No chance is involved: a
worker's turn comes when its last prompt of the size lies so many placements back.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest
from router.placement.scorers.candidate import Priced
from router.placement.view import WorkerView

_EVERY: Final = 90
"""A little less than a hundred: a turn may have to wait for a prompt that suits."""
_EVERY_WORKER: Final = 6
"""Prompts per worker after which a turn comes in large fleets: before that, the worker may just not have had one
yet."""
_AGAIN: Final = 8
"""Prompts after which a turn whose prompt did not suit is looked at again."""
_MEET: Final = 32
"""Every so many prompts of a size, workers are met that have never had one."""
_DEARER_MAX: Final = 3.0
_RISKIER_MAX: Final = 1.1
_RISK_MS: Final = 1.0
_SLOWER: Final = 1.05
"""Times the median of the candidates above which being slower is not noise any more."""
_BATCH: Final = 16
_CONTEXT: Final = 16_000
WHY: Final = "explores: it has had no prompt of this size for long"


class _Size:
    """Prompts of about one size: how many there were, and by worker, the soonest first, when its turn comes: those
    whose turn has not come yet, and those whose prompt did not suit."""

    __slots__ = ("again", "placed", "turns")

    def __init__(self) -> None:
        self.placed = 0
        self.turns: OrderedDict[str, int] = OrderedDict()
        self.again: OrderedDict[str, int] = OrderedDict()

    def due(self) -> str | None:
        """Whose turn has come."""
        for turns in (self.again, self.turns):
            worker_id = next(iter(turns), None)
            if worker_id is not None and turns[worker_id] <= self.placed:
                return worker_id
        return None

    def next(self, worker_id: str, after: int) -> None:
        """Give a worker its next turn after so many prompts, as many as for all others."""
        self.again.pop(worker_id, None)
        self.turns[worker_id] = self.placed + after
        self.turns.move_to_end(worker_id)

    def postpone(self, worker_id: str) -> None:
        """The prompt did not suit."""
        self.turns.pop(worker_id, None)
        self.again[worker_id] = self.placed + _AGAIN
        self.again.move_to_end(worker_id)

    def meet(self, worker_id: str, after: int) -> None:
        if worker_id not in self.turns and worker_id not in self.again:
            self.next(worker_id, after)


class Explorer:
    """Owned by one policy; knows of its own placements."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def pick(
        self,
        request: PlacementRequest,
        priced: Sequence[Priced],
        slow: Callable[[str], bool],
        others: Sequence[WorkerView] = (),
    ) -> int:
        """The place in `priced`, the cheapest first, that the request is to take: 0 but for an exploration. `slow` is
        whether a worker looks slower than the others; `others` could compute the prompt and were too dear to be in
        `priced`."""
        # Who has been somewhere already has waited long enough.
        if len(priced) < 2 or request.excluded:
            return 0
        kind = _size(priced[0].way.uncached)
        size = self._sizes.setdefault(kind, _Size())
        if size.placed % _MEET == 0:
            for each in priced:
                size.meet(_computing(each), self._every(size))
            for worker in others:
                size.meet(worker.worker_id, self._every(size))
        worker_id = size.due()
        if worker_id is None:
            return 0
        if not slow(worker_id):
            size.next(worker_id, self._every(size))
            return 0
        dearest_ms = _DEARER_MAX * priced[0].total_ms
        for place, each in enumerate(priced):
            if each.total_ms > dearest_ms:
                break
            # Where less of it is cached it is another size.
            if (
                _computing(each) == worker_id
                and _size(each.way.uncached) == kind
                and _holds(request, each, priced[0])
            ):
                return place
        size.postpone(worker_id)
        return 0

    def waiting(self) -> frozenset[str]:
        """Whose turn has come for prompts of some size."""
        found = [size.due() for size in self._sizes.values()]
        return frozenset(worker_id for worker_id in found if worker_id is not None)

    def placed(self, placement: Placement) -> None:
        """A prompt was sent to be computed."""
        size = self._sizes.setdefault(_size(placement.prefill_tokens), _Size())
        size.placed += 1
        size.next(placement.computing, self._every(size))

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        for size in self._sizes.values():
            size.turns.pop(worker_id, None)
            size.again.pop(worker_id, None)

    def _every(self, size: _Size) -> int:
        return max(_EVERY, _EVERY_WORKER * (len(size.turns) + len(size.again)))


def looks_slow(worker_id: str, priced: Sequence[Priced], costs: CostModel) -> bool:
    """Whether prompts or steps are expected to take longer on a worker than on half of the candidates."""
    tokens = max(1, priced[0].way.uncached)
    names = {_computing(each) for each in priced}
    prompts = {name: costs.prefill_ms(name, tokens) for name in names | {worker_id}}
    steps = {name: costs.step_ms(name, _BATCH, _CONTEXT) for name in names | {worker_id}}
    return any(each[worker_id] > _SLOWER * median(each.values()) for each in (prompts, steps))


def _computing(priced: Priced) -> str:
    return (priced.prefill or priced.decode).worker_id


def _size(tokens: int) -> int:
    """Sizes that differ by less than four times are one."""
    return tokens.bit_length() // 2


def _holds(request: PlacementRequest, priced: Priced, best: Priced) -> bool:
    """Whether the first token is expected in time, and misses are hardly likelier than at the best place."""
    objective = request.objective
    if objective is None:
        return True
    if priced.misses_ms > _RISKIER_MAX * best.misses_ms + _RISK_MS:
        return False
    if objective.ttft_ms is None:
        return True
    way = priced.way
    return request.age_ms + priced.queue_ms + way.fetch_ms + way.prefill_ms + priced.transfer_ms <= objective.ttft_ms
